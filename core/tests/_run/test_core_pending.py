"""Answers that come later: a backend keeps a request as PENDING, and anybody ends it; each end is one outcome, told once."""

from __future__ import annotations

import asyncio
import os
import queue
import threading

import pytest
from internals import expire, open_entries
from loading import Divides
from sending import WAYS

import headrace
from headrace import PENDING
from headrace.errors import (
    BackendError,
    ClosedError,
    ConfigError,
    ContractError,
    DeadlineExceededError,
    InputError,
    InstanceLostError,
    OverloadedError,
)
from headrace.words import Place

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""

pytestmark = pytest.mark.usefixtures("shortcut")


def kept_entries(pipe):
    """Return the entries that are kept as PENDING, each with its scheduler."""
    return [(entry, one) for entry, one in open_entries(pipe) if entry.state == "pending"]


class Control:
    """What a test sees and steers of the backend ``KeptKeeper``.

    Attributes:
        came: The handle of every request that was kept, when ``forward`` has returned.
        told: The handles of the requests whose end was told.
        contexts: The context of each instance that was built.
        ends: How often the end of a batch was called.
        during: Called in ``forward`` with the handle of each request that it keeps.
    """

    def __init__(self):
        self.came, self.told = queue.Queue(), queue.Queue()
        self.contexts, self.ends, self.threads = [], 0, set()
        self.during = None

    @property
    def context(self):
        return self.contexts[-1]

    def kept(self):
        """Wait for a request that is kept."""
        return self.came.get(timeout=WAIT_S)

    def keeps(self, pipe, request, **terms):
        """Submit a request, and wait until it is kept as PENDING; give its future and its handle."""
        count = len(kept_entries(pipe))
        future, kept = pipe.submit(request, **terms), self.kept()
        while len(kept_entries(pipe)) <= count:  # `forward` is about to return
            pass
        return future, kept

    def resume(self, handle, *node):
        """Resume a request, as soon as `forward` has returned."""
        while not self.context.request.resume(handle, *node):
            pass

    def one_was_told(self, kept):
        """Wait until the holder was told of one end, of this request or handle, and of no other."""
        told = self.told.get(timeout=WAIT_S)
        assert told == kept or told.request is kept
        assert self.told.empty()


@pytest.fixture
def keeper(monkeypatch):
    control = Control()

    class KeptKeeper(headrace.Backend):
        """Keeps a request whose ``data`` is above 0, and counts it down; answers the others with ``steps``."""

        keeps = True

        max = 4

        def init(self, options, context):
            self.context = context
            control.contexts.append(context)
            context.batch.at_end(self.end)

        def end(self):
            control.ends += 1

        def forward(self, batch):
            control.threads.add(threading.get_ident())
            outcomes = []
            for request in batch:
                if not request["data"]:
                    request["result"] = request.get("steps", 0)
                    outcomes.append(None)
                    continue
                handle = self.context.request.keep(request)
                if not request.get("steps"):
                    self.context.request.on_end(handle, control.told.put)
                request["data"] -= 1
                request["steps"] = request.get("steps", 0) + 1
                if control.during is not None:
                    control.during(self.context, handle)
                control.came.put(handle)
                outcomes.append(PENDING)
            return outcomes

    class OwnKeeper(KeptKeeper):
        owns_thread = True

    class KeptLeaver(KeptKeeper):
        place = Place(stands="last")

        @classmethod
        def nodes_called(cls, options):
            return ["other"]

    headrace.register("KeptLeaver", KeptLeaver, replace=True)
    headrace.register("KeptKeeper", KeptKeeper, replace=True)
    headrace.register("OwnKeeper", OwnKeeper, replace=True)
    return control


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "backend", ["KeptKeeper", "S[Identity,KeptKeeper]", "OwnKeeper", "BackgroundThread[KeptKeeper]"]
)
def test_a_request_that_is_resumed_runs_again_until_it_is_answered(keeper, way, backend, client):
    with headrace.pipe({"backend": backend}) as pipe:
        if way == "async":
            keeper.context  # noqa: B018 - it is built
        request = {"data": 3}
        calling = client(WAYS[way], pipe, request)
        for _ in range(3):
            kept = keeper.kept()
            assert kept.request is request
            keeper.resume(kept)
        assert calling.outcome() is request
        assert request == {"data": 3, "steps": 3, "result": 3}
        keeper.one_was_told(request)
        stats = pipe.stats()["nodes"]["main"]
        assert (stats["submitted"], stats["ok"], stats["waiting"]) == (1, 1, 0)
        assert stats["batches"] == keeper.ends == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_request_is_finished_once_by_any_thread(keeper, way, client):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request = {"data": 1}
        calling = client(WAYS[way], pipe, request)
        kept = keeper.kept()
        assert not keeper.context.request.unwanted(kept)
        assert keeper.context.request.finish(kept, "answer")
        assert not keeper.context.request.finish(kept, "another")
        assert not keeper.context.request.resume(kept)
        calling.outcome()
        assert request == {"data": 1, "steps": 1, "result": "answer"}
        keeper.one_was_told(request)
        assert keeper.context.request.unwanted(kept)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_is_finished_with_an_error(keeper, way, client):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request = {"data": 1}
        calling = client(WAYS[way], pipe, request)
        assert keeper.context.request.finish(keeper.kept(), ValueError("not today"))
        with pytest.raises(BackendError, match="not today") as caught:
            calling.outcome()
        assert (caught.value.node, caught.value.backend) == ("main", "KeptKeeper")
        assert request == {"data": 1, "steps": 1}
        keeper.one_was_told(request)
        assert pipe.stats()["nodes"]["main"]["failed"] == {"backend": 1}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_asked_before_forward_has_returned_is_done_then(keeper, way):
    asked = []

    def during(context, handle):
        left = handle.request["data"]
        act = context.request.resume if left else context.request.finish
        asked.append(act(handle, *(() if left else ("early",))))
        asked.append(context.request.finish(handle, "twice"))

    keeper.during = during
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request = {"data": 2}
        WAYS[way](pipe, request)
        assert request == {"data": 2, "steps": 2, "result": "early"}
        assert asked == [True, False, True, False]
        keeper.one_was_told(request)
        assert pipe({"data": 0})["result"] == 0  # the short cut is open again


def test_a_request_that_forward_answers_is_told_and_what_was_asked_for_it_is_dropped(keeper):
    class KeptBoth(headrace.Backend):
        keeps = True

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                handle = self.context.request.keep(request)
                self.context.request.on_end(handle, keeper.told.put)
                self.context.request.finish(handle, "never")
                request["result"] = "answered"

    headrace.register("KeptBoth", KeptBoth, replace=True)
    with headrace.pipe({"backend": "KeptBoth"}) as pipe:
        for _ in range(2):
            request = {"data": 1}
            assert pipe(request)["result"] == "answered"
            keeper.one_was_told(request)


def test_a_deadline_ends_a_request_that_is_kept(keeper):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request = {"data": 1}
        future, kept = keeper.keeps(pipe, request, timeout=3600)
        ((entry, scheduler),) = kept_entries(pipe)
        expire(scheduler, entry)
        with pytest.raises(DeadlineExceededError) as caught:
            future.result(WAIT_S)
        assert not caught.value.abandoned
        assert request == {"data": 1, "steps": 1}
        assert not keeper.context.request.finish(kept, "too late")
        keeper.one_was_told(request)


def test_cancel_takes_a_request_that_is_kept(keeper):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request = {"data": 1}
        future, kept = keeper.keeps(pipe, request)
        assert not future.running()
        assert future.cancel()
        assert request == {"data": 1, "steps": 1}
        assert not keeper.context.request.finish(kept, "too late")
        assert keeper.context.request.unwanted(kept)
        keeper.one_was_told(request)


def test_a_task_that_is_cancelled_takes_its_request_that_is_kept(keeper):
    async def run(pipe):
        task = asyncio.create_task(pipe.call_async({"data": 1}))
        kept = await asyncio.to_thread(keeper.kept)
        while kept_entries(pipe) == []:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return kept

    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        kept = asyncio.run(run(pipe))
        keeper.one_was_told(kept)
        assert keeper.context.request.unwanted(kept)


def test_a_close_that_drains_waits_for_what_is_kept(keeper, until, client):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        future = pipe.submit({"data": 2})
        closing = client(pipe.close)
        kept = keeper.kept()
        until(lambda: not pipe.ready)
        keeper.resume(kept)  # also a node that closes takes it again
        assert keeper.kept() == kept
        assert keeper.context.request.finish(kept, "drained")
        assert future.result(WAIT_S)["result"] == "drained"
        closing.outcome()
        assert pipe.stats()["state"] == "closed"


@pytest.mark.parametrize(("drain", "timeout"), [(False, 3600.0), (True, 0.0)])
def test_a_close_that_does_not_wait_ends_what_is_kept(keeper, drain, timeout):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request = {"data": 1}
        future, kept = keeper.keeps(pipe, request)
        pipe.close(drain=drain, timeout=timeout)
        with pytest.raises(ClosedError) as caught:
            future.result(WAIT_S)
        assert caught.value.begun
        assert request == {"data": 1, "steps": 1}
        keeper.one_was_told(request)
        assert not keeper.context.request.resume(kept)


def test_what_is_kept_while_a_close_does_not_drain_is_refused(keeper, client):
    closes = threading.Event()
    keeper.during = lambda *_: closes.wait(WAIT_S)
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        future = pipe.submit({"data": 1})
        while pipe.stats()["nodes"]["main"]["batches"] == 0:
            pass
        closing = client(lambda: pipe.close(drain=False))
        while pipe.ready:
            pass
        closes.set()
        with pytest.raises(ClosedError):
            future.result(WAIT_S)
        closing.outcome()


def test_a_lost_instance_loses_what_it_keeps(keeper):
    def during(context, handle):
        if handle.request["data"] == 6:
            raise InstanceLostError("gone")

    keeper.during = during
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        first, _ = keeper.keeps(pipe, {"data": 1})
        second = pipe.submit({"data": 7})
        for future in (first, second):
            with pytest.raises(InstanceLostError):
                future.result(WAIT_S)


@pytest.mark.parametrize("way", WAYS)
def test_a_request_goes_on_at_another_node_and_at_those_linked_after_that(keeper, way, client):
    nodes = {
        "first": {"backend": "Identity", "next": "main"},
        "main": {"backend": "KeptLeaver", "next": "after"},
        "after": {"backend": "Identity"},
        "other": {"backend": "Call(builtins:str)", "next": "last"},
        "last": {"backend": "Identity"},
    }
    with headrace.pipe(nodes) as pipe:
        request = {"data": 1}
        calling = client(WAYS[way], pipe, request)
        kept = keeper.kept()
        kept.request["data"] = 41
        keeper.resume(kept, "other")
        calling.outcome()
        assert request["result"] == "41"
        assert request["data"] == 1
        keeper.one_was_told(kept)
        stats = pipe.stats()["nodes"]
        assert [one["ok"] for one in stats.values()] == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_no_graph_leads_has_the_answer_of_the_other_node(keeper, way, client):
    nodes = {
        "main": {"backend": "KeptLeaver"},
        "other": {"backend": "Call(builtins:str)"},
        "page": {"backend": "S[Forward[node.main],Call(builtins:len)]"},
    }
    with headrace.pipe(nodes) as pipe:
        request = {"data": 1, "node_name": "page"}
        calling = client(WAYS[way], pipe, request)
        kept = keeper.kept()
        kept.request["data"] = 41
        keeper.resume(kept, "other")
        calling.outcome()
        assert (request["result"], request["data"]) == (2, 1)
        keeper.one_was_told(kept)
        assert [one["ok"] for one in pipe.stats()["nodes"].values()] == [1, 1, 1]


def test_a_request_goes_on_only_where_the_class_says_that_it_may(keeper):
    nodes = {"main": {"backend": "KeptKeeper"}, "other": {"backend": "Identity"}}
    with headrace.pipe(nodes) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1, "node_name": "main"})
        with pytest.raises(ContractError, match="nodes_called"):
            keeper.context.request.resume(kept, "other")
        assert keeper.context.request.finish(kept, 1)
        future.result(WAIT_S)
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"main": {"backend": "KeptLeaver"}, "othr": {}})
    assert "'other'" in str(caught.value)


def test_an_error_at_another_node_is_the_error_of_the_request(keeper):
    class KeptRefuses(headrace.Backend):
        def forward(self, batch):
            raise InputError(key="data", expected="better", got="this")

    headrace.register("KeptRefuses", KeptRefuses, replace=True)
    with headrace.pipe(
        {"main": {"backend": "KeptLeaver"}, "other": {"backend": "KeptRefuses"}}
    ) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1, "node_name": "main"})
        keeper.resume(kept, "other")
        with pytest.raises(InputError) as caught:
            future.result(WAIT_S)
        assert caught.value.node == "other"


def test_an_unknown_node_is_an_error_with_the_nearest_name(keeper):
    with headrace.pipe(
        {"main": {"backend": "KeptKeeper"}, "other": {"backend": "Identity"}}
    ) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1, "node_name": "main"})
        with pytest.raises(ContractError, match="no node is called 'othr'") as caught:
            keeper.context.request.resume(kept, "othr")
        assert "Did you mean 'other'?" in str(caught.value.hint)
        with pytest.raises(
            TypeError, match=r"context\.request\.resume: a node is named by a text, got 3"
        ):
            keeper.context.request.resume(kept, 3)
        with pytest.raises(
            TypeError, match=r"context\.request\.on_end: a function is told of the end, got None"
        ):
            keeper.context.request.on_end(kept, None)
        assert keeper.context.request.finish(kept, "still there")
        assert future.result(WAIT_S)["result"] == "still there"


def test_what_is_kept_counts_against_the_bound_of_the_queue(keeper):
    config = {"backend": "KeptKeeper", "queue_size": 2, "queue_full": "reject"}
    with headrace.pipe(config) as pipe:
        futures = [pipe.submit({"data": 1}) for _ in range(2)]
        kept = [keeper.kept() for _ in futures]
        while len(kept_entries(pipe)) < 2:
            pass
        with pytest.raises(OverloadedError):
            pipe.submit({"data": 0}).result(WAIT_S)
        assert keeper.context.request.finish(kept[0], "room")
        assert pipe.submit({"data": 0}).result(WAIT_S)["result"] == 0
        assert keeper.context.request.finish(kept[1], "done")
        assert [one.result(WAIT_S)["result"] for one in futures] == ["room", "done"]


def test_who_is_resumed_goes_before_those_that_have_not_begun(keeper):
    begins, batches = threading.Event(), []

    def during(context, handle):
        if handle.request["data"] == 8:
            begins.wait(WAIT_S)

    keeper.during = during
    with headrace.pipe({"backend": "KeptKeeper", "max": 1}) as pipe:
        first, kept = keeper.keeps(pipe, {"data": 1})
        blocking = pipe.submit({"data": 9})  # its batch runs
        while not pipe.stats()["nodes"]["main"]["instances"][0]["busy"]:
            pass
        later = pipe.submit({"data": 0})
        for name, future in (("first", first), ("later", later)):
            future.add_done_callback(lambda _, name=name: batches.append(name))
        assert keeper.context.request.resume(kept)
        begins.set()
        assert keeper.context.request.finish(keeper.kept(), "unblocked")
        assert blocking.result(WAIT_S)["result"] == "unblocked"
        assert first.result(WAIT_S)["result"] == 1
        assert later.result(WAIT_S)["result"] == 0


@pytest.mark.parametrize(
    "backend", ["S[KeptKeeper,Identity]", "CatSplit[Identity,KeptKeeper,Identity]"]
)
def test_pending_inside_what_waits_for_a_result_is_refused(keeper, backend):
    with headrace.pipe({"backend": backend}) as pipe:
        with pytest.raises(ContractError, match="returned PENDING") as caught:
            pipe({"data": 1})
        assert caught.value.backend == "KeptKeeper"


def test_a_branch_of_a_request_that_divides_may_keep_it(keeper):
    headrace.register(Divides, replace=True)
    with headrace.pipe({"backend": "S[Identity,Divides(steps)[Identity,KeptKeeper]]"}) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1})
        keeper.resume(kept)
        assert future.result(WAIT_S)["result"] == 0  # now it has steps
        future = pipe.submit({"data": 1})
        while not keeper.context.request.finish(keeper.kept(), "ended"):
            pass
        assert future.result(WAIT_S)["result"] == "ended"


def test_pending_stands_in_the_list_of_outcomes_and_is_no_result():
    class Whole(headrace.Backend):
        keeps = True

        def forward(self, batch):
            return headrace.PENDING

    headrace.register("Whole", Whole, replace=True)
    headrace.register("Later", lambda data: headrace.PENDING, replace=True)
    headrace.register("AllLater", lambda data: [headrace.PENDING], batched=True, replace=True)
    for backend, hint in (("Whole", "in the list"), ("Later", "keep"), ("AllLater", "keep")):
        with (
            headrace.pipe({"backend": backend}) as pipe,
            pytest.raises(ContractError, match="returned PENDING") as caught,
        ):
            pipe({"data": 1})
        assert hint in str(caught.value.hint)


def test_the_elements_of_a_list_are_kept_each_by_itself(keeper):
    with headrace.pipe({"backend": "KeptKeeper", "each": "items"}) as pipe:
        future = pipe.submit({"items": [1, 0, 1], "data": None})
        kept = [keeper.kept() for _ in range(2)]
        for handle in kept:
            while not keeper.context.request.finish(handle, "later"):
                pass
        assert future.result(WAIT_S)["result"] == ["later", 0, "later"]


def test_a_batch_whose_end_fails_fails_what_it_would_keep(keeper):
    class KeptEnds(headrace.Backend):
        keeps = True

        def init(self, options, context):
            self.context = context
            context.batch.at_end(self.end)

        def end(self):
            raise ValueError("the device says no")

        def forward(self, batch):
            for request in batch:
                self.context.request.keep(request)
            return [PENDING for _ in batch]

    headrace.register("KeptEnds", KeptEnds, replace=True)
    with (
        headrace.pipe({"backend": "KeptEnds"}) as pipe,
        pytest.raises(BackendError, match="says no"),
    ):
        pipe({"data": 1})


def test_a_holder_that_raises_when_it_is_told_changes_nothing(keeper):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1})
        keeper.context.request.on_end(kept, lambda _: 1 / 0)
        assert keeper.context.request.finish(kept, 1)
        assert future.result(WAIT_S)["result"] == 1
        keeper.one_was_told(kept)


def test_each_act_on_what_has_ended_is_false_whatever_its_dict_is_used_for_since(keeper):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        request, asks = {"data": 1}, keeper.context.request
        future, first = keeper.keeps(pipe, request)
        first.notes["step"] = 1
        assert future.cancel()
        keeper.one_was_told(first)
        request.update(data=1, steps=0)
        future, second = keeper.keeps(pipe, request)
        assert first != second
        assert first.request is second.request is request
        assert second.notes == {}
        assert asks.finish(first, "late") is asks.resume(first) is asks.emit(first, 1) is False
        assert asks.on_end(first, keeper.told.put) is False
        assert asks.unwanted(first)
        assert not asks.unwanted(second)
        assert asks.finish(second, "in time")
        assert future.result(WAIT_S)["result"] == "in time"
        keeper.one_was_told(second)


@pytest.mark.parametrize("act", ["finish", "resume", "emit", "on_end", "unwanted"])
def test_a_dict_in_place_of_a_handle_is_a_type_error_that_names_keep(keeper, act):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1})
        more = {"finish": (1,), "emit": (1,), "on_end": (print,)}.get(act, ())
        with pytest.raises(TypeError, match=rf"context\.request\.{act}: a handle .*\.keep\("):
            getattr(keeper.context.request, act)(kept.request, *more)
        assert keeper.context.request.finish(kept, "untouched")
        assert future.result(WAIT_S)["result"] == "untouched"


def test_pending_for_what_is_not_kept_is_an_error_that_names_keep():
    class KeepsNot(headrace.Backend):
        keeps = True

        def forward(self, batch):
            return [PENDING for _ in batch]

    headrace.register("KeepsNot", KeepsNot, replace=True)
    with headrace.pipe({"backend": "KeepsNot"}) as pipe:
        with pytest.raises(ContractError, match="KeepsNot returned PENDING") as caught:
            pipe({"data": 1})
        assert "context.request.keep(request)" in str(caught.value.hint)
        assert pipe.stats()["nodes"]["main"]["failed"] == {"contract": 1}


def test_what_is_resumed_has_the_same_handle_and_notes(keeper):
    handles = []

    def during(context, handle):
        assert (
            context.request.kept(handle.request) == context.request.keep(handle.request) == handle
        )
        handle.notes["steps"] = handle.notes.get("steps", 0) + 1
        handles.append((handle, handle.notes["steps"]))

    keeper.during = during
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 2})
        keeper.resume(kept)
        keeper.resume(keeper.kept())
        assert future.result(WAIT_S)["result"] == 2
        assert handles == [(kept, 1), (kept, 2)]
        assert len({handle for handle, _ in handles}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_ends_what_is_kept_in_the_child_alone(keeper):
    with headrace.pipe({"backend": "KeptKeeper"}) as pipe:
        future, kept = keeper.keeps(pipe, {"data": 1})
        child = os.fork()
        if not child:
            code = 1
            try:
                keeper.one_was_told(kept)
                with pytest.raises(ClosedError):
                    future.result(WAIT_S)
                code = int(keeper.context.request.finish(kept, "in the child"))
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert keeper.context.request.finish(kept, "in the parent")
        assert future.result(WAIT_S)["result"] == "in the parent"


def test_outside_of_a_pipeline_nothing_is_kept():
    context = headrace.InitContext()
    handle = context.request.keep({})
    assert context.request.kept({}) is None
    assert not context.request.resume(handle)
    assert not context.request.finish(handle, 1)
    assert not context.request.on_end(handle, print)
    assert not context.request.unwanted(handle)
    assert repr(PENDING) == "headrace.PENDING"


def test_what_is_resumed_while_forward_runs_keeps_its_places_before_those_that_wait():
    batches, goes_on = queue.Queue(), queue.Queue()

    class Steps(headrace.Backend):
        keeps = True
        max = 3

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            batches.put([request["name"] for request in batch])
            goes_on.get(timeout=WAIT_S)
            outcomes = []
            for request in batch:
                request["data"] -= 1
                request["result"] = "over"
                outcomes.append(PENDING if request["data"] else None)
                if request["data"]:
                    self.context.request.resume(self.context.request.keep(request))
            return outcomes

    headrace.register("Steps", Steps, replace=True)
    with headrace.pipe({"backend": "Steps"}) as pipe:
        futures = [pipe.submit({"name": "first", "data": 1})]
        assert batches.get(timeout=WAIT_S) == ["first"]
        futures += [pipe.submit({"name": name, "data": 2}) for name in "abcde"]
        expected = [["a", "b", "c"], ["a", "b", "c"], ["d", "e"], ["d", "e"]]
        for names in expected:
            goes_on.put(None)
            assert batches.get(timeout=WAIT_S) == names
        goes_on.put(None)
        assert [one.result(WAIT_S)["result"] for one in futures] == ["over"] * 6
        assert pipe.stats()["nodes"]["main"]["batches"] == 5


@pytest.mark.parametrize("around", ["S[Alone]", "BackgroundThread[Alone]", "S[Identity,Alone]"])
def test_a_class_may_say_that_it_stands_outermost_or_nowhere(around):
    class Alone(headrace.Backend):
        place = Place(stands="outermost")

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Alone", Alone, replace=True)
    if "Identity" not in around:
        headrace.PipelineConfig.load({"backend": around})
        return
    with pytest.raises(headrace.errors.ConfigError, match="Alone stands outermost") as caught:
        headrace.PipelineConfig.load({"backend": around})
    assert "S[Identity,Alone]\n               ^^^^^" in str(caught.value)
