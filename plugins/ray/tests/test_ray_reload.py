"""A reload that changes the number of instances keeps the actors of those that stay."""

from __future__ import annotations

import os
import signal

import pytest
from ray_programs import Client, built, until, wait_until_gone

import headrace
from headrace.errors import SetupError


@pytest.fixture
def innocent(keys):
    return {**keys, "backend": "RayActor[RayInnocent]", "max": 4}


def test_more_instances_keep_those_that_are_there_and_their_batch(innocent, notes, let_go, free):
    with headrace.pipe(innocent) as pipe:
        before = built(pipe)
        client = Client(pipe, {"data": "wait"})
        until(lambda: notes() == ["1 wait"])
        reloads = Client(lambda: pipe.reload("main", {"instance_num": 3}, timeout=None))
        until(lambda: pipe.describe()["nodes"]["main"]["instance_num"] == 3)
        let_go()
        assert client.outcome()["result"] == "wait"
        reloads.outcome()
        assert built(pipe) == before
        assert pipe({"data": "later"})["result"] == "later"
    wait_until_gone(before["process"])
    free()
    assert notes() == ["1 wait", "1 later"]


def test_fewer_instances_keep_the_first_ones_and_end_the_others(innocent, free):
    with headrace.pipe({**innocent, "instance_num": 2}) as pipe:
        before = built(pipe)
        pipe.reload("main", {"instance_num": 1}, timeout=None)
        assert built(pipe) == before
        pipe.reload("main", {"instance_num": 2}, timeout=None)
        assert built(pipe) == before
        assert pipe({"data": "later"})["result"] == "later"
    free()


def test_what_is_kept_is_started_again_when_it_dies(innocent, free):
    with headrace.pipe(innocent) as pipe:
        before = built(pipe)["process"]
        pipe.reload("main", {"instance_num": 2}, timeout=None)
        os.kill(before, signal.SIGKILL)
        until(lambda: built(pipe)["process"] != before)
        assert pipe({"data": "later"})["result"] == "later"
    free()


@pytest.mark.parametrize("changes", [{}, {"instance_num": 2, "max": 2}])
def test_any_other_reload_builds_all_anew(innocent, changes, free):
    with headrace.pipe(innocent) as pipe:
        before = built(pipe)["process"]
        pipe.reload("main", changes, timeout=None)
        wait_until_gone(before)
        assert pipe({"data": "later"})["result"] == "later"
    free()


def test_a_reload_without_room_changes_nothing_and_a_later_one_keeps_all(innocent, free):
    config = {**innocent, "num_cpus": 1, "placement_timeout_s": 10}
    with headrace.pipe(config) as pipe:
        before = built(pipe)
        with pytest.raises(SetupError, match="no room"):
            pipe.reload("main", {"instance_num": 40}, timeout=None)
        assert built(pipe) == before
        pipe.reload("main", {"instance_num": 2}, timeout=None)
        assert built(pipe) == before
        assert pipe({"data": "later"})["result"] == "later"
    free()
