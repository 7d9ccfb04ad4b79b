"""What requests change in all worker processes: the order of it, and real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from types import SimpleNamespace

import httpx
import pytest
import tritonclient.grpc as triton

from headrace_serve.errors import RelayedError, UnavailableError
from headrace_serve.operating.shared_changes import SharedChanges
from headrace_serve.operating.worker_changes import WorkerChanges

REFUSED = {"status": 400, "code": "input"}


def unload(name):
    return {"what": "unload", "name": name, "parameters": {}}


class Sent(list):
    """Takes what is sent, and gives it back once."""

    def __call__(self, number, message):
        self.append((number, message))

    def taken(self):
        found = list(self)
        self.clear()
        return found


@pytest.fixture
def sent():
    return Sent()


@pytest.fixture
def changes(sent):
    made = SharedChanges(sent)
    for number in (1, 2):
        made.received(number, {"join": True})
    assert sent.taken() == [(1, {"before": []}), (2, {"before": []})]
    return made


def test_one_change_after_the_other_in_every_process(changes, sent):
    first, second = unload("a"), unload("b")
    changes.received(1, {"ask": 7, "change": first})
    changes.received(2, {"ask": 7, "change": second})
    assert sent.taken() == [(1, {"change": first}), (2, {"change": first})]
    changes.received(2, {"made": None})
    assert sent.taken() == []
    changes.received(1, {"made": None})
    answer = {"answer": 7, "refusal": None}
    assert sent.taken() == [(1, answer), (1, {"change": second}), (2, {"change": second})]
    changes.received(1, {"made": REFUSED})
    changes.received(2, {"made": REFUSED})
    assert sent.taken() == [(2, {"answer": 7, "refusal": REFUSED})]


def test_a_change_that_one_process_cannot_make_is_refused_and_not_told_later(changes, sent):
    changes.received(1, {"ask": 1, "change": unload("a")})
    changes.received(1, {"made": None})
    sent.clear()
    changes.received(2, {"made": REFUSED})
    assert sent.taken() == [(1, {"answer": 1, "refusal": REFUSED})]
    changes.received(3, {"join": True})
    assert sent.taken() == [(3, {"before": []})]


def test_who_ends_is_not_waited_for_and_gets_no_answer(changes, sent):
    changes.received(2, {"ask": 1, "change": unload("a")})
    changes.received(1, {"made": None})
    sent.clear()
    changes.left(2)
    assert sent.taken() == []
    changes.received(2, {"join": True})
    assert sent.taken() == [(2, {"before": [unload("a")]})]


def test_who_joins_meanwhile_makes_the_change_too_and_is_waited_for(changes, sent):
    changes.received(1, {"ask": 1, "change": unload("a")})
    sent.clear()
    changes.received(3, {"join": True})
    assert sent.taken() == [(3, {"before": []}), (3, {"change": unload("a")})]
    changes.received(1, {"made": None})
    changes.received(2, {"made": None})
    assert sent.taken() == []
    changes.received(3, {"made": None})
    assert sent.taken() == [(1, {"answer": 1, "refusal": None})]


@pytest.mark.parametrize(
    ("done", "left"),
    [
        (["unload m", "unload n"], ["m", "n"]),
        (["unload m", "exchange n"], ["m"]),
        (["unload m", "unload n", "load m"], ["n"]),
        (["unload m", "reload"], []),
    ],
)
def test_what_a_process_that_starts_later_is_told(changes, sent, done, left):
    for one in done:
        what, _, name = one.partition(" ")
        if what == "reload":
            changes.reloaded()
            continue
        changes.received(1, {"ask": 1, "change": {"what": what, "name": name}})
        for number in (1, 2):
            changes.received(number, {"made": None})
    sent.clear()
    changes.received(3, {"join": True})
    assert [change["name"] for change in sent[0][1]["before"]] == left


@pytest.mark.parametrize("when", ["before", "joining", "asking"])
def test_nothing_is_waited_for_where_the_supervisor_has_ended(when):
    """Else a process that starts, or one that drains, would wait for its answer for ever."""
    worker_changes = WorkerChanges(lambda message: sent.append(message))
    sent = []

    async def main():
        if when == "before":
            worker_changes.end()
        joining = asyncio.create_task(worker_changes.join(SimpleNamespace()))
        await asyncio.sleep(0)
        if when == "asking":
            worker_changes.take({"before": []})
            await joining
            asking = asyncio.create_task(worker_changes.ask(unload("a")))
            await asyncio.sleep(0)
            worker_changes.end()
            return await asking
        worker_changes.end()
        return await joining

    with pytest.raises((UnavailableError, RelayedError), match="shutting down"):
        asyncio.run(main())


PID = """
import os
import headrace

class Pid(headrace.Backend):
    max = None

    def forward(self, batch):
        for request in batch:
            request["result"] = str(os.getpid())

headrace.register("ServePid", Pid)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux")
def test_all_workers_have_the_models_that_requests_ask_for(tmp_path, start):
    (tmp_path / "pid.py").write_text(PID)
    (tmp_path / "m.toml").write_text('import = ["pid.py"]\nbackend = "ServePid"\n')
    ports = ("--port", "0", "--grpc-port", "0", "--allow", "repository")
    process, url = start("m.toml", "--workers", "2", *ports, cwd=tmp_path)
    grpc_url = process.first_line.rpartition("/")[2].strip()
    body = {"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}

    def asked():
        while True:
            with contextlib.suppress(httpx.TransportError):  # its process was killed
                return httpx.post(f"{url}/v2/models/m/infer", json=body)

    def pids():
        """Ask on fresh connections until both processes have answered."""
        found = set()
        while len(found) < 2:
            answer = asked()
            assert answer.status_code == 200, answer.text
            found.update(answer.json()["outputs"][0]["data"])
        return found

    first = pids()
    with triton.InferenceServerClient(grpc_url) as client:
        client.unload_model("m")
        assert {asked().status_code for _ in range(20)} == {503}
        os.kill(int(min(first)), signal.SIGKILL)
        while "started again" not in process.stderr.readline():
            pass
        assert {asked().status_code for _ in range(20)} == {503}
        client.load_model("m")
        with pytest.raises(triton.InferenceServerException, match="is not found"):
            client.load_model("other")
    assert min(first) not in pids()
    process.terminate()
    assert process.wait(300) == 0
