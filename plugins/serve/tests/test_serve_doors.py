"""Each way of asking for a model that is not there: it waits, within its time, or is told that there is no room."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import grpc
import httpx
import numpy as np
import pytest
from serve_helpers import until

import headrace
from headrace_models import Memory
from headrace_serve.grpc.messages import message

PLENTY_US = 60_000_000
APIS = ["kserve-v1", "openai"]


class GivesNumber(headrace.Backend):
    """Write two numbers. Its build waits for the gate."""

    rerun = True
    max = 8

    class Options(headrace.Options):
        positional = ("number",)
        number: float

    gate: ClassVar[threading.Event] = threading.Event()

    def init(self, options, context):
        self.number = options.number
        assert GivesNumber.gate.wait(60)

    def forward(self, batch):
        for request in batch:
            request["result"] = np.full(2, self.number, np.float32)


@pytest.fixture(autouse=True)
def gate():
    headrace.register("GivesNumber", GivesNumber, replace=True)
    gate = GivesNumber.gate = threading.Event()
    gate.set()
    yield gate
    GivesNumber.gate.set()
    gate.set()


NUMBERS = {"kept": 1, "parts": 2, "whole": 3}


def served(serving, *, room, queue_size=100):
    """Serve a model that stays, and two with room for ``room`` of them."""
    models = {
        name: {
            "config": {"backend": f"GivesNumber({number})", "queue_size": queue_size},
            "memory": "1 GiB",
            "keep": name == "kept",
            "decoupled": name == "parts",
            "preload": name == "kept",
        }
        for name, number in NUMBERS.items()
    }
    memory = Memory({"host": f"{1 + room} GiB"}, min_stay_s=0)
    return serving(models, memory=memory, grpc_port=0, apis=APIS)


# Each of these returns the numbers of an answer and 0, or the code of an error and the seconds until the next try.


def judged(answer):
    if answer.status_code == 200:
        return [float(number) for number in re.findall(r"\b\d\.0\b", answer.text)], 0
    codes = re.findall(r'"code": ?"(\w+)"', answer.text)
    return codes[0] if codes else answer.status_code, int(answer.headers.get("retry-after", 0))


def post(server, path, timeout_us, **how):
    headers = {**how.pop("headers", {}), "x-request-timeout-ms": str(timeout_us // 1000)}
    return judged(httpx.post(f"{server.url}/{path}", headers=headers, timeout=90, **how))


def run(server, name, timeout_us):
    return post(server, f"run/{name}?timeout={timeout_us}", timeout_us, content=b"x")


def run_for_events(server, name, timeout_us):
    how = {"headers": {"accept": "text/event-stream"}, "content": b"x"}
    return post(server, f"run/{name}?timeout={timeout_us}", timeout_us, **how)


def run_files(server, name, timeout_us):
    files = [("files", (f"{number}.bin", b"x")) for number in range(3)]
    numbers, after_s = post(server, f"run/{name}?timeout={timeout_us}", timeout_us, files=files)
    return numbers[::3] if isinstance(numbers, list) else numbers, after_s


def infer(server, name, timeout_us):
    inputs = [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
    body = {"inputs": inputs, "parameters": {"timeout": timeout_us}}
    return post(server, f"v2/models/{name}/infer", timeout_us, json=body)


def infer_items(server, name, timeout_us):
    inputs = [{"name": "data", "datatype": "BYTES", "shape": [5], "data": [*"abcde"]}]
    body = {"inputs": inputs, "parameters": {"timeout": timeout_us}}
    numbers, after_s = post(server, f"v2/models/{name}/infer", timeout_us, json=body)
    return numbers[::5] if isinstance(numbers, list) else numbers, after_s


def generate(server, name, timeout_us):
    body = {"data": "x", "timeout": timeout_us}
    return post(server, f"v2/models/{name}/generate", timeout_us, json=body)


def generate_stream(server, name, timeout_us):
    body = {"data": "x", "timeout": timeout_us}
    return post(server, f"v2/models/{name}/generate_stream", timeout_us, json=body)


def predict(server, name, timeout_us):
    return post(server, f"v1/models/{name}:predict", timeout_us, json={"instances": ["x"]})


def embed(server, name, timeout_us):
    return post(server, "v1/embeddings", timeout_us, json={"model": name, "input": "x"})


SERVICE = "/inference.GRPCInferenceService"


def request_for(name, timeout_us):
    request = message("inference.ModelInferRequest")(model_name=name)
    request.parameters["timeout"].int64_param = timeout_us
    tensor = request.inputs.add(name="data", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"x")
    return request.SerializeToString()


def numbers_in(response):
    return np.frombuffer(response.raw_output_contents[0], np.float32).tolist(), 0


def call(server, name, timeout_us):
    answered = message("inference.ModelInferResponse").FromString
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        ask = channel.unary_unary(f"{SERVICE}/ModelInfer", None, answered)
        try:
            return numbers_in(ask(request_for(name, timeout_us), timeout=90))
        except grpc.RpcError as error:
            told = error
    trailing = dict(told.trailing_metadata())
    if told.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return trailing["code"], 0
    status = message("google.rpc.Status").FromString(trailing["grpc-status-details-bin"])
    after = message("google.rpc.RetryInfo").FromString(status.details[0].value)
    return trailing["code"], after.retry_delay.seconds


def call_in_stream(server, name, timeout_us):
    answered = message("inference.ModelStreamInferResponse").FromString
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        ask = channel.stream_stream(f"{SERVICE}/ModelStreamInfer", None, answered)
        (answer,) = ask(iter([request_for(name, timeout_us)]), timeout=90)
    told = answer.infer_response
    return (told.parameters["code"].string_param, 0) if answer.error_message else numbers_in(told)


DOORS = [
    *(
        run,
        run_for_events,
        run_files,
        infer,
        infer_items,
        generate,
        generate_stream,
        predict,
        embed,
    ),
    *(call, call_in_stream),
]


@pytest.mark.parametrize("name", ["parts", "whole"])
def test_all_doors_wait_for_the_same_model_and_none_loses_a_request(serving, gate, name):
    server = served(serving, room=1)
    doors = [door for door in DOORS if name == "whole" or door is not call]
    gate.clear()
    with ThreadPoolExecutor(2 * len(doors)) as pool:
        answers = [pool.submit(door, server, name, PLENTY_US) for door in doors * 2]
        in_flight = server._service.counters.in_flight
        until(lambda: sum(in_flight.values()) == len(answers))
        gate.set()
        given = [answer.result(90) for answer in answers]
    assert given == [([NUMBERS[name]] * 2, 0)] * len(answers)


@pytest.mark.parametrize("door", DOORS)
def test_each_door_gives_up_in_time(serving, gate, door):
    server = served(serving, room=1)
    gate.clear()
    with contextlib.ExitStack() as stack:
        stack.callback(gate.set)
        code, _ = door(server, "whole", 50_000)
    assert code in {"deadline", 504}


@pytest.mark.parametrize("cannot", ["no room", "a full queue"])
def test_each_door_tells_that_there_is_no_room(serving, gate, cannot):
    room = cannot == "a full queue"
    server = served(serving, room=int(room), queue_size=2)
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        stack.callback(gate.set)
        if room:
            gate.clear()
            waiting = [pool.submit(infer, server, "whole", PLENTY_US) for _ in range(2)]
            until(lambda: server._service.counters.in_flight["http"] == 2)
        for door in DOORS:
            for name in ["whole"] if room or door is call else ["whole", "parts"]:
                code, after_s = door(server, name, PLENTY_US)
                assert code in {"memory", 429}, (door, name)
                assert after_s >= 1 or door is call_in_stream, (door, name)
        gate.set()
        if room:
            assert [answer.result(90) for answer in waiting] == [([3.0, 3.0], 0)] * 2
    assert run(server, "kept", PLENTY_US) == ([1.0, 1.0], 0)
