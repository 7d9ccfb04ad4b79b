"""Actors, raylets and nodes that die or freeze while requests run: each has one outcome."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
import ray
from ray_programs import FAILS_LATE_S, Client, built, parent_of, until, wait_until_gone

import headrace
from headrace.errors import InstanceLostError


def alive(node):
    return any(one["NodeID"] == node and one["Alive"] for one in ray.nodes())


def test_an_actor_that_is_killed_loses_its_batch_alone(keys, where_it_ran, notes):
    with headrace.pipe({**keys, "backend": "RayActor[RayFragile]"}) as pipe:
        client = Client(pipe, {"data": "wait"})
        until(lambda: notes() == ["1 wait"])
        process, actor, _ = where_it_ran()
        os.kill(actor, signal.SIGKILL)
        with pytest.raises(InstanceLostError, match="died"):
            client.outcome()
        wait_until_gone(process)
        assert pipe({"data": "later"})["result"] == "later"
    assert notes() == ["1 wait", "1 later"]


def test_the_death_of_a_raylet_alone_loses_nothing(keys, extra_node, where_it_ran, notes, let_go):
    node = extra_node(raylet_dies=1)
    config = {**keys, "backend": "RayActor[RayFragile]", "resources": {"raylet_dies": 1}}
    with headrace.pipe(config) as pipe:
        client = Client(pipe, {"data": "wait"})
        until(lambda: notes() == ["1 wait"])
        process, actor, raylet = where_it_ran()
        os.kill(raylet, signal.SIGKILL)
        until(lambda: not alive(node.node_id))  # Ray has noticed
        let_go()
        assert client.outcome()["result"] == "wait"
        assert pipe({"data": "later"})["result"] == "later"
        assert built(pipe)["process"] == process
    wait_until_gone(process)
    wait_until_gone(actor)  # though nothing of Ray is left that could end it


def test_the_batch_of_a_node_that_dies_runs_once_more_on_another(
    keys, extra_node, where_it_ran, notes, let_go
):
    for _ in range(2):
        extra_node(node_dies=1)
    config = {**keys, "backend": "RayActor[RayInnocent]", "resources": {"node_dies": 1}}
    with headrace.pipe({**config, "instance_num": 2}) as pipe:
        client = Client(pipe, {"data": "wait"})
        until(lambda: notes() == ["1 wait"])
        process, actor, raylet = where_it_ran()
        os.kill(raylet, signal.SIGKILL)
        os.kill(actor, signal.SIGKILL)
        until(lambda: len(notes()) == 2)
        other, *_ = where_it_ran()
        assert other != process
        let_go()
        assert client.outcome()["result"] == "wait"
        assert pipe({"data": "later"})["result"] == "later"
    assert notes() == ["1 wait", "1 wait", "1 later"]


def test_a_restart_without_room_keeps_no_batch_waiting_and_comes_with_the_room(
    keys, extra_node, where_it_ran, notes
):
    extra_node(no_room=1)
    config = {**keys, "backend": "RayActor[RayInnocent]", "resources": {"no_room": 1}}
    with headrace.pipe(config) as pipe:
        client = Client(pipe, {"data": "wait"})
        until(lambda: notes() == ["1 wait"])
        _, actor, raylet = where_it_ran()
        os.kill(raylet, signal.SIGKILL)
        os.kill(actor, signal.SIGKILL)
        with pytest.raises(InstanceLostError, match="no room to start another") as lost:
            client.outcome()
        assert "Add nodes" in lost.value.hint
        waits = Client(pipe, {"data": "later"})
        extra_node(no_room=1)
        assert waits.outcome()["result"] == "later"
    assert notes() == ["1 wait", "1 later"]


def test_what_is_frozen_is_away_after_three_heartbeats(
    keys, extra_node, where_it_ran, notes, let_go
):
    for _ in range(2):
        extra_node(freezes=1)
    config = {**keys, "backend": "RayActor[RayInnocent]", "resources": {"freezes": 1}}
    stopped = []
    with headrace.pipe({**config, "instance_num": 2, "heartbeat_ms": 200}) as pipe:
        client = Client(pipe, {"data": "wait"})
        until(lambda: notes() == ["1 wait"])
        try:
            stopped = [*reversed(where_it_ran())]  # all of the node: the raylet first
            for one in stopped:
                os.kill(one, signal.SIGSTOP)
            until(lambda: len(notes()) == 2)
            assert where_it_ran()[0] not in stopped
            assert alive(ray.nodes()[0]["NodeID"])  # Ray has not needed to notice
            let_go()
            assert client.outcome()["result"] == "wait"
            pipe.close()
        finally:
            for one in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGCONT)
        for one in stopped[1:]:
            wait_until_gone(one)


def test_actors_that_are_killed_under_load_lose_no_request(keys, notes, tmp_path):
    clients, each, kills = 6, 40, 3
    config = {**keys, "backend": "RayActor[RayInnocent]", "instance_num": 3, "retries": 5}
    answered, results = threading.Semaphore(0), {}
    with headrace.pipe({**config, "max": 4}) as pipe:

        def ask(client):
            for number in range(each):
                data = f"{client}-{number}"
                results[data] = pipe({"data": data})["result"]
                answered.release()

        asking = [Client(ask, one) for one in range(clients)]
        for _ in range(kills):
            for _ in range(clients * each // (kills + 2)):
                assert answered.acquire(timeout=FAILS_LATE_S)
            process = int((tmp_path / "notes.processes").read_text().split()[-1])
            with contextlib.suppress(OSError):  # it has died of the kill before
                os.kill(parent_of(process), signal.SIGKILL)
        for one in asking:
            one.outcome()
    expected = {f"{client}-{number}" for client in range(clients) for number in range(each)}
    assert results == {one: one for one in expected}
    assert {line.split()[1] for line in notes()} == expected
