"""Words that keep or share answers, and a loop, behind a server: a client gets what its own request asks for."""

from __future__ import annotations

import json
from typing import ClassVar, TypedDict

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

import headrace


@headrace.register("ServeTemperature")
class Temperature(headrace.Backend):
    """Tells the parameters of its request, as a model that samples reads its temperature."""

    max = 8
    runs: ClassVar[list[str]] = []

    def forward(self, batch):
        for request in batch:
            context = request.get("context") or {}
            request["result"] = json.dumps(dict(context.get("parameters", {})), sort_keys=True)
            self.runs.append(request["result"])


class ScaledReads(TypedDict):
    data: list[float]
    scale: float


@headrace.register("ServeScaled")
class Scaled(headrace.Backend):
    reads = ScaledReads

    def forward(self, batch):
        for request in batch:
            request["result"] = [value * request["scale"] for value in request["data"]]


@headrace.register("ServeHalves")
class Halves(headrace.Backend):
    """Halves a number until it is below 1."""

    reads = ("data",)
    max = 8

    def forward(self, batch):
        for request in batch:
            request["result"] = float(request["data"]) / 2
            if request["result"] < 1:
                request["done"] = True


@pytest.mark.parametrize("word", ["Cache", "Once"])
def test_the_parameters_of_a_request_make_it_differ(serving, word):
    Temperature.runs.clear()
    node = {"backend": f"{word}(keys=[])[ServeTemperature]", "instance_num": 2}
    model = {"config": node, "inputs": {"TEXT": {"datatype": "BYTES", "shape": [1]}}}
    server = serving({"m": node, "typed": model}, grpc_port=0)
    for temperature in (0.1, 0.9, 0.1, True, 1):
        asked = {"data": "a", "temperature": temperature}
        answer = httpx.post(f"{server.url}/v2/models/m/generate", json=asked)
        assert f'{{"temperature": {json.dumps(temperature)}}}' in json.loads(answer.text).values()
    client = triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://"))
    for seed in (1, 2, 1):
        given = triton.InferInput("TEXT", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"x"], object))
        answer = client.infer("typed", [given], parameters={"seed": seed})
        (output,) = answer.get_response().outputs
        assert json.loads(answer.as_numpy(output.name).item()) == {"seed": seed}
    client.close()
    kept = {"Cache": ["0.1", "0.9", "true", "1", "1", "2"]}.get(word)
    assert kept is None or [text.split(": ")[1][:-1] for text in Temperature.runs] == kept


@pytest.mark.parametrize("backend", ["Cache[S[ServeScaled]]", "Once[S[ServeScaled,Identity]]"])
def test_a_field_that_is_read_deeper_inside_makes_requests_differ(serving, backend):
    fields = {"data": "list[float]", "scale": "float"}
    server = serving({"m": {"config": {"backend": backend}, "request": fields}})
    for scale in (1.0, 100.0, 1.0):
        answer = httpx.post(f"{server.url}/run/m", json={"data": [1, 2, 3], "scale": scale})
        assert answer.json()["result"] == [scale, 2 * scale, 3 * scale]


def test_a_client_that_brings_the_key_of_a_loop_gets_the_whole_loop(serving):
    server = serving({"loop": {"backend": "Loop(until=done)[ServeHalves]"}})
    for query in ("", "?done=1", "?done=", "?done=false"):
        assert httpx.post(f"{server.url}/run/loop{query}", content=b"100").json() == {
            "result": 0.78125
        }
