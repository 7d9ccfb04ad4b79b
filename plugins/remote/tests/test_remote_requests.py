"""What travels: tensors, keys, deadlines; what comes back is each request's own."""

from __future__ import annotations

import numpy as np
import pytest
from remote_servers import ROWS, fails
from tritonclient.grpc import service_pb2

import headrace
from headrace.errors import BackendError, InputError, RequestsFailed

pytestmark = pytest.mark.first(
    "use other processes and machines: another server answers each request for itself"
)

VALUES = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 5], np.int16),
    "INT32": np.array([-(2**31), 5], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([0.5, -2.0], np.float16),
    "FP32": np.array([0.1, np.nan], np.float32),
    "FP64": np.array([0.1, np.inf], np.float64),
    "BF16": np.array([1.5, -2.0], np.float32),
}


def errors_of(pipe, requests):
    """Return the error of each request, None where it went well."""
    try:
        pipe(requests)
    except RequestsFailed as error:
        return error.errors
    return [None] * len(requests)


def test_each_item_of_a_batch_has_the_outcome_that_the_server_gave_it(serving, remote):
    pipe = remote([serving({"m": {"backend": "RemotePicky", "max": 8}})])
    requests = [{"data": data} for data in (b"a", b"bad", b"c", b"break", b"e")]
    errors = errors_of(pipe, requests)
    assert [one.get("result") for one in requests] == [b"A", None, b"C", None, b"E"]
    assert isinstance(errors[1], InputError)
    assert errors[1].node == "main"
    assert "this is bad" in str(errors[1])
    assert type(errors[3]) is BackendError
    assert "secret" not in str(errors[3])
    assert pipe.stats()["nodes"]["main"]["batch_size"]["histogram"] == {"5": 1}


def test_a_sample_and_rows_come_back_in_memory_of_their_own(serving, remote):
    pipe = remote([serving({"m": ROWS})])
    sample, rows = np.float32([1, 2, 3]), np.arange(6, dtype=np.float32).reshape(2, 3)
    one, two = {"data": sample}, {"data": rows, "request_size": 2}
    pipe([one, two])
    assert one["result"].tolist() == sample.tolist()
    assert two["result"].tolist() == rows.tolist()
    one["result"][:] = 7
    assert two["result"].tolist() == rows.tolist()
    assert sample.tolist() == [1, 2, 3]


def test_every_datatype_goes_there_and_back(serving, remote):
    models = {
        name.lower(): {
            "config": {"backend": "Identity"},
            "inputs": {"x": {"datatype": name, "shape": [-1], "each": False}},
            "outputs": {"y": {"datatype": name, "shape": [-1]}},
        }
        for name in VALUES
    }
    url = serving(models)
    for name, sent in VALUES.items():
        got = remote([url], name.lower())({"data": sent})["result"]
        assert (got.dtype, repr(got.tolist())) == (sent.dtype, repr(sent.tolist()))


def test_bytes_and_texts_are_elements_and_lists_of_them_rows(serving, remote):
    url = serving({"m": {"backend": "RemotePicky", "max": 8}})
    pipe = remote([url])
    assert pipe({"data": "straße"})["result"] == "straße".encode().upper()
    assert pipe({"data": bytearray(b"ab")})["result"] == b"AB"
    rows = pipe({"data": ["a", b"b"], "request_size": 2})["result"]
    assert rows.tolist() == [b"A", b"B"]
    assert remote([url], text=True)({"data": "ab"})["result"] == "AB"


def test_a_row_that_fails_fails_its_request_and_no_other(serving, remote):
    pipe = remote([serving({"m": {"backend": "RemotePicky", "max": 8}})])
    first = {"data": ["a", "bad"], "request_size": 2}
    second = {"data": ["c", "d"], "request_size": 2}
    errors = errors_of(pipe, [first, second])
    assert isinstance(errors[0], InputError)
    assert errors[1] is None
    assert second["result"].tolist() == [b"C", b"D"]


def test_json_results_are_read_and_keys_travel(serving, remote):
    pipe = remote([serving({"m": {"backend": "RemotePicky", "max": 8}})])
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = {"data": b"told", "request_id": "r1", "context": {"traceparent": trace}}
    assert pipe(request)["result"] == {"context": {"traceparent": trace}, "id": "r1"}


def test_ids_of_a_batch_travel_together(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url])
    pipe([{"data": np.float32([k, 0, 0]), "request_id": k} for k in range(3)])
    assert server.calls[-1][0].id == "0,1,2"


def test_deadline_priority_key_and_trace_travel(stand_in, remote):
    server = stand_in()
    options = {"timeout_ms": 40_000, "priority": 3, "key": "secret"}
    config = {f"Remote::{name}": value for name, value in options.items()}
    pipe = remote([server.url], **config)
    pipe({"data": np.zeros(3, np.float32), "context": {"traceparent": "00-1-2-01"}})
    request, metadata, left = server.calls[-1]
    assert 20 < left < 42  # gRPC rounds it up
    assert request.parameters["priority"].int64_param == 3
    assert metadata["authorization"] == "Bearer secret"
    assert metadata["traceparent"] == "00-1-2-01"
    # What is no text of ASCII cannot travel, and fails nothing.
    pipe({"data": np.zeros(3, np.float32), "context": {"traceparent": "ä\n"}})
    assert "traceparent" not in server.calls[-1][1]


TRACE = {"traceparent": "00-1-2-01", "tracestate": "a=1,b=2", "baggage": "user=alice;ttl=5"}


@pytest.mark.parametrize(
    ("context", "sent"),
    [
        (TRACE, TRACE),
        ({"tracestate": "a=1"}, {}),  # W3C Trace Context, 3.3: it says nothing without its traceparent
        ({"baggage": "a=1", "other": "b"}, {"baggage": "a=1"}),
        ({**TRACE, "tracestate": "ä", "baggage": 7}, {"traceparent": "00-1-2-01"}),
        ({**TRACE, "baggage": "a=" + "b" * 10_000}, {k: TRACE[k] for k in ("traceparent", "tracestate")}),
        ({name: value + "x" * (2000 - len(value)) for name, value in TRACE.items()}, None),
    ],
)  # fmt: skip
def test_the_whole_trace_travels(stand_in, remote, context, sent):
    server = stand_in()
    pipe = remote([server.url], **{"Remote::key": "secret"})
    rows = [{"data": np.zeros(3, np.float32)} for _ in range(3)]
    rows[1]["context"] = context
    if sent != {}:
        rows[2]["context"] = {"baggage": "of=another"}
    pipe(rows)
    metadata = server.calls[-1][1]
    wanted = context if sent is None else sent
    assert {name: metadata[name] for name in TRACE if name in metadata} == wanted


class SumAndDifference(headrace.Backend):
    reads = ("a", "b")
    max = None

    def forward(self, batch):
        for request in batch:
            request["result"] = {"s": request["a"] + request["b"], "d": request["a"] - request["b"]}


headrace.register("RemoteSumAndDifference", SumAndDifference)


def test_several_inputs_and_outputs(serving, remote):
    model = {
        "config": {"backend": "RemoteSumAndDifference", "max": 8},
        "inputs": {n: {"datatype": "FP32", "shape": [-1, 2], "batched": True} for n in "ab"},
        "outputs": {n: {"datatype": "FP32", "shape": [-1, 2]} for n in "sd"},
    }
    url = serving({"m": model})
    a, b = np.float32([5, 6]), np.float32([1, 2])
    # The backend adds whole requests: rows of one call are one request of the server.
    got = remote([url])({"a": a, "b": b})["result"]
    assert {name: value.tolist() for name, value in got.items()} == {"s": [6, 8], "d": [4, 4]}
    picked = remote([url], inputs={"b": "shift"}, outputs=["d"])
    assert picked({"a": a, "shift": b})["result"].tolist() == [4, 4]
    with pytest.raises(InputError, match="has no 'shift'") as caught:
        picked({"a": a, "b": b})
    assert caught.value.key == "shift"
    with pytest.raises(InputError, match="some inputs"):
        picked({"a": a[None], "shift": b})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(3), "wrong dtype"),
        (np.zeros(4, np.float32), "wrong shape"),
        (np.zeros((2, 3), np.float32), "request_size"),
        (None, "wrong dtype"),
        ("text", "wrong dtype"),
        ([1, 2, 1e300], "does not fit float32"),
        ([[1, 2], [3]], "nothing numpy can read"),
    ],
)
def test_a_wrong_request_is_refused_here_and_alone(stand_in, remote, value, text):
    server = stand_in()
    pipe = remote([server.url])
    good = {"data": [1, 2.5, 3]}
    errors = errors_of(pipe, [{"data": value}, good])
    assert isinstance(errors[0], InputError)
    assert text in str(errors[0])
    assert errors[0].key == "data"
    assert good["result"].tolist() == [2, 5, 6]
    assert len(server.calls) == 1


def test_requests_of_different_shapes_travel_in_different_calls(stand_in, remote):
    shapes = {"datatype": "FP32", "shape": [-1, -1]}
    metadata = {
        "name": "m",
        "inputs": [{"name": "x", **shapes}],
        "outputs": [{"name": "y", **shapes}],
    }
    server = stand_in(metadata=metadata)

    def echoed(request, context):
        made = service_pb2.ModelInferResponse()
        made.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
        made.raw_output_contents.append(request.raw_input_contents[0])
        return made

    server.script += [echoed, echoed]
    requests = [{"data": np.full(n, n, np.float32)} for n in (2, 3, 2)]
    remote([server.url])(requests)
    assert [one["result"].tolist() for one in requests] == [[2, 2], [3, 3, 3], [2, 2]]
    assert sorted(list(one.inputs[0].shape) for one, _, _ in server.calls) == [[1, 3], [2, 2]]


def test_the_models_configuration_bounds_the_batch(stand_in, remote):
    server = stand_in(config={"name": "m", "max_batch_size": 2})
    pipe = remote([server.url])
    requests = [{"data": [k, 0, 0]} for k in range(5)]
    pipe(requests)
    assert [one["result"][0] for one in requests] == [0, 2, 4, 6, 8]
    assert max(one.inputs[0].shape[0] for one, _, _ in server.calls) == 2


def test_a_model_without_a_batch_axis_takes_whole_tensors_one_request_at_a_time(stand_in, remote):
    server = stand_in(config={"name": "m", "max_batch_size": 0})
    pipe = remote([server.url])
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    requests = [{"data": rows}, {"data": rows + 1}]
    pipe(requests)
    assert [one["result"].tolist() for one in requests] == [
        (2 * rows).tolist(),
        (2 * rows + 2).tolist(),
    ]
    assert len(server.calls) == 2
    # What the configuration does not know, an option says.
    said = remote([server.url], batched=True)
    assert said({"data": rows[0]})["result"].tolist() == [0, 2, 4]


def answer(**changes):
    """Make an entry of a script that answers something else than what is right."""

    def act(request, context):
        made = service_pb2.ModelInferResponse()
        said = {"name": "y", "datatype": "FP32", "shape": [1, 3], **changes}
        raw = said.pop("raw", bytes(12))
        made.outputs.add(**said)
        made.raw_output_contents.extend([raw] if isinstance(raw, bytes) else raw)
        return made

    return act


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "z"}, "lacks the output 'y'; it has: 'z'"),
        ({"shape": [2, 3], "raw": bytes(24)}, "2 rows of output 'y' for 1"),
        ({"raw": bytes(11)}, "11 bytes for output 'y'"),
        ({"raw": [bytes(12), bytes(12)]}, "2 raw contents for 1 outputs"),
        ({"datatype": "FP31"}, "datatype 'FP31'"),
        (
            {"datatype": "BYTES", "shape": [1], "raw": b"\5\0\0\0ab"},
            "element 0 says it has 5 bytes, 2 are left",
        ),
        ({"shape": [-1, 3]}, "12 bytes for output 'y'"),
        (
            {"datatype": "BYTES", "shape": [1 << 40], "raw": bytes(4)},
            "ends before element 1 of 109",
        ),
        ({"datatype": "BYTES", "shape": [1 << 62, 9], "raw": bytes(4)}, "ends before element 1 of"),
        ({"datatype": "BYTES", "shape": [-1, 3], "raw": b""}, "negative dimensions"),
        ({"datatype": "BYTES", "shape": [-1, -1], "raw": bytes(4)}, "one unknown dimension"),
    ],
)
def test_an_answer_that_does_not_fit_fails_its_call_alone(stand_in, remote, changes, text):
    server = stand_in()
    server.script.append(answer(**changes))
    pipe = remote([server.url])
    with pytest.raises(BackendError) as caught:
        pipe({"data": [1, 2, 3]})
    assert text in str(caught.value)
    assert server.url in str(caught.value)
    assert pipe({"data": [1, 2, 3]})["result"].tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("INVALID_ARGUMENT", None, "InputError"),
        ("INVALID_ARGUMENT", "batch_range", "BatchRangeError"),
        ("RESOURCE_EXHAUSTED", None, "OverloadedError"),
        ("RESOURCE_EXHAUSTED", "overloaded", "OverloadedError"),
        ("RESOURCE_EXHAUSTED", "body_too_large", "InputError"),
        ("DEADLINE_EXCEEDED", "deadline", "DeadlineExceededError"),
        ("DEADLINE_EXCEEDED", None, "DeadlineExceededError"),
        ("INTERNAL", "limit", "LimitError"),
        ("INTERNAL", "no_result", "NoResultError"),
        ("INTERNAL", "contract", "ContractError"),
        ("INTERNAL", "backend", "BackendError"),
        ("UNAVAILABLE", "instance_lost", "BackendError"),
        ("UNKNOWN", None, "BackendError"),
        ("NOT_FOUND", "unknown_model", "BackendError"),
    ],
)
def test_codes_come_back_as_our_errors(stand_in, remote, status, code, error):
    server = stand_in()
    server.script.append(fails(status, "the reason", code=code))
    pipe = remote([server.url])
    with pytest.raises(headrace.errors.RequestError) as caught:
        pipe({"data": [1, 2, 3]})
    assert type(caught.value).__name__ == error
    assert pipe({"data": [1, 2, 3]})["result"].tolist() == [2, 4, 6]
