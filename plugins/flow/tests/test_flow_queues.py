"""Queue, Send, Recv and Observer: bounded queues between nodes of one pipeline."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import headrace
from headrace import errors
from headrace_flow.queues import NamedQueue

LATE_S = 300
"""Only what hangs reaches this."""

NODES = {
    "out": {"backend": "Send(q)"},
    "in": {"backend": "Recv(q)"},
    "watch": {"backend": "Observer(q)"},
}


def to(node, data=None):
    return {"data": data, "node_name": node}


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


def test_a_wait_for_an_empty_or_a_full_queue_ends_at_the_deadline():
    config = {**NODES, "out": {"backend": "Send(q)", "init": "Queue(q,max=1)"}}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.DeadlineExceededError):
            pipe(to("in"), timeout=0.01)
        pipe(to("out"))
        with pytest.raises(errors.DeadlineExceededError):
            pipe(to("out"), timeout=0.01)


def test_a_full_queue_makes_send_wait_until_there_is_room():
    config = {**NODES, "out": {"backend": "Send(q)", "init": "Queue(q,max=1)"}}
    with headrace.pipe(config) as pipe:
        pipe(to("out", 1))
        future = pipe.submit(to("out", 2))
        assert pipe(to("in"))["result"] == 1
        assert future.result(60)["result"] == 2
        assert pipe(to("in"))["result"] == 2
        assert pipe.stats()["queues"]["q"] == {"waiting": 0, "max": 1, "dropped": 0}


def test_an_init_that_registers_no_instances_leaves_them_to_the_node():
    out = {"backend": "Send(q)", "init": "Queue(q,max=1)", "instance_num": 2}
    with headrace.pipe({**NODES, "out": out}) as pipe:
        pipe(to("out", 1))
        assert pipe.stats()["queues"]["q"] == {"waiting": 1, "max": 1, "dropped": 0}
        assert len(pipe.stats()["nodes"]["out"]["instances"]) == 2
        assert pipe(to("in"))["result"] == 1


@pytest.mark.parametrize("way", ["put", "get"])
def test_who_wakes_after_the_deadline_neither_puts_nor_takes(way):
    queue, waits, left = NamedQueue("q"), threading.Event(), [60.0]
    queue.declare(1)
    if way == "put":
        queue.put({"data": 1}, None)

    def left_s():
        waits.set()
        return left[0]

    def late():
        with pytest.raises(errors.DeadlineExceededError):
            queue.put({}, left_s) if way == "put" else queue.get(left_s)

    thread = threading.Thread(target=late)
    thread.start()
    assert waits.wait(LATE_S)
    left[0] = -1.0  # the time is over, and then another thread makes room, or puts an item
    queue.get(lambda: 60.0) if way == "put" else queue.put({"data": 2}, None)
    thread.join(LATE_S)
    assert not thread.is_alive()
    assert queue.statistics()["waiting"] == (0 if way == "put" else 1)


def test_an_observer_drops_the_oldest_and_counts_it():
    config = {
        "watch": {"backend": "Observer(q)", "init": "Queue(q,max=2)"},
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
    closer.join(LATE_S)
    assert not closer.is_alive()
    assert pipe.stats()["nodes"]["in"]["failed"] == {"closed": 2}


def test_what_fills_a_batch_up_does_not_hide_that_the_item_has_failed():
    config = {"backend": "Send(q)", "init": "Queue(q,max=1)", "min": 2, "max": 2, "pad": True}
    pipe = headrace.pipe(config)
    pipe({"data": 1})
    future = pipe.submit({"data": 2})
    pipe.close()
    with pytest.raises(errors.ClosedError, match="while queue 'q' was full"):
        future.result(60)


class Begun(headrace.Backend):
    event = threading.Event()

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]
        self.event.set()


headrace.register("BegunBeforeRecv", Begun)


@pytest.mark.parametrize("others", [0, 1])
def test_a_recv_that_was_cancelled_keeps_nothing_of_the_queue(others):
    async def call():
        try:
            return await pipe.call_async(to("in"))
        except asyncio.CancelledError as error:
            abandoned.append(error.abandoned)  # who awaits the task gets another one on Python 3.10
            raise

    async def cancel_first():
        tasks = [asyncio.create_task(call()) for _ in range(1 + others)]
        assert await asyncio.to_thread(Begun.event.wait, 60)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert abandoned == [True]
        await pipe.call_async(to("out", 2))
        return [(await task)["result"] for task in tasks[1:]]

    Begun.event.clear()
    abandoned = []
    backend = {"backend": "S[BegunBeforeRecv,Recv(q)]", "batching_timeout": 60_000}
    together = {"min": 1 + others, "max": 1 + others}
    nodes = {**NODES, "in": {**backend, **together}, "rest": {"backend": "Recv(q)"}}
    with headrace.pipe(nodes) as pipe:
        if others:  # the request that is cancelled may take this one before the cancel
            pipe(to("out", 1))
        results = asyncio.run(cancel_first())
        results += [pipe(to("rest"), timeout=60)["result"]]
    assert sorted(results) == [1, 2][1 - others :]


def test_two_pipelines_have_queues_of_their_own():
    with headrace.pipe(NODES) as one, headrace.pipe(NODES) as other:
        one(to("out", 1))
        assert other.stats()["queues"]["q"]["waiting"] == 0


def test_a_queue_declared_twice_with_different_sizes_is_refused():
    config = {
        "a": {"backend": "Identity", "init": "Queue(q,max=1)"},
        "b": {"backend": "Identity", "init": "Queue(q,max=2)"},
    }
    with pytest.raises(errors.SetupError, match="queue 'q' holds 1 already") as caught:
        headrace.pipe(config)
    assert (caught.value.node, caught.value.backend) == ("b", "Queue")


def test_explain_says_who_holds_an_instance_while_it_waits():
    def waits(word):
        found = headrace.explain({"backend": f"S[Identity,{word}(q)]"})
        return found["nodes"]["main"]["tree"]["children"][1].get("waits")

    assert waits("Send") == "holds its instance while queue 'q' is full"
    assert waits("Recv") == "holds its instance while queue 'q' is empty"
    assert waits("Observer") is None


def test_a_queue_has_the_size_it_is_declared_with_whoever_is_built_first():
    config = {
        "reader": {"backend": "Recv(q)"},
        "writer": {"backend": "Send(q)", "init": "Queue(q,max=2)"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe.stats()["queues"]["q"]["max"] == 2


@pytest.mark.parametrize("pair", ["Pair", "S[Identity,Pair]"])
def test_what_fills_a_batch_up_is_neither_sent_nor_observed_and_takes_nothing(pair):
    def forward(self, batch):
        for request in batch:
            request["result"] = [one["data"] for one in batch]

    headrace.register("Pair", type("Pair", (), {"forward": forward, "min": 2}), replace=True)
    config = {
        "send": {"backend": f"S[Send(q),Observer(seen),{pair}]", "pad": True, "max": 2},
        "take": {"backend": f"S[Recv(q),{pair}]", "pad": True, "max": 2},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 1, "node_name": "send"})["result"] == [1, 1]
        pipe({"data": 2, "node_name": "send"})
        assert pipe.stats()["queues"]["q"]["waiting"] == 2
        assert pipe.stats()["queues"]["seen"]["waiting"] == 2
        assert pipe({"data": 0, "node_name": "take"})["result"] == [1, 1]
        assert pipe({"data": 0, "node_name": "take"})["result"] == [2, 2]


def test_what_fills_a_batch_up_has_the_result_of_the_last_item_inside_of_a_container():
    class Together(headrace.Backend):
        min, max, takes = 2, 2, 1

        def init(self, options, context):
            (self.child,) = context.children

        def forward(self, batch):
            outcomes = self.child(batch)
            seen = [request["result"] for request in batch]
            for request in batch:
                request["result"] = seen
            return outcomes

    headrace.register("Together", Together, replace=True)
    config = {"backend": "Together[S[Send(q),Recv(q)]]", "pad": True}
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 7})["result"] == [7, 7]
        assert pipe.stats()["queues"]["q"]["waiting"] == 0


def test_a_wait_in_the_middle_of_a_cat_split_ends_at_the_deadline():
    with headrace.pipe({"backend": "CatSplit[Identity,Recv(q),Identity]", "max": 2}) as pipe:
        with pytest.raises(errors.DeadlineExceededError):
            pipe({"data": 1}, timeout=0.05)
        give_up = time.monotonic() + LATE_S
        while pipe.stats()["nodes"]["main"]["instances"][0]["busy"]:
            assert time.monotonic() < give_up
            threading.Event().wait(0.01)


@pytest.mark.parametrize("text", ["Queue(q)", "S[Queue(q)]", "Fallback[Queue(q)]"])
def test_a_queue_stands_where_nothing_is_called(text):
    with pytest.raises(errors.ConfigError, match="only declares a queue") as caught:
        headrace.PipelineConfig.load({"backend": text})
    if text != "Queue(q)":
        assert caught.value.problems[0].hint == "It belongs in the init of a node."


def test_a_copy_is_queued_once_the_device_has_finished_it():
    class Value:
        done = False

    class Device(headrace.Backend):
        def init(self, options, context):
            self.values = []
            context.batch.at_end(self.finish)

        def finish(self):
            for value in self.values:
                value.done = True

        def forward(self, batch):
            for request in batch:
                request["result"] = Value()
                self.values.append(request["result"])

    class Read(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"].done

    headrace.register("FinishesLate", Device, replace=True)
    headrace.register("ReadsDone", Read, replace=True)
    config = {
        "main": {"backend": "S[FinishesLate,Send(q),Recv(never)]"},
        "taker": {"backend": "S[Recv(q),ReadsDone]"},
        "end": {"backend": "Send(never)"},
    }
    with headrace.pipe(config) as pipe:
        sent = pipe.submit(to("main"))
        assert pipe(to("taker"))["result"] is True  # while the batch that has sent it still runs
        assert not sent.done()
        pipe(to("end"))
        sent.result(LATE_S)
