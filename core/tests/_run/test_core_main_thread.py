"""What the main thread runs itself, so that Ctrl-C ends it, and what it counts without the lock."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from threading import get_ident
from typing import ClassVar

import pytest
from processes import run_process

import headrace
from headrace.errors import InputError

LATE_S = 60.0


class Told:
    """Does what ``data`` says; remembers which thread ran which batch."""

    ran: ClassVar[list] = []

    def forward(self, batch):
        self.ran.append((get_ident(), [request["data"] for request in batch]))
        outcomes = [None] * len(batch)
        for index, request in enumerate(batch):
            data = request["data"]
            if data == "interrupt":
                signal.raise_signal(signal.SIGINT)
            elif data == "backend":
                outcomes[index] = ValueError(data)
            elif data == "input":
                outcomes[index] = InputError(data)
            elif data == "contract":
                return "nonsense"
            elif data != "no_result":
                request["result"] = data
        return outcomes


@pytest.fixture(autouse=True)
def _told():
    Told.ran.clear()
    headrace.register("Told", Told, replace=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    yield
    signal.signal(signal.SIGINT, before)


NODES = {
    "max": {"max": 4},
    "two instances": {"max": 4, "instance_num": 2, "batching_timeout": 50},
    "sizes": {"batch_sizes": [1, 2, 4]},
    "padded": {"min": 3, "max": 4, "pad": True},
}


@pytest.mark.usefixtures("takes_turns")
@pytest.mark.parametrize("name", ["max", "two instances"])
def test_the_main_thread_runs_its_own_request_and_a_helper_its_list(name):
    with headrace.pipe({"backend": "Told", **NODES[name]}) as pipe:
        pipe({"data": "c"})
        assert pipe([{"data": "a"}, {"data": "b"}]) == [
            {"data": "a", "result": "a"},
            {"data": "b", "result": "b"},
        ]
        assert [(ident == get_ident(), data) for ident, data in Told.ran] == [
            (True, ["c"]),
            (False, ["a", "b"]),
        ]
        node = pipe.stats()["nodes"]["main"]
        assert (node["submitted"], node["ok"], node["batches"]) == (3, 3, 2)
        assert node["batch_size"]["histogram"] == {"1": 1, "2": 1}


@pytest.mark.usefixtures("takes_turns")
@pytest.mark.parametrize("name", ["max", "two instances"])
def test_ctrl_c_ends_what_the_main_thread_runs_and_gives_the_dict_back(name):
    with headrace.pipe({"backend": "Told", **NODES[name]}) as pipe:
        request = {"data": "interrupt"}
        with pytest.raises(KeyboardInterrupt) as raised:
            pipe(request)
        assert raised.value.abandoned is False
        assert request == {"data": "interrupt"}
        node = pipe.stats()["nodes"]["main"]
        assert not any(instance["busy"] for instance in node["instances"])
        assert (node["submitted"], node["failed"]) == (1, {"interrupt": 1})
        assert pipe([{"data": "b"}])[0]["result"] == "b"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends POSIX signals")
@pytest.mark.parametrize("name", NODES)
def test_ctrl_c_leaves_a_batch_that_a_helper_runs_to_its_end(name, until):
    """The caller is free at once, and told that a backend goes on with its requests."""
    hit, freed = threading.Event(), threading.Event()

    def interrupt(*_):
        if not hit.is_set():
            hit.set()
            raise KeyboardInterrupt

    class Stays(Told):
        def forward(self, batch):
            while batch[0]["data"] == "mine" and not hit.is_set():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                hit.wait(0.05)  # CPython does not see a signal that comes just before a sleep
            assert batch[0]["data"] != "mine" or freed.wait(LATE_S)
            return super().forward(batch)

    headrace.register("Stays", Stays, replace=True)
    signal.signal(signal.SIGINT, interrupt)
    with headrace.pipe({"backend": "Stays", **NODES[name]}) as pipe:
        with pytest.raises(KeyboardInterrupt) as raised:
            pipe([{"data": "mine"}, {"data": "mine"}])
        freed.set()
        assert raised.value.abandoned is True
        until(lambda: not any(i["busy"] for i in pipe.stats()["nodes"]["main"]["instances"]))
        node = pipe.stats()["nodes"]["main"]
        assert node["submitted"] == node["ok"] + sum(node["failed"].values()) == 2
        assert pipe([{"data": "b"}])[0]["result"] == "b"


def test_a_batch_with_requests_of_others_is_not_run_by_the_main_thread(gate, client, waiting):
    with headrace.pipe({"backend": "Gate", "max": 4}) as pipe:
        first, theirs = (
            gate.entered(pipe.submit({"data": "first"})),
            pipe.submit({"data": "theirs"}),
        )
        opening = client(lambda: (waiting(pipe, 3), gate.open()))
        pipe([{"data": "mine"}, {"data": "mine, too"}])
        opening.outcome()
        assert [one.result(LATE_S)["result"] for one in (first, theirs)] == ["first", "theirs"]
        assert gate.batches == [["first"], ["theirs", "mine", "mine, too"]]
        assert get_ident() not in gate.idents


def test_a_batch_that_the_list_fills_up_is_not_run_by_the_main_thread(gate, client):
    """It weighs as much as the list, but half of it belongs to others."""
    node = {"backend": "Gate", "instance_num": 2, "max": 4, "batching_timeout": 1000 * LATE_S}
    with headrace.pipe(node) as pipe:
        futures = [gate.entered(pipe.submit({"data": "first"}))]
        futures += pipe.submit([{"data": 1}, {"data": 2}])  # they wait for company
        opening = client(lambda: (gate.wait_entered(), gate.open()))
        mine = pipe([{"data": 3}, {"data": 4}, {"data": 5}, {"data": 6}])
        opening.outcome()
        assert [request["result"] for request in mine] == [3, 4, 5, 6]
        assert [future.result(LATE_S)["result"] for future in futures] == ["first", 1, 2]
        assert gate.batches == [["first"], [1, 2, 3, 4], [5, 6]]
        assert get_ident() not in gate.idents


# Coroutines of the main thread: a helper thread lets their requests in, and the event loop goes on.


@pytest.mark.parametrize("way", ["stats", "call", "submit"])
def test_what_a_coroutine_has_asked_for_comes_before_what_its_thread_asks_for_next(way):
    async def main(pipe, number):
        first = asyncio.ensure_future(pipe.call_async({"data": (1, number)}))
        await asyncio.sleep(0)
        if way == "stats":
            assert pipe.stats()["nodes"]["main"]["submitted"] == number + 1
        elif way == "call":
            pipe({"data": (2, number)})
        else:
            pipe.submit({"data": (2, number)}).result(LATE_S)
        assert (await first)["result"] == (1, number)

    with headrace.pipe({"backend": "BackgroundThread[Told]"}) as pipe:
        for number in range(20):  # the helper thread may be quick, or not
            asyncio.run(main(pipe, number))
    parts = (1,) if way == "stats" else (1, 2)
    order = [data for _, batch in Told.ran for data in batch]
    assert order == [(part, number) for number in range(20) for part in parts]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_coroutine_that_is_cancelled_at_once_withdraws_its_request(gate, client, nodes):
    """The helper thread may have let the request in, or not."""

    async def main(pipe):
        task = asyncio.ensure_future(pipe.call_async(request))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        # Before 3.11, who awaits the task gets another error around that of the coroutine.
        return raised.value if sys.version_info >= (3, 11) else raised.value.__context__

    request, node = {"data": 1}, {"backend": "BackgroundThread[Gate]"}
    config = node if nodes == 1 else {"main": {**node, "next": "other"}, "other": node}
    with headrace.pipe(config) as pipe:
        running = gate.entered(client(pipe, {"data": "first"}))
        for _ in range(20):
            assert asyncio.run(main(pipe)).abandoned is False
            assert request == {"data": 1}
        gate.open()
        running.outcome()
        assert pipe({"data": 2})["result"] == 2
        stats = pipe.stats()["nodes"]["main"]
        assert (stats["ok"], stats["failed"]) == (2, {"cancelled": 20})
    assert request == {"data": 1}
    assert gate.batches == [["first"]] * nodes + [[2]] * nodes


WITHOUT_THREADS = """
import _thread
import asyncio
import threading

start = _thread.start_new_thread

def refuse(*args, **_):
    raise RuntimeError("can't start new thread")

_thread.start_new_thread = refuse
for name in ("_start_new_thread", "_start_joinable_thread"):
    if hasattr(threading, name):
        setattr(threading, name, refuse)

import headrace
from headrace.errors import BackendError, SetupError

async def ask():
    await pipe.call_async({"data": 1})

pipe = headrace.pipe({"backend": "Identity"})
try:
    asyncio.run(ask())
except BackendError as error:
    print(error)
try:
    headrace.pipe({"backend": "BackgroundThread[Identity]"})
except SetupError as error:
    print(error)
for ask in (lambda: pipe({"data": 1}, timeout=60), lambda: pipe.submit({"data": 1}).result()):
    try:
        ask()
    except BackendError as error:
        print(error)
_thread.start_new_thread = start
print(pipe({"data": 1}, timeout=60))
"""


def test_where_no_thread_can_be_started_nothing_waits_for_one():
    done = run_process([sys.executable, "-c", WITHOUT_THREADS], timeout=LATE_S)
    why = "can't start new thread [node 'main'"
    not_run = f"no thread could be started to run the batch: {why}]"
    not_built = f"no thread could be started for it: {why}, backend 'BackgroundThread', instance 0]"
    answered = "{'data': 1, 'result': 1}"
    assert done.stdout.splitlines() == [not_run, not_built, not_run, not_run, answered]
    assert done.stderr == ""
