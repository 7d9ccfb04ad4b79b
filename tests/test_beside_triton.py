"""Answers and errors beside those of Triton on the same repository: the status, and each field of an answer."""

from __future__ import annotations

import json
import shutil
import struct

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

from headrace_serve import Server

CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows, names = (one.as_numpy() for one in request.inputs())
            if (rows < 0).any():
                error = pb_utils.TritonError("a number is below 0", pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=error))
                continue
            tensors = [pb_utils.Tensor("TWICE", rows * 2), pb_utils.Tensor("NAMES", names)]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
BROKEN = CODE.replace(
    "    def execute",
    "    def initialize(self, args):\n        raise ValueError('no')\n\n    def execute",
)
CONFIG = """backend: "python"
max_batch_size: 4
input [{ name: "ROWS" data_type: TYPE_FP32 dims: [3] }, { name: "NAMES" data_type: TYPE_STRING dims: [1] }]
output [{ name: "TWICE" data_type: TYPE_FP32 dims: [3] }, { name: "NAMES" data_type: TYPE_STRING dims: [1] }]
"""

ROWS = {"name": "ROWS", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
NAMES = {"name": "NAMES", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
WHOLE = [{**ROWS, "shape": [3]}, {**NAMES, "shape": [1]}]


def asked(*inputs, model="good", **more):
    return "POST", f"/v2/models/{model}/infer", {"inputs": [*inputs], **more}


def rows(**changes):
    return asked({**ROWS, **changes}, NAMES)


def less(key):
    return asked({name: one for name, one in ROWS.items() if name != key}, NAMES)


def changed(what, model, config=None, **parameters):
    if config is not None:
        parameters["config"] = config if isinstance(config, str) else json.dumps(config)
    body = {"parameters": parameters} if parameters else {}
    return "POST", f"/v2/repository/models/{model}/{what}", body


GOT = [
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/good/infer", "/nothing", "/v2/nothing",
    "/v2/models/good/versions/x",
    *(
        f"/v2/models/{model}{more}"
        for model in ("good", "good/versions/1", "whole", "nobody", "good/versions/9", "broken")
        for more in ("", "/config", "/ready", "/stats")
    ),
]  # fmt: skip
HTTP = {
    **{path: ("GET", path, None) for path in GOT},
    "infer": asked(ROWS, NAMES),
    "with an id": asked(ROWS, NAMES, id="7"),
    "one output": asked(ROWS, NAMES, outputs=[{"name": "TWICE"}]),
    "two rows": asked(
        {**ROWS, "shape": [2, 3], "data": [*range(6)]},
        {**NAMES, "shape": [2, 1], "data": ["a", "b"]},
    ),
    "nested lists": rows(data=[[1, 2, 3]]),
    "without an axis of the batch": asked(*WHOLE, model="whole"),
    "classes": asked(
        ROWS, NAMES, outputs=[{"name": "TWICE", "parameters": {"classification": 2}}]
    ),
    "statistics of six requests": ("GET", "/v2/models/good/stats", None),
    "too many rows": asked(
        {**ROWS, "shape": [5, 3], "data": [1] * 15}, {**NAMES, "shape": [5, 1], "data": ["a"] * 5}
    ),
    "other rows": rows(shape=[2, 3], data=[1] * 6),
    "no row": asked(
        {**ROWS, "shape": [0, 3], "data": []}, {**NAMES, "shape": [0, 1], "data": []}
    ),
    "no axis of the batch": asked(*WHOLE),
    "another length": rows(shape=[1, 4], data=[1] * 4),
    "another rank": rows(shape=[1, 3, 1]),
    "a shape below 0": rows(shape=[-1, 3]),
    "another datatype": rows(datatype="INT32"),
    "an unknown datatype": rows(datatype="FLOAT"),
    **{f"no {key}": less(key) for key in ROWS},
    "too few elements": rows(data=[1, 2]),
    "too many elements": rows(data=[1, 2, 3, 4]),
    "text for numbers": rows(data=["a", "b", "c"]),
    "numbers for text": asked(ROWS, {**NAMES, "data": [1]}),
    "an input is missing": asked(ROWS),
    "an unknown input": asked(ROWS, NAMES, {**ROWS, "name": "MORE"}),
    "an input twice": asked(ROWS, ROWS, NAMES),
    "an empty list": asked(),
    "no inputs": ("POST", "/v2/models/good/infer", {}),
    "an unknown output": asked(ROWS, NAMES, outputs=[{"name": "X"}]),
    "an unknown model": asked(ROWS, NAMES, model="nobody"),
    "an unknown version": asked(ROWS, NAMES, model="good/versions/9"),
    "an unready model": asked(ROWS, NAMES, model="broken"),
    "an error of the model": rows(data=[-1, 2, 3]),
    "no JSON": ("POST", "/v2/models/good/infer", b"{"),
    "no body": ("POST", "/v2/models/good/infer", b""),
    "a list": ("POST", "/v2/models/good/infer", [1]),
    **{f"{size} bytes": ("POST", "/v2/models/good/infer", size) for size in (8, 12, 16)},
    "index": ("POST", "/v2/repository/index", {}),
    "index of what is ready": ("POST", "/v2/repository/index", {"ready": True}),
    "load": changed("load", "good"),
    "load nobody": changed("load", "nobody"),
    "load broken": changed("load", "broken"),
    "load with no JSON": changed("load", "good", "{"),
    "load with code": changed("load", "good", {"backend": "none", "max_batch_size": 4}),
    "load with a wrong value": changed("load", "good", {"max_batch_size": "x"}),
    "load with an unknown field": changed("load", "good", {"max_batch": 4}),
    "load with an unknown parameter": changed("load", "good", x="y"),
    "infer after all that": asked(ROWS, NAMES),
    "unload nobody": changed("unload", "nobody"),
    "unload": changed("unload", "whole"),
    "ready, unloaded": ("GET", "/v2/models/whole/ready", None),
    "infer, unloaded": asked(*WHOLE, model="whole"),
}  # fmt: skip

_CLIENT = "what the client has written wrong is 400, in Triton 500"
_UNKNOWN = "an unknown model or version is 404 everywhere"
_AWAY = "a model that is known and does not serve is 503: it may come back"
_CODE = "a request brings no code: 403"
OTHER_STATUS = {
    "/v2/health/ready": "a model that never served does not take the server out of its load balancer",
    "/v2/models/nobody/ready": _UNKNOWN,
    "/v2/models/nobody/stats": _UNKNOWN,
    "/v2/models/good/versions/9/ready": _UNKNOWN,
    "/v2/models/good/versions/9/stats": _UNKNOWN,
    "/v2/models/broken": _AWAY,
    "/v2/models/broken/config": _AWAY,
    "/v2/models/broken/ready": _AWAY,
    "/v2/models/broken/stats": _AWAY,
    "an unready model": _AWAY,
    "ready, unloaded": _AWAY,
    "infer, unloaded": _AWAY,
    "no row": "no row has an answer of no row",
    "a shape below 0": _CLIENT,
    "no name": _CLIENT,
    "no datatype": _CLIENT,
    "no shape": _CLIENT,
    "too few elements": _CLIENT,
    "too many elements": _CLIENT,
    "text for numbers": _CLIENT,
    "numbers for text": _CLIENT,
    "no inputs": _CLIENT,
    "no JSON": _CLIENT,
    "a list": _CLIENT,
    "load with no JSON": _CLIENT,
    "load with a wrong value": _CLIENT,
    "load with an unknown parameter": _CLIENT,
    "load nobody": _UNKNOWN,
    "unload nobody": _UNKNOWN,
    "load broken": "a model that cannot be built is a fault of the server: 500",
    "load with code": _CODE,
    "load with an unknown field": _CODE,
}
"""Questions that have another status here, with the reason."""

OTHER_FIELDS = {
    "version": "it is that of headrace-serve",
    "extensions": "what is off or not here is not named: CUDA, traces, logs",
    "platform": "a pipeline runs the model",
    "last_inference": "a time",
    "ns": "a time",
    "batch_stats": "`batch_size` counts requests, not rows, and only batches that ran are listed",
    "response_stats": "there are no statistics of the single responses",
    "memory_usage": "/v2/memory has it",
    "optimization": "the backend chooses by itself",
    **dict.fromkeys(
        ("host_policy", "secondary_devices", "profile", "passive"), "no instance has it here"
    ),
    "reason": "Triton leaves it out where it is empty, and its text is another",
}
"""Fields that differ, with the reason."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("beside")
    whole = CONFIG.replace("max_batch_size: 4", "max_batch_size: 0")
    models = {"good": (CONFIG, CODE), "whole": (whole, CODE), "broken": (CONFIG, BROKEN)}
    for name, (config, code) in models.items():
        (made / "repository" / name / "1").mkdir(parents=True)
        (made / "repository" / name / "1" / "model.py").write_text(code)
        (made / "repository" / name / "config.pbtxt").write_text(config)
    shutil.copytree(made / "repository", made / "ours")
    return made


@pytest.fixture
def both(folder, triton_of):
    """Return the addresses of HTTP and gRPC of Triton, then those of ours."""
    how = ("--exit-on-error=false", "--model-control-mode=explicit", "--load-model=*")
    ours = Server(
        str(folder / "ours"), port=0, grpc_port=0, allow=["repository"], server_name="triton",
        exit_on_error=False,
    )  # fmt: skip
    with triton_of(folder, *how, ready="live") as (http, grpc, _), ours:
        yield (f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"), (
            ours.url, ours.grpc_url.removeprefix("grpc://"),
        )  # fmt: skip


def over_http(client, base, question):
    """Return the status, and the answer: of an error, whether it has a text."""
    method, path, body = question
    content, headers = body, {}
    if isinstance(body, int):
        bare = {key: one for key, one in ROWS.items() if key != "data"}
        head = {"inputs": [{**bare, "parameters": {"binary_data_size": body}}, NAMES]}
        text = json.dumps(head).encode()
        content = text + struct.pack("<4f", 1, 2, 3, 4)[:body]
        headers = {"Inference-Header-Content-Length": str(len(text))}
    elif body is not None and not isinstance(body, bytes):
        content = json.dumps(body)
    answer = client.request(method, base + path, content=content, headers=headers)
    if path.endswith(("/live", "/ready")):  # ours have a body, too
        return answer.status_code, {}
    found = answer.json() if answer.content else {}
    if answer.status_code < 400:
        return answer.status_code, found
    return answer.status_code, {"error": isinstance(found.get("error"), str)} if found else {}


def when_all_are_counted(client, base, question):
    """Return the statistics of six requests: Triton counts a request after it has answered it."""
    while True:
        status, found = over_http(client, base, question)
        if found["model_stats"][0]["execution_count"] >= 6:
            return status, found


def differences(theirs, ours, place=()):
    """Yield the places of what differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in theirs.keys() | ours.keys():
            yield from differences(theirs.get(name), ours.get(name), (*place, name))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        if theirs and isinstance(theirs[0], dict) and "state" in theirs[0]:  # in any order
            theirs, ours = (sorted(one, key=lambda row: row["name"]) for one in (theirs, ours))
        for one, other in zip(theirs, ours, strict=True):
            yield from differences(one, other, place)
    elif theirs != ours:
        yield ".".join(place), theirs, ours


@pytest.mark.peers
def test_http_answers_as_triton_does(both):
    statuses, fields, seen = {}, {}, set()
    with httpx.Client(timeout=300) as client:
        for name, question in HTTP.items():
            ask = when_all_are_counted if name.startswith("statistics") else over_http
            (theirs, one), (ours, other) = (ask(client, base, question) for base, _ in both)
            if theirs != ours:
                statuses[name] = theirs, ours
                continue
            for place, *values in differences(one, other):
                seen |= OTHER_FIELDS.keys() & place.split(".")
                if OTHER_FIELDS.keys().isdisjoint(place.split(".")):
                    fields[name, place] = values
    assert fields == {}
    assert OTHER_STATUS.keys() == statuses.keys()
    assert OTHER_FIELDS.keys() == seen


# gRPC.


def given(name, shape, datatype):
    made = triton.InferInput(name, shape, datatype)
    kind = {"BYTES": object, "INT32": np.int32}.get(datatype, np.float32)
    made.set_data_from_numpy(np.full(shape, b"a" if datatype == "BYTES" else 1, kind))
    return made


def infer(*inputs, model="good", **more):
    inputs = inputs or (("ROWS", [1, 3], "FP32"), ("NAMES", [1, 1], "BYTES"))
    return lambda client: client.infer(
        model, [given(*one) for one in inputs], **more
    ).get_response()


def short(client):
    one = given("ROWS", [1, 3], "FP32")
    one._raw_content = one._raw_content[:8]
    return client.infer("good", [one, given("NAMES", [1, 1], "BYTES")]).get_response()


NAME = ("NAMES", [1, 1], "BYTES")
GRPC = {
    "server": lambda c: c.get_server_metadata(),
    "live": lambda c: c.is_server_live(),
    "ready": lambda c: c.is_server_ready(),
    **{
        f"{what} {name} {version}": lambda c, call=call, name=name, version=version: getattr(
            c, call
        )(name, version)
        for what, call in {
            "ready": "is_model_ready",
            "metadata": "get_model_metadata",
            "configuration": "get_model_config",
            "statistics": "get_inference_statistics",
        }.items()
        for name, version in (("good", ""), ("good", "9"), ("nobody", ""), ("broken", ""))
    },
    "infer": infer(),
    "with an id": infer(request_id="7"),
    "one output": infer(outputs=[triton.InferRequestedOutput("TWICE")]),
    "two rows": infer(("ROWS", [2, 3], "FP32"), ("NAMES", [2, 1], "BYTES")),
    "too many rows": infer(("ROWS", [5, 3], "FP32"), ("NAMES", [5, 1], "BYTES")),
    "other rows": infer(("ROWS", [2, 3], "FP32"), NAME),
    "another length": infer(("ROWS", [1, 4], "FP32"), NAME),
    "another datatype": infer(("ROWS", [1, 3], "INT32"), NAME),
    "too few bytes": short,
    "an input is missing": infer(NAME),
    "an unknown input": infer(("ROWS", [1, 3], "FP32"), NAME, ("MORE", [1, 3], "FP32")),
    "an input twice": infer(("ROWS", [1, 3], "FP32"), ("ROWS", [1, 3], "FP32"), NAME),
    "an unknown output": infer(outputs=[triton.InferRequestedOutput("X")]),
    "an unknown model": infer(model="nobody"),
    "an unknown version": infer(model_version="9"),
    "an unready model": infer(model="broken"),
    "index": lambda c: c.get_model_repository_index(),
    "load": lambda c: c.load_model("good"),
    "load nobody": lambda c: c.load_model("nobody"),
    "load broken": lambda c: c.load_model("broken"),
    "load with no JSON": lambda c: c.load_model("good", config="{"),
    "load with code": lambda c: c.load_model("good", config='{"backend": "none"}'),
    "infer after all that": infer(),
    "unload nobody": lambda c: c.unload_model("nobody"),
    "unload": lambda c: c.unload_model("whole"),
    "infer, unloaded": infer(("ROWS", [3], "FP32"), ("NAMES", [1], "BYTES"), model="whole"),
}

OTHER_CODE = {
    "metadata broken ": _AWAY,
    "configuration broken ": _AWAY,
    "statistics broken ": _AWAY,
    "an unready model": _AWAY,
    "infer, unloaded": _AWAY,
    "statistics good 9": _UNKNOWN,
    "statistics nobody ": _UNKNOWN,
    "load nobody": _UNKNOWN,
    "unload nobody": _UNKNOWN,
    "load broken": "a model that cannot be built is a fault of the server: INTERNAL",
    "load with no JSON": "what the client has written wrong is INVALID_ARGUMENT",
    "load with code": "a request brings no code: PERMISSION_DENIED",
    "ready": OTHER_STATUS["/v2/health/ready"],
}
"""Questions of gRPC that have another status here, with the reason."""


def over_grpc(client, question):
    """Return the status, and the answer."""
    try:
        found = question(client)
    except InferenceServerException as error:
        return error.status(), {"error": bool(error.message())}
    if isinstance(found, (bool, type(None))):
        return found, {}
    return "OK", MessageToDict(found, preserving_proto_field_name=True)


@pytest.mark.peers
def test_grpc_answers_as_triton_does(both):
    clients = [triton.InferenceServerClient(grpc) for _, grpc in both]
    statuses, fields = {}, {}
    for name, question in GRPC.items():
        (theirs, one), (ours, other) = (over_grpc(client, question) for client in clients)
        if theirs != ours:
            statuses[name] = theirs, ours
            continue
        for place, *values in differences(one, other):
            if OTHER_FIELDS.keys().isdisjoint(place.split(".")):
                fields[name, place] = values
    for client in clients:
        client.close()
    assert fields == {}
    assert OTHER_CODE.keys() == statuses.keys()
