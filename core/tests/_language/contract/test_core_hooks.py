"""What a container, or a word, of a third party is written with: `headrace.words`, and what context and class offer."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import queue
import threading
import time
from typing import ClassVar

import pydantic
import pytest
from loading import problem

import headrace
from headrace import errors, words

SIGNATURES = {
    "Bracket": (
        "(phases: 'int' = 1, prefixes: 'tuple[str, ...]' = (), gives: 'tuple[str, ...]' = (), "
        "keys_option: 'str | None' = None, divides: 'bool' = False, combine_ranges: "
        "'Callable[..., tuple[int, int | None]] | None' = None, keys_of_child: 'int | None' = None, "
        "late: 'bool' = False, left_out_option: 'str | None' = None) -> None"
    ),
    "Place": (
        "(stands: \"Literal['anywhere', 'outermost', 'last']\" = 'anywhere', not_callable: 'str | None' = None, "
        "waits_while: 'str | None' = None) -> None"
    ),
    "combine_ranges": "(children: 'Sequence[Ranged]') -> 'tuple[int, int | None]'",
    "fill_up": "(batch: 'Sequence[Request]', child: 'Backend') -> 'list[Request] | None'",
    "run_child": (
        "(child: 'Backend', batch: 'list[Request]', places: 'Sequence[int]', outcomes: 'Answers', *, "
        "pad: 'bool') -> 'None'"
    ),
    "select": (
        "(batch: 'list[Request]', places: 'Iterable[int]', takes: 'Callable[[Request], Any]', "
        "outcomes: 'Answers', *, fillers: 'bool' = True) -> 'list[int]'"
    ),
}
OF_CLASS = {"uses_pipeline": False, "bracket": words.Bracket(), "place": words.Place()}
OF_CONTEXT = {
    "batch": ("min", "max", "sizes", "pad", "at_end"),
    "store": ("node", "instance", "scope", "pipeline"),
    "request": (
        *("deadline", "entered", "keep", "kept", "emit", "call", "resume", "finish", "on_end"),
        *("unwanted", "alongside"),
    ),
    "expression": ("prefixes", "followed_by", "keys_read", "keys_written"),
    "health": ("away", "back"),
}


def test_the_names_and_signatures_are_these():
    assert sorted(words.__all__) == sorted(SIGNATURES)
    assert {n: str(inspect.signature(getattr(words, n))) for n in words.__all__} == SIGNATURES
    assert {name: getattr(headrace.Backend, name) for name in OF_CLASS} == OF_CLASS
    context = headrace.InitContext()
    assert {name: tuple(vars(getattr(context, name))) for name in OF_CONTEXT} == OF_CONTEXT


# Small words as a third party would write them.


class Passes(headrace.Backend):
    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


class Box(queue.SimpleQueue):
    """A queue without bound; a None in it ends a wait."""

    closed = 0

    def end_waits(self):
        self.put(None)

    def close(self):
        self.closed += 1

    def statistics(self):
        return {"held": self.qsize()}


class Uses(Passes):
    class Options(headrace.Options):
        positional = ("name",)
        name: str = pydantic.Field("x", description="Name of the box.")

    uses_pipeline = True
    place = words.Place(waits_while="box {name!r} is empty")

    def init(self, options, context):
        super().init(options, context)
        self.box = context.store.pipeline.get_or_create(("boxes", options.name), Box)


class Gives(Uses):
    def forward(self, batch):
        for request in batch:
            self.box.put(request["data"])
            request["result"] = request["data"]


class Takes(Uses):
    def forward(self, batch):
        for request in batch:
            request["result"] = self.box.get()


class Declares(headrace.Backend):
    place = words.Place(not_callable="only declares a box")


class Breaks(Passes):
    def init(self, options, context):
        raise ValueError("no")


@pytest.fixture(autouse=True)
def registered():
    for cls in (Passes, Gives, Takes, Declares, Breaks):
        headrace.register(cls.__name__, cls, replace=True)


NODES = {"give": {"backend": "Gives(q)", "instance_num": 2}, "take": {"backend": "Takes(q)"}}


def to(node, data=None):
    return {"data": data, "node_name": node}


def test_all_nodes_of_a_pipeline_have_one_store():
    with headrace.pipe(NODES) as pipe, headrace.pipe(NODES) as other:
        pipe(to("give", 1))
        pipe(to("give", 2))
        assert [pipe(to("take"))["result"], pipe(to("take"))["result"]] == [1, 2]
        other(to("give", 3))
        assert pipe.stats()["boxes"] == {"q": {"held": 0}}
        assert other.stats()["boxes"] == {"q": {"held": 1}}


def test_the_end_of_the_pipeline_ends_waits_and_then_closes_what_is_stored():
    boxes = []

    class KeepsHere(Takes):
        def init(self, options, context):
            super().init(options, context)
            boxes.append(self.box)

        def close(self):
            assert self.box.closed == 0  # it is closed after all backends

    headrace.register("KeepsHere", KeepsHere, replace=True)
    pipe = headrace.pipe({"backend": "KeepsHere(q)"})
    waiting = pipe.submit({"data": None})
    pipe.close()
    assert waiting.result(300)["result"] is None
    assert [one.closed for one in boxes] == [1]


def test_kinds_of_stored_objects_hide_nothing_of_the_statistics():
    class Hides(Passes):
        def init(self, options, context):
            for key in (("nodes", "main"), ("state", "x"), "plain", ("a", "b", "c")):
                context.store.pipeline.get_or_create(key, Box)

    headrace.register("Hides", Hides, replace=True)
    with headrace.pipe({"backend": "Hides"}) as pipe:
        assert set(pipe.stats()) == {"state", "nodes"}
        assert pipe.stats()["nodes"]["main"]["failed"] == {}


def test_the_deadline_is_on_the_clock_of_monotonic_time():
    seen = []

    class Tells(Passes):
        def forward(self, batch):
            seen.extend(
                (
                    self.context.request.deadline(one),
                    self.context.request.unwanted(self.context.request.keep(one)),
                )
                for one in batch
            )
            super().forward(batch)

    headrace.register("Tells", Tells, replace=True)
    with headrace.pipe({"backend": "S[Passes,Tells]"}) as pipe:
        before = time.monotonic()
        pipe.submit({"data": 1}, timeout=3600).result(300)
        pipe.submit({"data": 1}).result(300)
        pipe({"data": 1})
        after = time.monotonic()
    (deadline, unwanted), *others = seen
    assert before + 3600 <= deadline <= after + 3600
    assert unwanted is False
    assert others == [(None, False)] * 2


def test_an_item_that_a_container_has_made_has_the_latest_deadline_of_the_batch():
    seen = {}

    class Tells(Passes):
        def forward(self, batch):
            for one in batch:
                seen[one["data"]] = self.context.request.deadline(one)
            super().forward(batch)

    headrace.register("Tells", Tells, replace=True)
    backend = "S[Tells,CatSplit[Call(builtins:str),Tells,Passes]]"
    with headrace.pipe({"backend": backend, "min": 2, "max": 2, "batching_timeout": 1e9}) as pipe:
        futures = [pipe.submit({"data": n}, timeout=1000 * n) for n in (1, 2)]
        for future in futures:
            future.result(300)
    assert seen["1"] == max(seen[1], seen[2]) == seen[2]


async def cancelled_in_its_batch(pipe, gate):
    task = asyncio.create_task(pipe.call_async({"data": 1}))
    await asyncio.get_running_loop().run_in_executor(None, gate.wait_entered)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_request_that_was_cancelled_is_unwanted(gate):
    seen = threading.Event()

    class Asks(Passes):
        def forward(self, batch):
            if self.context.request.unwanted(self.context.request.keep(batch[0])):
                seen.set()
            super().forward(batch)

    headrace.register("Asks", Asks, replace=True)
    with headrace.pipe({"backend": "S[Gate,Asks]"}) as pipe:
        asyncio.run(cancelled_in_its_batch(pipe, gate))
        gate.open()
        assert seen.wait(300)


def test_outside_of_a_pipeline_nothing_has_a_deadline():
    context = headrace.InitContext()
    assert context.request.deadline({}) is None
    assert context.request.unwanted(context.request.keep({})) is False
    assert context.batch.pad is False
    assert context.store.pipeline.get_or_create("k", list) is context.store.pipeline.get("k")


class FarAway(Passes):
    """Computes elsewhere; tests say when that is away."""

    contexts: ClassVar[list[headrace.InitContext]] = []
    away_in_init: ClassVar[dict[str, bool] | None] = None
    ran: ClassVar[list[int]] = []

    def init(self, options, context):
        super().init(options, context)
        self.contexts.append(context)
        if self.away_in_init is not None:
            context.health.away(**self.away_in_init)

    def forward(self, batch):
        self.ran.append(self.context.instance_index)
        super().forward(batch)


@pytest.fixture
def elsewhere(monkeypatch):
    for name, empty in (("contexts", []), ("ran", []), ("away_in_init", None)):
        monkeypatch.setattr(FarAway, name, empty)
    headrace.register("FarAway", FarAway, replace=True)
    return FarAway


def test_a_node_is_ready_while_one_instance_has_what_it_computes_with(elsewhere, shortcut):
    with headrace.pipe({"backend": "S[FarAway,Passes]", "instance_num": 2}) as pipe:
        first, second = elsewhere.contexts
        assert (pipe.ready, pipe.stats()["state"]) == (True, "ready")
        first.health.away()
        assert (pipe.ready, pipe.stats()["state"]) == (True, "degraded")
        for number in range(4):
            assert pipe({"data": number})["result"] == number
        assert elsewhere.ran == [1] * 4
        second.health.away()
        second.health.away()
        assert not pipe.ready
        waits = pipe.submit({"data": 5})
        late = pipe.submit({"data": 6}, timeout=0.01)
        with pytest.raises(errors.DeadlineExceededError):
            late.result(300)
        assert len(elsewhere.ran) == 4
        second.health.back()
        assert waits.result(300)["result"] == 5
        assert (pipe.ready, pipe.stats()["state"]) == (True, "degraded")
        first.health.back()
        assert (pipe.ready, pipe.stats()["state"]) == (True, "ready")
        first.health.back()


@pytest.mark.parametrize("name", ["x", "y"])
def test_each_node_must_be_there(elsewhere, name):
    nodes = {"x": {"backend": "FarAway"}, "y": {"backend": "FarAway"}}
    with headrace.pipe(nodes) as pipe:
        (context,) = [one for one in elsewhere.contexts if one.node_name == name]
        context.health.away()
        assert not pipe.ready
        context.health.back()
        assert pipe.ready


def test_all_parts_of_an_instance_must_be_there(elsewhere):
    with headrace.pipe({"backend": "S[FarAway,FarAway]"}) as pipe:
        first, second = elsewhere.contexts
        first.health.away()
        second.health.away()
        first.health.back()
        assert not pipe.ready
        waits = pipe.submit({"data": 1})
        second.health.back()
        assert waits.result(300)["result"] == 1
        assert pipe.ready


def test_a_backend_that_refuses_by_itself_is_given_batches_while_it_is_away(elsewhere, shortcut):
    with headrace.pipe({"backend": "FarAway"}) as pipe:
        (context,) = elsewhere.contexts
        context.health.away(takes_batches=True)
        assert not pipe.ready
        assert pipe({"data": 1})["result"] == 1
        context.health.away()
        waits = pipe.submit({"data": 2})
        with pytest.raises(errors.DeadlineExceededError):
            pipe({"data": 3}, timeout=0.01)
        context.health.away(takes_batches=True)
        assert waits.result(300)["result"] == 2
        assert not pipe.ready
        context.health.back()
        assert pipe.ready


def test_what_is_away_before_the_pipeline_is_built_gets_no_batch(elsewhere, shortcut):
    elsewhere.away_in_init = {}
    with headrace.pipe({"backend": "FarAway"}) as pipe:
        context = elsewhere.contexts[-1]
        assert not pipe.ready
        with pytest.raises(errors.DeadlineExceededError):
            pipe({"data": 1}, timeout=0.01)
        assert elsewhere.ran == []
        context.health.back()
        assert pipe({"data": 1})["result"] == 1
        assert pipe.ready


def test_a_backend_that_goes_away_in_its_batch_ends_it_and_gets_no_other(elsewhere, shortcut):
    class Breaks(Passes):
        def forward(self, batch):
            self.context.health.away()
            raise OSError("no route")

    headrace.register("BreaksOnce", Breaks, replace=True)
    with headrace.pipe({"backend": "BreaksOnce"}) as pipe:
        with pytest.raises(errors.BackendError, match="no route"):
            pipe({"data": 1})
        assert not pipe.ready
        with pytest.raises(errors.DeadlineExceededError):
            pipe({"data": 1}, timeout=0.01)


def test_outside_of_a_pipeline_nobody_hears_of_what_is_away():
    context = headrace.InitContext()
    assert (
        context.health.away(),
        context.health.away(takes_batches=True),
        context.health.back(),
    ) == (None,) * 3


def test_what_is_not_callable_stands_in_init_only():
    found = problem({"backend": "S[Declares]"})
    assert (found.code, found.span) == ("not_callable", (2, 10))
    assert found.message == "Declares only declares a box: S cannot call it"
    assert found.hint == "It belongs in the init of a node."
    found = problem({"backend": "Declares"})
    assert found.message == "Declares only declares a box and cannot be called"
    with headrace.pipe({"backend": "Passes", "init": "Declares"}) as pipe:
        assert pipe({"data": 1})["result"] == 1
    alone = Declares()
    alone.init(Declares.Options(), headrace.InitContext())
    (outcome,) = alone([{"data": 1}])
    assert "cannot be called" in str(outcome)


def test_explain_says_while_what_it_waits():
    tree = headrace.explain({"backend": "S[Passes,Takes(q)]"})["nodes"]["main"]["tree"]
    assert [one.get("waits") for one in tree["children"]] == [
        None,
        "holds its instance while box 'q' is empty",
    ]


def test_what_uses_the_pipeline_is_refused_in_another_process():
    found = problem({"backend": "Process[Gives(q)]"})
    assert found.code == "elsewhere"
    assert found.message.startswith("Gives cannot stand in Process: it reaches for something")


# A container, with the functions of `headrace.words`.


class RunsTwice(headrace.Backend):
    """Run its child on the items that have a key, and pass the others by."""

    takes = 1
    bracket = words.Bracket(combine_ranges=words.combine_ranges)

    def init(self, options, context):
        (self.child,) = context.children
        self.pad = context.batch.pad

    def forward(self, batch):
        outcomes = [None] * len(batch)
        chosen = words.select(batch, range(len(batch)), lambda one: one["go"], outcomes)
        words.run_child(self.child, batch, chosen, outcomes, pad=self.pad)
        rest = [i for i in range(len(batch)) if i not in chosen]
        words.select(batch, rest, lambda one: one.update(result="passed"), outcomes)
        return outcomes


@pytest.mark.parametrize("pad", [False, True])
def test_a_part_of_a_batch_is_filled_up_or_fails_alone(pad):
    seen = []

    class PairsHere(Passes):
        min, max = 2, 4

        def forward(self, batch):
            seen.append(len(batch))
            super().forward(batch)

    headrace.register("PairsHere", PairsHere, replace=True)
    headrace.register("RunsTwice", RunsTwice, replace=True)
    config = {
        "backend": "RunsTwice[PairsHere]",
        "max": 3,
        "min": 3,
        "pad": pad,
        "batching_timeout": 1e9,
    }
    with headrace.pipe(config) as pipe:
        requests = [{"data": 1, "go": True}, {"data": 2, "go": False}, {"data": 3}]
        with pytest.raises(errors.RequestsFailed) as caught:
            pipe(requests)
    first, second, third = caught.value.errors
    assert second is None
    assert requests[1]["result"] == "passed"
    assert isinstance(third.__cause__, KeyError)  # of its dict, and its own
    assert seen == ([2] if pad else [])
    assert first is None if pad else isinstance(first, errors.BatchRangeError)


def test_a_child_that_takes_one_is_called_item_by_item():
    seen = []

    class TakesOne(Passes):
        max = 1

        def forward(self, batch):
            seen.append([one["data"] for one in batch])
            super().forward(batch)

    headrace.register("TakesOne", TakesOne, replace=True)
    headrace.register("RunsTwice", RunsTwice, replace=True)
    with headrace.pipe(
        {"backend": "RunsTwice[S[TakesOne,Passes]]", "max": 3, "min": 3, "batching_timeout": 1e9}
    ) as pipe:
        pipe([{"data": k, "go": True} for k in range(3)])
    assert seen == [[0], [1], [2]]


def test_copies_are_left_out_where_they_are_to_be():
    seen = []

    class Looks(Passes):
        min = 3

        def forward(self, batch):
            places = range(len(batch))
            for fillers in (True, False):
                outcomes = [None] * len(batch)
                seen.append(words.select(batch, places, lambda _: True, outcomes, fillers=fillers))
            super().forward(batch)

    headrace.register("Looks", Looks, replace=True)
    with headrace.pipe({"backend": "Looks", "pad": True, "max": 4}) as pipe:
        pipe({"data": 1})
    assert seen == [[0, 1, 2], [0]]


def test_copies_bring_a_batch_into_the_range_of_a_child():
    child = Passes()
    child.min, child.max = 4, 4
    batch = [{"data": 1, "result": 0}, {"data": 2, "request_size": 2}]
    filled = words.fill_up(batch, child)
    assert filled[:2] == batch
    assert filled[2:] == [{"data": 1}]
    assert words.fill_up([{"data": 1, "request_size": 3}], child) is None


def test_ranges_of_children_make_that_of_the_container():
    class Child:
        conditional = False

        def __init__(self, name, least, most):
            self.name, self.range = name, (least, most)

    wide, narrow, one = Child("A", 1, None), Child("B", 2, 8), Child("C", 1, 1)
    assert words.combine_ranges([wide, narrow, one]) == (2, 8)
    assert words.combine_ranges([one, one]) == (1, 1)


@pytest.mark.parametrize("built", [False, True], ids=["the class says", "init says"])
@pytest.mark.parametrize("gives", [(), ("{option}",), ("mask", "noise")])
def test_what_a_container_gives_to_its_child_no_request_has_to_bring(gives, built):
    class Masks(headrace.Backend):
        takes = 1

        class Options(headrace.Options):
            option: dict[str, str] = pydantic.Field({"x": "mask"}, description="Keys by name.")

        def init(self, options, context):
            self.reads = ()
            (self.child,) = context.children
            if built:
                self.bracket = dataclasses.replace(self.bracket, gives=gives)

        def forward(self, batch):
            for request in batch:
                request["mask"] = request["noise"] = 1
            return self.child(batch)

    class Needs(headrace.Backend):
        reads = ("image", "mask")

        def forward(self, batch):
            for request in batch:
                request["result"] = request["image"] + request["mask"]

    if not built:
        Masks.bracket = words.Bracket(gives=gives)
    headrace.register("Masks", Masks, replace=True)
    headrace.register("Needs", Needs, replace=True)
    with headrace.pipe({"backend": "Masks[Needs]"}) as pipe:
        with pytest.raises(errors.InputError, match="no 'image'"):
            pipe({"mask": 1})
        if gives:
            assert pipe({"image": 1})["result"] == 2
        else:
            with pytest.raises(errors.InputError, match="no 'mask'"):
                pipe({"image": 1})


def test_an_instance_sees_what_the_others_run_with_what_enter_returned():
    assert headrace.InitContext().request.alongside() == []
    began, ends, seen = threading.Semaphore(0), threading.Semaphore(0), []

    class Sees(headrace.Backend):
        max = 1

        @staticmethod
        def enter(request):
            return -request["data"]

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            if batch[0]["data"] == 3:
                seen.extend(self.context.request.alongside())
            began.release()
            assert ends.acquire(timeout=60)
            batch[0]["result"] = None

    headrace.register("Sees", Sees, replace=True)
    with headrace.pipe({"backend": "Sees", "instance_num": 3}) as pipe:
        requests = [{"data": number} for number in (1, 2, 3)]
        futures = []
        for one in requests:
            futures.append(pipe.submit(one))
            assert began.acquire(timeout=60)
        assert sorted(number for _, number in seen) == [-2, -1]
        assert all(any(handle.request is request for handle, _ in seen) for request in requests[:2])
        ends.release(3)
        for one in futures:
            one.result(60)
