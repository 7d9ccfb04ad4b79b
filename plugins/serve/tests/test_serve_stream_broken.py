"""A stream whose requests cannot be read to their end: the call ends with that error, and waits for nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from headrace_serve.grpc.streams import stream_of_inferences
from headrace_serve.ui.load import LoadTest, Replay


def test_an_error_of_reading_ends_the_call():
    async def read():
        raise ConnectionError("the stream is cut")

    async def call():
        service = SimpleNamespace(ending=asyncio.Event(), draining=False, unsent_bytes=0)
        calls = SimpleNamespace(authenticate=lambda *_: None)
        stream = stream_of_inferences(None, calls, service)
        return [one async for one in stream(SimpleNamespace(peer="here", read=read))]

    with pytest.raises(ConnectionError, match="the stream is cut"):
        asyncio.run(asyncio.wait_for(call(), 60))


def test_a_client_of_the_page_counts_what_the_application_raises_and_goes_on():
    calls, load = [], LoadTest(clock=lambda: float(len(calls)))

    async def application(scope, receive, send):
        calls.append(scope["path"])
        if len(calls) == 1:
            raise RuntimeError("no answer at all")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if len(calls) == 3:
            over.set()
        await asyncio.sleep(0)

    async def run():
        load.run(application, Replay("/v2/models/x/infer", b"", [], b""), 1)
        await asyncio.wait_for(over.wait(), 60)
        state = load.state(0)
        await load.end()
        return state

    over = asyncio.Event()
    state = asyncio.run(run())
    assert (state["clients"], state["refused"]) == (1, 500)
    assert sum(one["failed"] for one in state["buckets"]) == 1
