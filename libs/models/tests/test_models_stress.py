"""Many updates under requests, many loads and unloads; what is left of them."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace_models import Models
from headrace_models.leases import Leases


def saying(text):
    return {"backend": f"Says({text})"}


@pytest.mark.slow
def test_no_request_fails_through_two_hundred_updates(says):
    """Eight threads call, submit and await while a version takes the place of the one before it."""
    ended = threading.Event()
    with Models({"detect": saying("v1")}) as models:

        def calls(way):
            seen = []
            while not ended.is_set():
                if way == 0:
                    answer = models.submit("detect", {"data": len(seen)}).result(60)
                elif way == 1:
                    answer = asyncio.run(models.call_async("detect", {"data": len(seen)}))
                else:
                    answer = models("detect", {"data": len(seen)})
                assert answer["data"] == len(seen)
                seen.append(int(answer["result"][1:]))
            return seen

        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(calls, way) for way in range(8)]
            try:
                for n in range(2, 202):
                    assert models.update("detect", saying(f"v{n}")) == str(n)
                    assert models("detect", {"data": 0})["result"] == f"v{n}"
            finally:
                ended.set()
            for one in running:
                seen = one.result(60)
                assert seen == sorted(seen)  # who has seen a version never sees an earlier one
        assert says.living == 1
        assert (
            len(models.status()["detect"]["versions"]) == 17
        )  # the present one and 16 to roll back to


@pytest.mark.slow
def test_two_hundred_loads_and_unloads_leave_nothing(says, tmp_path):
    file = tmp_path / "detect.toml"
    file.write_text('backend = "Says(one)"')

    def rounds(models, number):
        for _ in range(number):
            models.load("detect")
            assert models("detect", {"data": 0})["result"] == "one"
            models.unload("detect")

    with Models({"detect": file}) as models:
        rounds(models, 20)
        gc.collect()
        threads, files = _threads(), _open_files()
        tracemalloc.start()
        try:
            rounds(models, 20)
            says.built.clear()
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            rounds(models, 200)
            assert says.built == ["one"] * 200
            says.built.clear()
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert says.living == 0
        assert _threads() <= threads  # one of a test before may have ended meanwhile
        assert _open_files() == files
        # A pipeline takes tens of kilobytes; caches of the interpreter may take a few.
        assert after - before < 100_000


def _threads():
    """Return the number of threads but the helpers of the process, which end a while after their last job."""
    return sum(not one.name.startswith("headrace-helper") for one in threading.enumerate())


def _open_files():
    listed = Path("/proc/self/fd")
    if not listed.is_dir():
        pytest.skip("the system does not list open files")
    return len(list(listed.iterdir()))


def test_leases_end_only_when_all_are_given_back():
    leases = Leases()
    assert leases.take()
    assert leases.take()
    leases.end()
    assert not leases.take()
    assert not leases.wait(0)
    leases.give_back()
    assert not leases.wait(0)
    leases.give_back()
    assert leases.wait(60)
    assert len(leases) == 0


def test_no_lease_is_given_after_the_wait_for_the_last_one(tmp_path):
    """Threads that take leases run against one that ends them: nobody is inside once the wait is over."""
    for _ in range(200):
        leases, over, begin = Leases(), threading.Event(), threading.Barrier(5)

        def user(leases=leases, over=over, begin=begin):
            begin.wait(60)
            while leases.take():
                inside_after = over.is_set()
                leases.give_back()
                assert not inside_after

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(user) for _ in range(4)]
            begin.wait(60)
            leases.end()
            assert leases.wait(60)
            over.set()
            for one in running:
                one.result(60)
