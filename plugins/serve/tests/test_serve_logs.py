"""What an operator reads: requests that failed, as text and as JSON, and whose they were."""

from __future__ import annotations

import json
import logging
import re
import sys

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

import headrace
from headrace.errors import BackendError, InputError
from headrace_serve.monitoring.failures import FailureLog, instead_of_library
from headrace_serve.operating.logs import printing_logs
from headrace_testing import FakeClock

DISK = """
import headrace

@headrace.register("Disk")
class Disk(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            if request["data"] == b"break":
                raise RuntimeError("the disk is full")
            request["result"] = request["data"].decode()
"""
FORGING = """
import headrace

class Chain(Exception):
    pass

@headrace.register("Forging")
class Forging(headrace.Backend):
    def forward(self, batch):
        text = batch[0]["data"].decode()
        try:
            raise KeyError(text)
        except KeyError as error:
            raise Chain(text) from error
"""
FORGED = "2026-01-01 00:00:00,000 error: nothing is wrong"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "disk.py").write_text(DISK)
    (tmp_path / "disk.toml").write_text('import = ["disk.py"]\nbackend = "Disk"')
    return tmp_path


def ended(process):
    """Stop a server, and give what it has written."""
    process.terminate()
    written = process.stderr.read()
    assert process.wait(300) == 0
    return written


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_what_a_backend_raises_is_in_the_servers_log_once_with_its_traceback(folder, start):
    process, url = start("disk.toml", "--port", "0", cwd=folder)
    headers = {"X-Request-Id": "r-17", "traceparent": TRACE}
    answer = httpx.post(f"{url}/run/disk", content=b"break", headers=headers)
    assert answer.status_code == 500
    assert "disk is full" not in answer.text
    assert answer.headers["x-request-id"] == "r-17"
    assert httpx.post(f"{url}/run/disk", content=b"fine").json() == {"result": "fine"}
    written = ended(process)
    assert written.count("\nRuntimeError: the disk is full") == 1
    assert written.count(" error: ") == 1
    assert "Traceback (most recent call last)" in written
    assert "model=disk" in written
    for said in ("node 'main'", "backend 'Disk'", "r-17", TRACE.split("-")[1]):
        assert said in written


def test_the_log_of_json_has_one_object_a_line(folder, start, tmp_path):
    (tmp_path / "keys.toml").write_text(
        '[camera]\nsha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"'
    )
    args = (
        "disk.toml",
        "--port",
        "0",
        "--log-format",
        "json",
        "--access-log",
        "--keys",
        "keys.toml",
    )
    process, url = start(*args, cwd=folder)
    headers = {"X-Request-Id": "r-17", "traceparent": TRACE, "X-API-Key": "key"}
    for content in (b"break", b"fine"):
        httpx.post(f"{url}/run/disk", content=content, headers=headers)
    httpx.get(f"{url}/v2", headers=headers)
    lines = [json.loads(one) for one in ended(process).splitlines()]
    (failed,) = [one for one in lines if one["logger"] == "headrace.serve.requests"]
    assert failed["level"] == "ERROR"
    assert failed["exception"] == "RuntimeError: the disk is full"
    assert 'raise RuntimeError("the disk is full")' in failed["traceback"]
    about = {"model": "disk", "version": "1", "node": "main", "backend": "Disk", "code": "backend"}
    whose = {"request_id": "r-17", "trace_id": TRACE.split("-")[1], "key": "camera"}
    assert {name: failed[name] for name in {**about, **whose}} == {**about, **whose}
    first, second, third = [one for one in lines if one["logger"] == "headrace.serve.access"]
    assert {name: first[name] for name in whose} == whose
    assert (first["status"], second["status"]) == ("500", "200")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", first["client"])
    assert (third["route"], third["receive_ms"]) == ("GET /v2", 0.0)
    assert [one["message"] for one in lines if one["logger"] == "headrace.serve"] == ["draining"]


def test_an_item_that_fails_beside_others_is_logged_too(serving, caplog):
    server = serving({"m": {"backend": "ServePicky", "max": 4}})
    tensor = {"name": "data", "datatype": "BYTES", "shape": [3], "data": ["a", "break", "bad"]}
    with instead_of_library():
        body = {"inputs": [tensor], "parameters": {"partial": True}, "id": "i"}
        answer = httpx.post(f"{server.url}/v2/models/m/infer", json=body)
    assert answer.status_code == 200
    (record,) = [one for one in caplog.records if one.name == "headrace.serve.requests"]
    assert isinstance(record.exc_info[1], RuntimeError)
    assert (record.fields["node"], record.fields["request_id"]) == ("main", "i")


def test_a_result_that_cannot_be_sent_is_logged_where_the_library_logs_the_rest(serving, caplog):
    headrace.register("ServeLogsOdd", lambda _: {"a": object()}, replace=True)
    server = serving({"m": {"backend": "ServeLogsOdd"}})
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [tensor]})
    httpx.post(f"{server.url}/run/m", content=b"bad")
    records = [one for one in caplog.records if one.name == "headrace.serve.requests"]
    assert {one.fields["code"] for one in records} == {"contract"}
    assert all("cannot be written as JSON" in one.getMessage() for one in records)


def failure(message="it broke", node="main", cause=None):
    error = BackendError(message, node=node, backend="B")
    error.__cause__ = cause
    return error


def test_a_kind_of_failure_is_logged_at_first_and_then_once_a_second_with_a_count(caplog):
    clock = FakeClock()
    log = FailureLog(clock)
    with instead_of_library():
        for seconds in (0.0, 0.25, 0.25, 0.25, 0.5, 0.0):
            clock.advance(seconds)
            log.note(failure(), lambda: {"model": "m"})
        log.note(failure(), lambda: {"model": "other"})
        log.note(failure(cause=OSError("x")), lambda: {"model": "m"})
        log.note(InputError("the client's"), lambda: {"model": "m"})
    found = [(r.fields["model"], r.fields["unlogged"]) for r in caplog.records]
    assert found == [("m", 0), ("m", 3), ("other", 0), ("m", 0)]
    assert "3 more like it" in caplog.records[1].getMessage()


def test_what_a_pipeline_advises_is_logged_once_whoever_asks_for_its_figures(
    serving, caplog, monkeypatch
):
    stats, text = headrace.Pipeline.stats, "callers waited for 'main'"

    def advising(pipe):
        told = stats(pipe)
        told["nodes"]["main"]["advice"] = text
        return told

    def logged():
        return [one.getMessage() for one in caplog.records if text in one.getMessage()]

    server = serving({"m": {"backend": "Identity"}, "quiet": {"backend": "Identity"}})
    for path in ("metrics", "v2/models/m/stats"):
        assert httpx.get(f"{server.url}/{path}").status_code == 200
    assert logged() == []
    monkeypatch.setattr(headrace.Pipeline, "stats", advising)
    for path in ("v2/models/m/stats", "v2/models/m/stats", "metrics", "v2/health/live"):
        assert httpx.get(f"{server.url}/{path}").status_code == 200
    told = [f"model '{name}', version 1: {text}" for name in ("m", "quiet")]
    assert logged() == told
    server.close()
    assert logged() == told


def test_what_nobody_has_asked_for_is_advised_at_the_end(serving, caplog, monkeypatch):
    stats = headrace.Pipeline.stats

    def advising(pipe):
        told = stats(pipe)
        told["nodes"]["main"]["advice"] = "callers waited"
        return told

    server = serving({"m": {"backend": "Identity"}})
    monkeypatch.setattr(headrace.Pipeline, "stats", advising)
    server.close()
    told = [one.getMessage() for one in caplog.records if one.name == "headrace.serve"]
    assert told.count("model 'm', version 1: callers waited") == 1


def test_the_library_and_the_server_do_not_both_log_a_failure(caplog):
    library = logging.getLogger("headrace.requests")
    log = FailureLog(FakeClock())
    library.error("of the library")
    log.note(failure(), lambda: {"model": "m"})
    with instead_of_library():
        library.error("of the library")
        log.note(failure(), lambda: {"model": "m"})
    names = [one.name for one in caplog.records]
    assert names == ["headrace.requests", "headrace.serve.requests"]


@pytest.mark.parametrize("sizes", [{"batch_sizes": [4, 8]}, {"min": 4}])
def test_who_operates_the_server_and_not_the_sender_is_told_of_too_little_company(
    serving, caplog, sizes
):
    config = {"backend": "Identity", "max": 8, "batching_timeout": 1, **sizes}
    port = {"datatype": "FP32", "shape": [-1, 2]}
    model = {"config": config, "inputs": {"x": {**port, "batched": True}}, "outputs": {"y": port}}
    server = serving({"m": model}, grpc_port=0)

    def answer(rows):
        x = {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": [0.0] * 2 * rows}
        return httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [x]})

    assert answer(4).status_code == 200
    refused = answer(1)
    assert (refused.status_code, refused.json()["code"]) == (503, "batch_range")
    assert "retry-after" in refused.headers
    assert "weight of 1" in refused.json()["error"]
    assert "batching_timeout" not in refused.json()["error"]
    (record,) = [one for one in caplog.records if one.name == "headrace.serve.requests"]
    assert "batching_timeout" in record.getMessage()
    too_many = answer(9)
    assert (too_many.status_code, too_many.json()["code"]) == (400, "batch_range")
    one = triton.InferInput("x", [1, 2], "FP32")
    one.set_data_from_numpy(np.zeros((1, 2), np.float32))
    with (
        triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
        pytest.raises(triton.InferenceServerException) as caught,
    ):
        client.infer("m", [one])
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


class Whose(headrace.Backend):
    """Return the id of the request."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request.get("request_id", "none")


headrace.register("ServeWhose", Whose)


@pytest.mark.parametrize(
    ("sent", "echoed"), [("r-1", "r-1"), ("x" * 128, "x" * 128), ("x" * 129, None), ("a b", None)]
)
def test_the_id_of_a_header_reaches_the_pipeline_and_goes_back(serving, sent, echoed):
    server = serving({"m": {"backend": "ServeWhose"}})
    answer = httpx.post(f"{server.url}/run/m", content=b"x", headers={"X-Request-Id": sent})
    assert answer.headers.get("x-request-id") == echoed
    assert answer.json() == {"result": echoed or "none"}
    answer = httpx.get(f"{server.url}/nowhere", headers={"X-Request-Id": sent})
    assert (answer.status_code, answer.headers.get("x-request-id")) == (404, echoed)


def test_an_id_of_the_protocol_is_the_requests_and_that_of_the_header_goes_back(serving):
    server = serving({"m": {"backend": "ServeWhose"}}, grpc_port=0)
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    url, headers = f"{server.url}/v2/models/m/infer", {"X-Request-Id": "r-1"}
    for identifier, right in (("own", "own"), ("", "r-1")):
        body = {"inputs": [tensor], **({"id": identifier} if identifier else {})}
        answer = httpx.post(url, json=body, headers=headers)
        assert answer.headers["x-request-id"] == "r-1"
        assert answer.json()["outputs"][0]["data"] == [right]
        assert answer.json().get("id", "") == identifier
    refused = httpx.post(url, json={"inputs": []}, headers=headers)
    assert refused.json()["id"] == "r-1"
    with triton.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        text = triton.InferInput("data", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"x"], object))
        found = client.infer("m", [text], headers={"x-request-id": "g-1"}).as_numpy("result")
        assert found.tolist() == [b"g-1"]


def test_the_id_of_a_call_goes_back_in_its_trailing_metadata(serving):
    server = serving({"m": {"backend": "ServeWhose"}}, grpc_port=0)
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        _, call = ask.with_call(b"", metadata=[("x-request-id", "g-2")])
        assert ("x-request-id", "g-2") in [tuple(one) for one in call.trailing_metadata()]
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            infer(b"", metadata=[("x-request-id", "g-3")])
        assert ("x-request-id", "g-3") in [tuple(one) for one in raised.value.trailing_metadata()]


ENDS = ("\n", "\r\n", "\r", "\n  ", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")
"""All that `str.splitlines` takes for the end of a line, and a terminal for more."""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("kind", ["text", "json"])
def test_no_text_of_an_exception_is_a_line_of_the_log_or_steers_a_terminal(tmp_path, start, kind):
    (tmp_path / "forging.py").write_text(FORGING)
    (tmp_path / "forging.toml").write_text('import = ["forging.py"]\nbackend = "Forging"')
    process, url = start("forging.toml", "--port", "0", "--log-format", kind, cwd=tmp_path)
    text = "".join(f"a{end}{FORGED}" for end in ENDS) + "\x1b[31m\x1b]0;title\x07\x9b2J\u202e"
    assert httpx.post(f"{url}/run/forging", content=text.encode()).status_code == 500
    written = ended(process)
    if kind == "json":  # a line is an object, and has the text as it is
        (found,) = [one for one in map(json.loads, written.splitlines()) if "exception" in one]
        assert text in found["exception"]
        assert text in found["traceback"]
        return
    lines = written.splitlines()
    assert not [one for one in lines if one.strip().startswith(FORGED)]
    assert all(one.isprintable() for one in lines)
    assert sum(FORGED in one for one in lines) == 3  # the record, the exception and its cause
    assert "direct cause of the following exception" in written
    (last,) = [one for one in lines if re.match(r"\S*Chain: ", one)]
    assert last.partition(": ")[2].startswith(f"a\\n{FORGED}a\\r\\n{FORGED}a\\r{FORGED}")


def test_a_group_and_notes_of_exceptions_are_quoted_too(capfd):
    note = f"note\n{FORGED}"
    with printing_logs("text", access=False):
        error = ValueError("one")
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(note)
            error = ExceptionGroup(f"two\n{FORGED}", [error])  # noqa: F821
        logging.getLogger("headrace.serve").error("it\n%s", FORGED, exc_info=error)
        logging.getLogger("headrace.serve").warning("that", exc_info=OSError(f"a\n{FORGED}"))
    lines = capfd.readouterr().err.splitlines()
    assert not [one for one in lines if one.startswith(FORGED)]
    assert "ValueError: one" in "\n".join(lines)
    assert f"warning: that: a\\n{FORGED}" in lines
