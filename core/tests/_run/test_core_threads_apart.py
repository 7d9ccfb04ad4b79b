"""`headrace.plugins.threads_apart`: pipelines of a block share no thread with others, and end with it."""

from __future__ import annotations

import threading
import time

import pytest

import headrace
from headrace.errors import ClosedError


def threads_of(pipe):
    return {future.result()["result"] for future in pipe.submit([{"data": n} for n in range(4)])}


@pytest.fixture
def config():
    headrace.register("Thread", lambda data: threading.get_ident(), replace=True)
    return {"backend": "Thread", "instance_num": 2}


def test_pipelines_of_a_block_share_no_thread_with_others(config):
    with headrace.pipe(config) as before:
        own = threads_of(before)
        with headrace.plugins.threads_apart(time.monotonic):
            with headrace.pipe(config) as apart:
                others = threads_of(apart)
            own |= threads_of(before)
        with headrace.pipe(config) as after:
            assert not others & (own | threads_of(before) | threads_of(after))


def test_the_clock_of_a_block_is_that_of_its_pipelines(config):
    ahead_s = 1e6
    records = []

    class Probe:
        def batch_ran(self, record):
            records.append(record)

    apart = headrace.plugins.threads_apart(lambda: time.monotonic() + ahead_s)
    with apart, headrace.pipe(config) as pipe, headrace.hookspecs.attached(pipe, Probe()):
        pipe({"data": 1})
    (record,) = records
    assert ahead_s < record.started <= record.ended


def test_the_end_of_a_block_closes_what_is_open(config):
    with headrace.plugins.threads_apart(time.monotonic):
        pipe = headrace.pipe(config)
    assert pipe.stats()["state"] == "closed"
    pipe.close()
    with pytest.raises(ClosedError):
        pipe({"data": 1})
