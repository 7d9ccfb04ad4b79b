"""Who watches health, and calls of gRPC that do not arrive."""

from __future__ import annotations

import threading

import grpc
import pytest

import headrace
from headrace_serve import Limits
from headrace_serve.grpc.messages import message

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def channel():
    made = []

    def connect(server):
        made.append(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def watch(channel, name):
    asked = message("grpc.health.v1.HealthCheckRequest")
    answered = message("grpc.health.v1.HealthCheckResponse")
    ask = channel.unary_stream(
        "/grpc.health.v1.Health/Watch", asked.SerializeToString, answered.FromString
    )
    return ask(asked(service=name), timeout=60)


def test_who_watches_is_told_of_every_change(serving, channel):
    pipe = headrace.pipe({"backend": "Identity"})
    server = serving({"m": pipe, "n": {"backend": "Identity"}}, grpc_port=0)
    opened = channel(server)
    seen = {name: watch(opened, name) for name in ("", "m", "n", "nope")}
    first = {name: next(answers).status for name, answers in seen.items()}
    assert first == {"": SERVING, "m": SERVING, "n": SERVING, "nope": SERVICE_UNKNOWN}
    pipe.close()
    assert next(seen["m"]).status == NOT_SERVING
    assert next(seen[""]).status == NOT_SERVING
    server.close()
    assert next(seen["n"]).status == NOT_SERVING


def test_a_server_that_drains_says_so_to_who_watches(serving, channel):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    opened = channel(server)
    seen = [watch(opened, name) for name in ("", "m")]
    assert [next(answers).status for answers in seen] == [SERVING, SERVING]
    server.drain()
    assert [next(answers).status for answers in seen] == [NOT_SERVING, NOT_SERVING]


def test_calls_whose_messages_do_not_come_are_answered(serving, channel):
    limits = Limits(receive_timeout_s=0.05)
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0, limits=limits)
    ask = channel(server).stream_unary("/inference.GRPCInferenceService/ModelInfer")
    never = threading.Event()

    def messages():
        never.wait(60)
        yield b""

    # Two at a time, one that ends before its time is over, and a further one after all have ended.
    # The time is that of a handshake, too: on a busy machine the channel may have to try again.
    late = [ask.future(messages(), timeout=60, wait_for_ready=True) for _ in range(2)]
    live = channel(server).unary_unary("/inference.GRPCInferenceService/ServerLive")
    assert live(b"", wait_for_ready=True)
    for call in late:
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    late.append(ask.future(messages(), timeout=60, wait_for_ready=True))
    for call in late:
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert dict(call.trailing_metadata())["code"] == "receive_timeout"
    never.set()


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x0a\x05ab"])
def test_a_message_that_is_none_is_the_mistake_of_the_client(serving, channel, data):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    opened = channel(server)
    for name in ("ModelInfer", "ModelMetadata"):
        ask = opened.unary_unary(f"/inference.GRPCInferenceService/{name}")
        with pytest.raises(grpc.RpcError) as caught:
            ask(data)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
