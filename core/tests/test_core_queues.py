"""Queue, Send, Recv and Observer: bounded queues between nodes of one pipeline."""

from __future__ import annotations

import threading

import pytest

import headrace
from headrace import errors
from headrace._containers.queues import NamedQueue

NODES = {
    "out": {"backend": "Send(q)"},
    "in": {"backend": "Recv(q)"},
    "watch": {"backend": "Observer(q)"},
}


def to(node, data=None):
    return {"data": data, "node_name": node}


def test_what_is_sent_is_received_in_order():
    with headrace.pipe(NODES) as pipe:
        assert pipe(to("out", "a"))["result"] == "a"
        pipe(to("out", "b"))
        assert [pipe(to("in"))["result"], pipe(to("in"))["result"]] == ["a", "b"]


def test_a_copy_is_queued_so_that_the_caller_keeps_its_dict():
    with headrace.pipe(NODES) as pipe:
        request = to("out", ["x"])
        pipe(request)
        request["data"] = "other"
        assert pipe(to("in"))["result"] == ["x"]


def test_recv_waits_for_what_is_sent_later():
    with headrace.pipe(NODES) as pipe:
        future = pipe.submit(to("in"))
        pipe(to("out", 5))
        assert future.result(60)["result"] == 5


def test_recv_from_an_empty_queue_ends_at_its_deadline():
    with headrace.pipe(NODES) as pipe, pytest.raises(errors.DeadlineExceededError):
        pipe(to("in"), timeout=0.01)


def test_a_full_queue_makes_send_wait_until_there_is_room():
    config = {**NODES, "out": {"backend": "Send(q)", "init": "List[Queue(q,max=1)]"}}
    config["out"]["node_entrypoint"] = "Reflect[backend]"
    with headrace.pipe(config) as pipe:
        pipe(to("out", 1))
        future = pipe.submit(to("out", 2))
        assert pipe(to("in"))["result"] == 1
        assert future.result(60)["result"] == 2
        assert pipe(to("in"))["result"] == 2
        assert pipe.stats()["queues"]["q"] == {"waiting": 0, "max": 1, "dropped": 0}


def test_send_to_a_full_queue_ends_at_its_deadline():
    queue = NamedQueue("q", 1)
    queue.put({}, None)
    with pytest.raises(errors.DeadlineExceededError):
        queue.put({}, 0.0)


def test_an_observer_drops_the_oldest_and_counts_it():
    config = {
        "watch": {
            "backend": "Observer(q)",
            "init": "List[Queue(q,max=2)]",
            "node_entrypoint": "Reflect[backend]",
        },
        "in": {"backend": "Recv(q)"},
    }
    with headrace.pipe(config) as pipe:
        for n in (1, 2, 3):
            assert pipe(to("watch", n))["result"] == n
        assert [pipe(to("in"))["result"], pipe(to("in"))["result"]] == [2, 3]
        assert pipe.stats()["queues"]["q"]["dropped"] == 1
        assert pipe.describe()["nodes"]["watch"]["tree"]["built"]["dropped"] == 1


def test_a_queue_that_nobody_declares_holds_sixty_four():
    with headrace.pipe(NODES) as pipe:
        for n in range(70):
            pipe(to("watch", n))
        assert pipe.stats()["queues"]["q"] == {"waiting": 64, "max": 64, "dropped": 6}


def test_closing_ends_every_wait():
    pipe = headrace.pipe({**NODES, "in": {"backend": "Recv(q)", "instance_num": 2}})
    futures = [pipe.submit(to("in")) for _ in range(2)]
    closer = threading.Thread(target=pipe.close)
    closer.start()
    for future in futures:
        with pytest.raises(errors.ClosedError, match="while queue 'q' was empty"):
            future.result(60)
    closer.join(60)
    assert not closer.is_alive()
    assert pipe.stats()["nodes"]["in"]["failed"] == {"closed": 2}


def test_two_pipelines_have_queues_of_their_own():
    with headrace.pipe(NODES) as one, headrace.pipe(NODES) as other:
        one(to("out", 1))
        assert other.stats()["queues"]["q"]["waiting"] == 0


def test_a_queue_declared_twice_with_different_sizes_is_refused():
    config = {
        "a": {"init": "List[Queue(q,max=1),Register[Identity]]"},
        "b": {"init": "List[Queue(q,max=2),Register[Identity]]"},
    }
    with pytest.raises(errors.SetupError):
        headrace.pipe(config)
