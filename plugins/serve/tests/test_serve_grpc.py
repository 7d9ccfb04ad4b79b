"""gRPC as tritonclient and generic clients see it."""

from __future__ import annotations

import difflib
import queue
import re
import socket
import subprocess
import sys
import threading

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import InputError
from headrace_serve import Limits
from headrace_serve.grpc.messages import message

pytestmark = pytest.mark.first(
    "serve over HTTP and gRPC, with models by name: clients of Triton call it by gRPC"
)

FP32 = {
    "config": {"backend": "S[Identity]", "max": 8},
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 16], "batched": True}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1, 16]}},
}


@pytest.fixture
def client(serving):
    clients = []

    def connect(models, **settings):
        server = serving(models, grpc_port=0, **settings)
        made = triton.InferenceServerClient(f"{server.host}:{server.grpc_port}")
        made.server = server
        clients.append(made)
        return made

    yield connect
    for one in clients:
        one.close()


def tensor(name, array, datatype):
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


IDS = ["plain", "größe.jpg", "two\nlines", "x" * 20_000, "tab\t", ""]


@pytest.mark.parametrize("identifier", IDS)
def test_an_error_keeps_its_status_and_text_whatever_the_id_is(client, identifier):
    def refuse(data):
        raise InputError("the picture is too small")

    headrace.register("GrpcRefuse", refuse, replace=True)
    c = client({"m": {"backend": "GrpcRefuse"}, "echo": {"backend": "Identity"}})
    with pytest.raises(InferenceServerException, match="the picture is too small") as caught:
        c.infer("m", element(b"a"), request_id=identifier)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert c.infer("echo", element(b"a"), request_id=identifier).get_response().id == identifier


def element(*values):
    return [tensor("data", np.array(values, object), "BYTES")]


def test_the_configuration_tells_batches_and_instances_as_triton_does(client):
    scheduled = {"max": 8, "batching_timeout": 2.5, "instance_num": 2, "batch_sizes": [2, 8],
                 "device": "cuda:1", "backend": "Identity", "pad": True}  # fmt: skip
    c = client({"m": {**FP32, "config": scheduled}, "n": {"backend": "Identity"}})
    config = c.get_model_config("m").config
    assert config.version_policy.WhichOneof("policy_choice") == "all"
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 2500
    (group,) = config.instance_group
    assert (group.count, group.kind) == (2, group.KIND_GPU)
    plain = c.get_model_config("n").config
    assert not plain.HasField("dynamic_batching")
    assert plain.instance_group[0].count == 1


class Native(headrace.Backend):
    """Computes without the interpreter lock, and more quickly with more threads."""

    wide = True
    auto_instances = classmethod(lambda cls, options, device, threads: threads)

    def forward(self, batch):
        """Is not called."""


def test_the_configuration_tells_what_auto_gives(client):
    headrace.register("ServeNative", Native, replace=True)
    many = {"backend": "ServeNative", "instance_num": "auto"}
    c = client({"m": {"global": {"threads": 3}, "main": many}})
    assert c.get_model_config("m").config.instance_group[0].count == 4
    assert c.server.threads() == {"m:1": 3}
    shown = httpx.get(f"http://{c.server.host}:{c.server.port}/v2/models/m/config").json()
    said = shown["parameters"]["main.instance_num"]["string_value"]
    assert said == "auto: 3 of one thread, and one of 3 for a request alone"


def status_of(call):
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


def test_each_outcome_has_its_status(client):
    c = client({"m": {"backend": "ServePicky", "max": 4}})
    for name, sent, status, text in [
        ("nope", b"a", "NOT_FOUND", "unknown model: 'nope'"),
        ("m", b"bad", "INVALID_ARGUMENT", "item 0: this is bad"),
        ("m", b"break", "INTERNAL", "code 'backend'"),
    ]:
        got, message_ = status_of(lambda name=name, sent=sent: c.infer(name, element(sent)))
        assert got == f"StatusCode.{status}"
        assert text in message_
        assert "secret" not in message_
    for call, status in [
        (c.get_trace_settings, "UNIMPLEMENTED"),
        (c.get_log_settings, "UNIMPLEMENTED"),
        (lambda: c.load_model("m"), "PERMISSION_DENIED"),
        (lambda: c.infer("m", element(b"a"), sequence_id=4), "INVALID_ARGUMENT"),
    ]:
        assert status_of(call)[0] == f"StatusCode.{status}"


def call(server, method, request, answer, **settings):
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        ask = channel.unary_unary(
            method, type(request).SerializeToString, message(answer).FromString
        )
        return ask(request, **settings)


def infer_request(name, data):
    request = message("inference.ModelInferRequest")(model_name=name)
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    return request


INFER = "/inference.GRPCInferenceService/ModelInfer"


def test_code_and_node_are_in_the_trailing_metadata(client):
    c = client({"m": {"backend": "ServePicky"}})
    with pytest.raises(grpc.RpcError) as caught:
        call(c.server, INFER, infer_request("m", b"bad"), "inference.ModelInferResponse")
    assert dict(caught.value.trailing_metadata()) == {"code": "input", "node": "main"}


def test_overload_says_when_to_come_back(client, gate):
    c = client({"m": {"backend": "ServeGate", "queue_size": 1, "queue_full": "reject"}})
    pipe = c.server._service.models.find("m").pipe
    poll = threading.Event()
    pending = [c.async_infer("m", element(b"1"), callback=lambda result, error: None)]
    assert gate.entered.wait(30)
    pending.append(c.async_infer("m", element(b"2"), callback=lambda result, error: None))
    while pipe.stats()["nodes"]["main"]["waiting"] != 1:
        poll.wait(0.002)
    with pytest.raises(grpc.RpcError) as caught:
        call(c.server, INFER, infer_request("m", b"3"), "inference.ModelInferResponse")
    gate.open.set()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    status = message("google.rpc.Status").FromString(details)
    info = message("google.rpc.RetryInfo").FromString(status.details[0].value)
    assert status.details[0].type_url.endswith("/google.rpc.RetryInfo")
    assert 1 <= info.retry_delay.seconds <= 30


def test_a_call_that_is_cancelled_or_late_leaves_the_queue(client, gate):
    c = client({"m": {"backend": "ServeGate"}})
    pipe = c.server._service.models.find("m").pipe
    poll = threading.Event()

    def until(waiting):
        while pipe.stats()["nodes"]["main"]["waiting"] != waiting:
            poll.wait(0.002)

    done = threading.Event()
    c.async_infer("m", element(b"1"), callback=lambda result, error: done.set())
    assert gate.entered.wait(30)
    second = c.async_infer("m", element(b"2"), callback=lambda result, error: None)
    until(1)
    second.cancel()
    until(0)
    assert status_of(lambda: c.infer("m", element(b"3"), client_timeout=0.05))[0] == (
        "StatusCode.DEADLINE_EXCEEDED"
    )
    until(0)
    gate.open.set()
    assert done.wait(30)
    assert gate.seen == [b"1"]


def test_triton_s_clients_in_cpp_say_whether_they_want_an_empty_final_response(client):
    """They say so in every request; a request has one response here, which is the final one."""
    c = client({"m": {"backend": "Identity"}})
    for wanted in (False, True):
        request = infer_request("m", b"x")
        request.parameters["triton_enable_empty_final_response"].bool_param = wanted
        answer = call(c.server, INFER, request, "inference.ModelInferResponse")
        found = {name: one.bool_param for name, one in answer.parameters.items()}
        assert found == ({"triton_final_response": True} if wanted else {})
    request.parameters["triton_enable_empty_final_response"].int64_param = 1
    with pytest.raises(grpc.RpcError, match="true or false"):
        call(c.server, INFER, request, "inference.ModelInferResponse")


def test_binary_outputs_cannot_be_declined(client):
    c = client({"m": {"backend": "Identity"}})
    request = infer_request("m", b"x")
    request.parameters["binary_data_output"].bool_param = True
    assert call(c.server, INFER, request, "inference.ModelInferResponse").raw_output_contents
    request.parameters["binary_data_output"].bool_param = False
    with pytest.raises(grpc.RpcError, match="binary_data_output"):
        call(c.server, INFER, request, "inference.ModelInferResponse")


@pytest.mark.parametrize(
    ("data", "text", "code"), [(b"half", "a name \\udcff", "input"), (b"code", "x", "gr\\xf6\\n")]
)
def test_an_error_that_cannot_be_sent_as_it_is_is_sent_escaped(client, data, text, code):
    class OddError(InputError):
        code = "grö\n"

    def refuse(given):
        if given != b"fine":
            raise OddError("x") if given == b"code" else InputError("a name \udcff")

    headrace.register("ServeOdd", refuse, replace=True)
    c = client({"m": {"backend": "ServeOdd", "max": 4}})
    told = httpx.post(f"{c.server.url}/run/m", content=data)
    assert told.status_code == 400
    assert told.json()["error"].startswith(text)
    assert told.json()["code"] == code
    several = httpx.post(f"{c.server.url}/run/m", files=[("a", b"fine"), ("b", data)])
    assert [one.get("code") for one in several.json()["outcomes"]] == [None, code]
    with pytest.raises(grpc.RpcError, match=re.escape(f"item 0: {text}")) as caught:
        call(c.server, INFER, infer_request("m", data), "inference.ModelInferResponse")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["code"] == code
    answers = queue.Queue()
    c.start_stream(callback=lambda result, error: answers.put(error))
    for one in (data, b"fine"):
        c.async_stream_infer("m", element(one))
    assert text in str(answers.get(timeout=60))
    assert answers.get(timeout=60) is None


def test_a_name_as_long_as_a_body_is_not_compared(client, monkeypatch):
    compared = []
    whole = difflib.get_close_matches
    near = lambda name, *more, **how: compared.append(len(name)) or whole(name, *more, **how)  # noqa: E731
    monkeypatch.setattr(difflib, "get_close_matches", near)
    c = client({"model": {"backend": "Identity"}})
    for name, told in (("modell", "did you mean 'model'"), ("m" * 100_000, "unknown model: 'mmm")):
        with pytest.raises(grpc.RpcError, match=told):
            call(c.server, INFER, infer_request(name, b"x"), "inference.ModelInferResponse")
    assert {*compared} == {6}
    body = {"inputs": [{"name": "x" * 100_000, "datatype": "BOOL", "shape": [0], "data": []}]}
    refused = httpx.post(f"{c.server.url}/v2/models/model/infer", json=body)
    assert (refused.status_code, len(refused.content) < 11_000) == (400, True)
    assert {*compared} == {6}


def test_connections_have_a_limit(client):
    server = client({"m": {"backend": "Identity"}}, limits=Limits(max_connections=1)).server
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    with socket.create_connection((server.host, server.grpc_port), timeout=60) as first:
        first.sendall(preface)
        assert first.recv(1)
        with socket.create_connection((server.host, server.grpc_port), timeout=60) as second:
            assert second.recv(1) == b""


def test_an_error_in_a_stream_has_code_and_node(client):
    c = client({"m": {"backend": "ServePicky", "max": 4}})
    answered = message("inference.ModelStreamInferResponse").FromString
    asked = [infer_request(name, b"bad").SerializeToString() for name in ("m", "nobody")]
    with grpc.insecure_channel(f"{c.server.host}:{c.server.grpc_port}") as channel:
        ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [answered(one).infer_response for one in ask(iter(asked), timeout=60)]
    found = [{k: one.string_param for k, one in answer.parameters.items()} for answer in answers]
    assert found == [{"code": "input", "node": "main"}, {"code": "unknown_model"}]


def test_health_tells_of_the_server_and_of_each_model(client):
    pipe = headrace.pipe({"backend": "Identity"})
    c = client({"m": pipe, "n": {"backend": "Identity"}})
    check = message("grpc.health.v1.HealthCheckRequest")

    def health(name):
        path, answer = "/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckResponse"
        return call(c.server, path, check(service=name), answer).status

    assert (health(""), health("m"), health("n")) == (1, 1, 1)
    pipe.close()
    assert (health(""), health("m"), health("n")) == (2, 2, 1)
    with pytest.raises(grpc.RpcError) as caught:
        health("nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_gives_services_and_files(client, version):
    from google.protobuf import descriptor_pb2

    c = client({"m": {"backend": "Identity"}})
    package = f"grpc.reflection.{version}"
    asked = message(f"{package}.ServerReflectionRequest")
    with grpc.insecure_channel(f"{c.server.host}:{c.server.grpc_port}") as channel:
        ask = channel.stream_stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            asked.SerializeToString,
            message(f"{package}.ServerReflectionResponse").FromString,
        )
        symbol = "inference.GRPCInferenceService.ModelInfer"
        listed, file, wrong = ask(
            iter(
                [
                    asked(list_services=""),
                    asked(file_containing_symbol=symbol),
                    asked(file_by_filename="x"),
                ]
            )
        )
    assert "inference.GRPCInferenceService" in [
        one.name for one in listed.list_services_response.service
    ]
    (raw,) = file.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(raw).package == "inference"
    assert wrong.error_response.error_code == 5


def test_the_numbers_of_the_messages_are_those_of_tritonclient():
    from tritonclient.grpc import model_config_pb2, service_pb2

    from headrace_serve.grpc.messages import FILES

    def compare(mine, theirs):
        fields = theirs.fields_by_name
        for field in mine.field:
            other = fields[field.name]
            assert (field.number, field.type) == (other.number, other.type), field.name
        for nested in mine.nested_type:
            compare(nested, theirs.nested_types_by_name[nested.name])

    compared = 0
    for one in FILES[0].message_type:
        module = service_pb2 if hasattr(service_pb2, one.name) else model_config_pb2
        compare(one, getattr(module, one.name).DESCRIPTOR)
        compared += 1
    assert compared == len(FILES[0].message_type)
    names = {v.name: v.number for v in FILES[0].enum_type[0].value}
    assert names == dict(model_config_pb2.DataType.items())


@pytest.mark.parametrize("first", ["headrace_serve.grpc.messages", "tritonclient.grpc"])
def test_the_messages_live_beside_those_of_other_packages(first):
    second = {"tritonclient.grpc"} ^ {"headrace_serve.grpc.messages"} ^ {first}
    code = f"import {first}, {second.pop()}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("size", [2000, 3_000_000])
def test_messages_beyond_the_limit_are_refused_with_a_code(client, size):
    c = client({"m": {"backend": "Identity"}}, limits=Limits(max_body_bytes=1000))
    for name in ("ModelInfer", "ModelReady"):
        with (
            grpc.insecure_channel(f"127.0.0.1:{c.server.grpc_port}") as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(bytes(size))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(caught.value.trailing_metadata())["code"] == "body_too_large"


def test_what_grpc_does_not_receive_is_refused_too(client):
    c = client({"m": {"backend": "Identity"}}, limits=Limits(max_body_bytes=1000))
    status = status_of(lambda: c.infer("m", element(bytes(5_000_000))))
    assert status[0] == "StatusCode.RESOURCE_EXHAUSTED"


def test_a_large_message_is_read_like_a_small_one_or_refused():
    from google.protobuf.message import DecodeError

    from headrace_serve.grpc.tensors import read_message

    request = message("inference.ModelInferRequest")(model_name="m", id="i")
    for size in (0, 1, 100_000, 127, 128):
        request.inputs.add(name="x", datatype="UINT8", shape=[size])
        request.raw_input_contents.append(bytes(size))
    data = request.SerializeToString()
    received = read_message(data)
    assert [bytes(one) for one in received.raw] == list(request.raw_input_contents)
    assert all(isinstance(one, memoryview) for one in received.raw)
    whole = type(request).FromString(data)
    whole.ClearField("raw_input_contents")
    assert received.message == whole
    unknown = data + bytes([15 << 3 | 0, 5])  # a field of another number and kind
    assert [bytes(one) for one in read_message(unknown).raw] == list(request.raw_input_contents)
    for wrong in (data[:-1], data + b"\x3a\xff\xff\xff\xff\xff\xff", data + b"\x3a\x05ab"):
        with pytest.raises(DecodeError):
            read_message(wrong)


def test_a_long_text_of_an_error_leaves_room_for_its_status(client):
    def refuse(data):
        raise headrace.errors.InputError("\u00e9 " * 100_000)

    headrace.register("ServeLongText", refuse, replace=True)
    c = client({"m": {"backend": "ServeLongText"}})
    with pytest.raises(InferenceServerException, match=r"\.\.\.$") as caught:
        c.infer("m", element(b"a"))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "\u00e9 \u00e9" in caught.value.message()


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("inference.GRPCInferenceService/ModelInfer", "unary_unary"),
        ("inference.GRPCInferenceService/ServerMetadata", "unary_unary"),
        ("grpc.health.v1.Health/Check", "unary_unary"),
        ("grpc.health.v1.Health/Watch", "unary_stream"),
        ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "stream_stream"),
    ],
)
def test_a_message_that_cannot_be_read_is_an_error_of_the_client(client, method, kind):
    server = client({"m": {"backend": "Identity"}}).server
    wrong = b"\xff\xff"
    with grpc.insecure_channel(f"{server.host}:{server.grpc_port}") as channel:
        call = getattr(channel, kind)(f"/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([wrong]) if kind == "stream_stream" else wrong, timeout=60))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ("code", "input") in [tuple(one) for one in caught.value.trailing_metadata()]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("x-share-key", "k" * 60_000, "OK"),  # gRPC itself refuses some calls from 8 KiB on
        ("x-share-key", "k" * 70_000, "RESOURCE_EXHAUSTED"),
        ("x-request-id", "k" * 9_000, "OK"),
        ("traceparent", "t" * 9_000, "OK"),
        ("x-any-bin", bytes(range(256)), "OK"),
    ],
)
def test_metadata_may_have_as_many_bytes_as_the_headers_of_http(serving, name, value, code):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        for _ in range(5):
            try:
                ready(b"", metadata=((name, value),), timeout=60)
                found = "OK"
            except grpc.RpcError as error:
                found = error.code().name
            assert found == code
