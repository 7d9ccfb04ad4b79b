"""The frames of threads are read without a garbage collection in between, in which an interpreter may wait for ever."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from headrace_testing.conformance.frames import current_frames


@pytest.fixture
def collected():
    """Collect as often as the interpreter can. Return a list that gets a name for each collection inside of `_current_frames`."""
    found, inside = [], []

    def note(_frame, event, called):
        if getattr(called, "__name__", "") == "_current_frames":
            inside[:] = ["it"] if event == "c_call" else []

    def hear(phase, _about):
        if phase == "start":
            found.extend(inside)

    thresholds = gc.get_threshold()
    gc.callbacks.append(hear)
    gc.set_threshold(1, 1, 1)
    sys.setprofile(note)
    yield found
    sys.setprofile(None)
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(hear)


def test_nothing_is_collected_while_frames_are_read(collected):
    go, threads = threading.Event(), []
    for _ in range(20):
        threads.append(threading.Thread(target=go.wait))
        threads[-1].start()
    found = current_frames()
    go.set()
    for one in threads:
        one.join()
    assert {one.ident for one in threads} <= found.keys()
    assert found[threading.get_ident()].f_code.co_name == "current_frames"
    assert gc.isenabled()
    assert collected == []


def test_a_process_that_collects_nothing_stays_so():
    gc.disable()
    try:
        current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
