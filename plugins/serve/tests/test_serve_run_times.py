"""Queue and run apart, in the line that is logged of a request."""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

from headrace.errors import DeadlineExceededError
from headrace_serve import service
from headrace_serve.models.catalogue import Catalogue
from headrace_serve.monitoring.access_log import AccessLine
from headrace_serve.monitoring.counters import Counts
from headrace_serve.monitoring.run_times import RunTimes, TimedContext


@pytest.mark.parametrize(
    ("runs", "queue", "run"),
    [
        ([(10.0, 12.0, 15.0)], 2.0, 3.0),
        ([(10.0, 12.0, 15.0), (15.0, 19.0, 20.0)], 6.0, 4.0),  # one node after the other
        ([(10.0, 12.0, 15.0), (10.0, 13.0, 14.0)], 2.0, 3.0),  # one item runs beside the other
        ([(10.0, 13.0, 16.0), (11.0, 11.0, 14.0)], 1.0, 5.0),  # they overlap, and come in any order
    ],
)
def test_what_waits_and_what_runs_is_counted_once(runs, queue, run):
    times = RunTimes()
    for one in runs:
        times.add(*one)
    assert times.queue_and_run_s() == (queue, run)


def test_who_never_ran_has_no_times():
    assert RunTimes().queue_and_run_s() is None


def test_the_context_that_takes_times_is_a_plain_dict_in_another_process():
    there = pickle.loads(pickle.dumps(TimedContext({"a": 1}, RunTimes())))
    assert (type(there), there) == (dict, {"a": 1})


def parts_of(line):
    return {name: float(value) for name, value in re.findall(r"(\w+)_ms=([0-9.]+)", line)}


@pytest.fixture
def logged(caplog):
    """Return the lines that were logged; the logger is on before a server is made."""
    caplog.set_level(logging.INFO, "headrace.serve.access")
    return lambda: [
        one.getMessage() for one in caplog.records if one.name == "headrace.serve.access"
    ]


def test_a_request_that_waited_and_one_that_ran_are_told_apart(serving, gate, logged):
    server = serving({"m": {"backend": "ServeGate"}})
    pipe = server._service.models.find("m").pipe
    url = f"{server.url}/run/m"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(httpx.post, url, content=b"first")
        assert gate.entered.wait(30)
        second = pool.submit(httpx.post, url, content=b"the second")
        while pipe.stats()["nodes"]["main"]["waiting"] != 1:
            pass
        began = time.monotonic()
        while (held_ms := 1e3 * (time.monotonic() - began)) < 2:
            pass
        gate.open.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    server.close()
    by_size = {int(re.search(r"received_bytes=(\d+)", one)[1]): parts_of(one) for one in logged()}
    ran, waited = by_size[5], by_size[10]
    assert ran["run"] >= held_ms
    assert waited["queue"] >= held_ms


def test_the_times_of_a_graph_with_items_are_of_all_nodes(serving, logged, tmp_path):
    (tmp_path / "base.toml").write_text(
        'probes = []\n[a]\nbackend = "Identity"\nnext = "b"\n[b]\nbackend = "ServePicky"\n'
    )
    (tmp_path / "m.toml").write_text('extends = "base.toml"\n[b]\nmax = 4\n')
    server = serving({"m": tmp_path / "m.toml"})
    body = {
        "inputs": [{"name": "data", "shape": [3], "datatype": "BYTES", "data": ["a", "b", "c"]}]
    }
    assert httpx.post(f"{server.url}/v2/models/m/infer", json=body).status_code == 200
    files = [("files", (f"{i}", b"context")) for i in range(2)]
    found = httpx.post(f"{server.url}/run/m", files=files, headers={"traceparent": "00-a-b-01"})
    assert found.json()["outcomes"][0]["result"] == {"traceparent": "00-a-b-01"}
    server.close()
    for line in logged():
        assert list(parts_of(line)) == ["receive", "queue", "run", "send"]
        assert parts_of(line)["run"] > 0


def test_a_request_that_is_given_up_while_it_runs_counts_as_run(monkeypatch, logged):
    error = DeadlineExceededError("late")
    error.abandoned = True

    async def late(model, asked, **settings):
        raise error

    monkeypatch.setattr(service, "infer", late)
    model = SimpleNamespace(timed=True, limits={}, pipe=None, counts=Counts())
    line = AccessLine("POST /run/{model}", 0.0)
    front = service.Service(Catalogue([]))
    with pytest.raises(DeadlineExceededError):
        asyncio.run(front.infer(model, SimpleNamespace(times=None, request=None), line))
    line.log()
    assert parts_of(logged()[-1])["queue"] == 0
