"""What the tests of several probes share."""

from __future__ import annotations

import asyncio
import threading

import pytest

import headrace


@pytest.fixture
def left_while_it_runs():
    """Cancel a request whose backend runs, and one that waits behind it; then let the backend go on.

    It is a function of the keys of the pipeline besides ``backend``.
    """

    def leave_both(config):
        begun, go_on = threading.Event(), threading.Event()

        class Waiting(headrace.Backend):
            def forward(self, batch):
                begun.set()
                assert go_on.wait(600)
                batch[0]["result"] = 1

        headrace.register("ObserveWaiting", Waiting, replace=True)

        async def leave(pipe):
            running = asyncio.create_task(pipe.call_async({"data": 1}))
            await asyncio.to_thread(begun.wait, 600)
            waiting = asyncio.create_task(pipe.call_async({"data": 2}))
            await asyncio.sleep(0)
            running.cancel()
            waiting.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)

        with headrace.pipe({"backend": "ObserveWaiting", **config}) as pipe:
            asyncio.run(leave(pipe))
            go_on.set()

    return leave_both
