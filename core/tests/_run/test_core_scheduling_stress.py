"""Many threads, random failures, cancels, deadlines and lists: every request has one outcome."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import sys
import threading

import pytest

import headrace
from headrace.errors import HeadraceError, RequestsFailed

pytestmark = [pytest.mark.stress, pytest.mark.usefixtures("shortcut")]

CLIENTS = 40
ROUNDS = 25


class Moody(headrace.Backend):
    max = None
    rerun = True

    def forward(self, batch):
        for request in batch:
            if request["data"] % 7 == 0:
                raise ValueError("a seventh")
            request["result"] = request["data"]


@pytest.fixture(params=[1e-5, 5e-3], ids=["switch 10 us", "switch 5 ms"])
def switching(request):
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


class Tally:
    """Counts outcomes of requests; a request with two, or none, is caught here."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ok = self.failed = 0
        self.wrong = []

    def take(self, request, error):
        with self.lock:
            if error is None:
                self.ok += 1
                if request.get("result") != request["data"]:
                    self.wrong.append((request, error))
            else:
                self.failed += 1
                free = not getattr(error, "abandoned", False)
                known = isinstance(error, (HeadraceError, concurrent.futures.CancelledError))
                if not known or (free and "result" in request):
                    self.wrong.append((request, error))


def one_round(pipe, dice, tally):
    way = dice.choice(["call", "call", "timeout", "list", "submit", "cancel", "async"])
    options = {"priority": dice.choice([0, 0, 1])}
    if way == "timeout" or dice.random() < 0.2:
        options["timeout"] = dice.choice([0, 0.001, 20])
    requests = [{"data": dice.randrange(1, 1000)} for _ in range(dice.randrange(1, 9))]
    if way in ("list", "async"):
        try:
            if way == "list":
                pipe(requests, **options)
            else:
                asyncio.run(pipe.call_async(requests, **options))
            errors = [None] * len(requests)
        except RequestsFailed as failed:
            errors = failed.errors
        for request, error in zip(requests, errors, strict=True):
            tally.take(request, error)
    elif way in ("submit", "cancel"):
        futures = pipe.submit(requests, **options)
        if way == "cancel":
            for future in futures:
                future.cancel()
        for request, future in zip(requests, futures, strict=True):
            try:
                future.result(timeout=90)
                tally.take(request, None)
            except (Exception, concurrent.futures.CancelledError) as error:
                tally.take(request, error)
    else:
        try:
            pipe(requests[0], **options)
            tally.take(requests[0], None)
        except HeadraceError as error:
            tally.take(requests[0], error)


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "Moody"},
        {"backend": "Moody", "instance_num": 3, "max": 4, "batching_timeout": 1},
        {"backend": "BackgroundThread[Moody]", "instance_num": 2, "max": 4},
        {"backend": "Moody", "max": 8, "queue_size": 5, "queue_full": "reject"},
        {"backend": "Moody", "instance_num": 2, "max": 2, "queue_size": 3},
        {"backend": "Moody", "timeout_ms": 5, "queue_size": 4, "queue_full": "reject"},
    ],
)
def test_every_request_has_one_outcome_whatever_happens(config, switching):
    headrace.register("Moody", Moody, replace=True)
    tally, errors = Tally(), []
    pipe = headrace.pipe(config)

    def client(seed):
        dice = random.Random(seed)
        try:
            for _ in range(ROUNDS):
                one_round(pipe, dice, tally)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=client, args=(seed,), daemon=True) for seed in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive(), "a caller got no answer"
    assert errors == []
    assert tally.wrong == []
    pipe.close()
    counts = pipe.stats()["nodes"]["main"]
    assert counts["waiting"] == 0
    assert counts["submitted"] == tally.ok + tally.failed
    assert counts["ok"] == tally.ok
    assert sum(counts["failed"].values()) == tally.failed
    assert not any(i["busy"] for i in counts["instances"])
