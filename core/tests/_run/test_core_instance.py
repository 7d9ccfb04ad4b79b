"""What an instance has of its own: stores, the end of its batches, and its own end."""

from __future__ import annotations

import pickle
import threading

import internals
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from late import Either
from sending import Leaves

import headrace
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    InputError,
    InstanceLostError,
    RequestsFailed,
    SetupError,
)


class Closes:
    """Something that is noted when it is closed."""

    def __init__(self, name, log):
        self.name, self._log = name, log

    def close(self):
        self._log.append((self.name, threading.get_ident()))


@pytest.fixture
def stores():
    """Register ``Stores``, which keeps a named object in a store; give what was found and closed."""
    found, closed = [], []

    class Stores(headrace.Backend):
        class Options(headrace.Options):
            positional = ("name", "where")
            name: str = pydantic.Field("x", description="The key.")
            where: str = pydantic.Field("instance", description="The store.")

        max = None

        def init(self, options, context):
            self.name = options.name
            store = getattr(context.store, options.where)
            made = store.get_or_create(options.name, lambda: Closes(options.name, closed))
            found.append((options.name, made, context))
            self.made = made

        def forward(self, batch):
            for request in batch:
                request["result"] = self.made

        def close(self):
            closed.append((f"backend {self.name}", threading.get_ident()))

    class Owns(Stores):
        owns_thread = True

    headrace.register(Stores)
    headrace.register(Owns)
    found_closed = type("Found", (), {})()
    found_closed.made, found_closed.closed, found_closed.cls = found, closed, Stores
    return found_closed


def test_each_instance_has_a_store_of_its_own(stores):
    with headrace.pipe({"backend": "S[Stores(a),Stores(a)]", "instance_num": 3}):
        made = [one for _, one, _ in stores.made]
        assert made[0] is made[1]
        assert len({id(one) for one in made}) == 3
        contexts = [context for _, _, context in stores.made]
        assert contexts[0].store.instance is contexts[1].store.instance is contexts[0].store.scope
        assert contexts[0].store.instance is not contexts[2].store.instance
    assert [name for name, _ in stores.closed].count("a") == 3


@pytest.mark.parametrize(
    ("backend", "own"),
    [
        ("S[Stores(a),Stores(b)]", False),
        ("S[Owns(a),Stores(b)]", True),
        ("S[Stores(a),BackgroundThread[Stores(b)]]", True),
        ("BackgroundThread[IoC[Owns(a,scope);Stores(b)]]", True),
    ],
)
def test_a_store_is_closed_after_the_backends_in_the_thread_of_the_instance(stores, backend, own):
    class Thread(headrace.Backend):
        def init(self, options, context):
            stores.home = threading.get_ident()

        def forward(self, batch):
            """Never called."""

    headrace.register(Thread)
    with headrace.pipe({"backend": backend.replace("Stores(b)", "S[Thread,Stores(b)]")}):
        pass
    order = [name for name, _ in stores.closed]
    assert sorted(order[:2]) == ["backend a", "backend b"]
    assert sorted(order[2:]) == ["a", "b"]
    closed_in = {ident for name, ident in stores.closed if name in "ab"}
    assert len(closed_in) == 1
    if own:
        assert closed_in == {stores.home}
    assert (stores.home != threading.get_ident()) is own


def test_a_build_that_fails_closes_its_stores_in_their_thread(stores):
    class Fails(headrace.Backend):
        def init(self, options, context):
            stores.home = threading.get_ident()
            raise RuntimeError("no device")

        def forward(self, batch):
            """Never called."""

    headrace.register(Fails)
    with pytest.raises(SetupError, match="no device"):
        headrace.pipe({"backend": "S[Owns(a),Fails]"})
    assert stores.closed == [("backend a", stores.home), ("a", stores.home)]


def test_a_scope_looks_outwards_and_makes_its_own(stores):
    headrace.register("Outer", type("Outer", (stores.cls,), {}))
    headrace.register("Inner", type("Inner", (stores.cls,), {}))
    backend = "S[Stores(a),IoC[Outer(b,scope);IoC[Inner(c,scope);S[Stores(b,scope),Stores(a)]]]]"
    with headrace.pipe({"backend": backend}):
        (_, a, _), (_, b, outer), (_, c, inner), (_, b_again, _), (_, a_again, _) = stores.made
        assert a is a_again
        assert b is not b_again
        assert (
            inner.store.scope.get("a"),
            inner.store.scope.get("b"),
            inner.store.scope.get("c"),
        ) == (a, b_again, c)
        assert (outer.store.scope.get("a"), outer.store.scope.get("b")) == (a, b)
        assert outer.store.scope.get("c") is None
        assert inner.store.instance.get("b", "nothing") == "nothing"
        assert inner.store.scope.get("unknown", 7) == 7
    names = [name for name, _ in stores.closed]
    assert names.index("backend c") < names.index("c") < names.index("a") == len(names) - 1


def test_the_store_of_a_node_is_closed_after_all_that_stands_in_it(stores):
    config = {"main": {"backend": "Stores(a,node)", "instance_num": 2}}
    with headrace.pipe(config):
        assert len({id(made) for _, made, _ in stores.made}) == 1
    names = [name for name, _ in stores.closed]
    assert names == ["backend a", "backend a", "a"]


@pytest.mark.parametrize("raised", [KeyError, KeyboardInterrupt])
def test_all_that_a_store_holds_is_closed_and_no_error_of_it_is_lost(raised, caplog):
    class Fails:
        def __init__(self, error):
            self.error = error

        def close(self):
            closed.append(self.error)
            raise self.error

    closed, store = [], headrace.InitContext().store.node
    errors = [ValueError("oldest"), raised("middle"), RuntimeError("newest")]
    for error in errors:
        store.get_or_create(error, lambda error=error: Fails(error))
    with pytest.raises((RuntimeError, KeyboardInterrupt)) as caught:
        store.close()
    assert closed == errors[::-1]
    assert caught.value is (errors[2] if raised is KeyError else errors[1])
    logged = {record.exc_info[1] for record in caplog.records}
    assert logged == {*errors} - {caught.value}
    store.close()
    assert len(closed) == 3
    with pytest.raises(headrace.errors.ClosedError, match="keep 'late' is closed"):
        store.get_or_create("late", lambda: closed.append("made"))
    assert len(closed) == 3


def test_a_stored_none_is_found():
    store = headrace.InitContext().store.instance
    assert store.get_or_create("key", lambda: None) is None
    assert store.get("key", "default") is None


def test_a_context_of_its_own_has_stores_too():
    context = headrace.InitContext()
    assert context.store.scope is context.store.instance
    assert context.allow_import is True
    context.batch.at_end(lambda: None)


# The end of a batch.


class Box:
    """A result on a device: unfinished until the device was waited for."""

    def __init__(self, value):
        self.value, self.done = value, False


@pytest.fixture
def device():
    """Register ``Device``, whose work is done when the batch is told, and ``Read``, which looks."""
    control = type("Control", (), {})()
    control.calls, control.raises, control.idents = [], {}, {}

    class Device(headrace.Backend):
        class Options(headrace.Options):
            positional = ("name",)
            name: str = pydantic.Field("d", description="In the list of calls.")

        max = None
        rerun = True

        def init(self, options, context):
            self.name, self.begun = options.name, []
            context.batch.at_end(self.finish)

        def forward(self, batch):
            control.idents[self.name] = threading.get_ident()
            for request in batch:
                data = request["data"]
                value = data.value if isinstance(data, Box) else data
                if value == "bad":
                    raise ValueError("bad data")
                request["result"] = Box(value)
                self.begun.append(request["result"])

        def finish(self):
            # Where it has not run in this batch yet there is no thread to compare with.
            assert control.idents.pop(self.name, threading.get_ident()) == threading.get_ident()
            control.calls.append(self.name)
            begun, self.begun = self.begun, []
            for box in begun:
                box.done = True
            if self.name in control.raises:
                raise control.raises.pop(self.name)

    class OwnDevice(Device):
        owns_thread = True

    class Read(headrace.Backend):
        max = None

        def forward(self, batch):
            for request in batch:
                if not request["data"].done:
                    raise RuntimeError("read before the device was waited for")
                request["result"] = request["data"]

    for one in (Device, OwnDevice, Read):
        headrace.register(one)
    return control


@pytest.mark.parametrize("backend", ["Device", "OwnDevice", "S[Device,Identity]"])
@pytest.mark.parametrize("way", ["call", "submit", "list"])
def test_the_end_is_called_once_per_batch(device, backend, way, shortcut):
    with headrace.pipe({"backend": backend, "max": 8}) as pipe:
        assert device.calls == []
        for _ in range(3):
            if way == "call":
                results = [pipe({"data": 1})["result"]]
            elif way == "submit":
                results = [pipe.submit({"data": 1}).result()["result"]]
            else:
                results = [r["result"] for r in pipe([{"data": k} for k in range(8)])]
            assert all(box.done for box in results)
        assert len(device.calls) == pipe.stats()["nodes"]["main"]["batches"]


@pytest.mark.parametrize(
    ("backend", "calls"),
    [
        ("S[Device(a),Forward[node.x]]", ["a"]),
        ("S[Device(a),Forward[node.x],Device(b)]", ["a", "b", "a", "b"]),
        ("S[Device(a),BackgroundThread[Read]]", ["a"]),
        ("S[Device(a),BackgroundThread[S[Device(b),Identity]]]", ["a", "b"]),
        ("S[BackgroundThread[Device(a)],Read,Device(b)]", ["a", "b"]),
        ("S[BackgroundThread[Device(a)],Read,BackgroundThread[Device(b)]]", ["a", "b"]),
        ("S[Device(a),(key=data)Forward[node.x]]", None),
        ("S[Device(a),Either[Forward[node.x],Identity]]", None),
        ("IoC[Device(a);S[Device,Forward[node.x]]]", ["a"]),
        ("CatSplit[Device(a),BackgroundThread[Read],Identity]", None),
    ],
)
def test_before_anything_leaves_the_instance(device, backend, calls, shortcut):
    headrace.register(Either)
    config = {"main": {"backend": backend}, "x": {"backend": "Read"}}
    with headrace.pipe(config) as pipe:
        for _ in range(2):
            device.calls.clear()
            assert pipe({"data": 1, "node_name": "main"})["result"].done
            if calls is not None:
                assert device.calls == calls


def test_an_item_without_company_is_told_of_as_well(device):
    """A last element that takes items one by one lets each go by itself, after one wait."""

    class One(headrace.Backend):
        max = 1

        def forward(self, batch):
            assert batch[0]["data"].done
            batch[0]["result"] = batch[0]["data"]

    headrace.register(One)
    with headrace.pipe({"backend": "S[Device(a),BackgroundThread[One]]", "max": 4}) as pipe:
        pipe([{"data": k} for k in range(4)])
        assert len(device.calls) == pipe.stats()["nodes"]["main"]["batches"]


def test_before_what_uses_the_pipeline_gives_something_away(device):
    given = []

    class Gives(headrace.Backend):
        uses_pipeline = True

        def forward(self, batch):
            for request in batch:
                given.append(request["data"].done)
                request["result"] = request["data"]

    headrace.register("Gives", Gives, replace=True)
    with headrace.pipe({"backend": "S[Device(a),Gives,Device(b)]"}) as pipe:
        assert pipe({"data": 1})["result"].done
    assert given == [True]


def test_before_a_next_node_and_where_a_request_goes_on_elsewhere(device, shortcut):
    headrace.register("Leaves", Leaves, replace=True)
    config = {
        "a": {"backend": "S[Device(a),Leaves(node=b)]"},
        "b": {"backend": "S[Read,Device(b)]", "next": "c"},
        "c": {"backend": "Read"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 1, "node_name": "a"})["result"].done
        assert pipe.submit({"data": 1, "node_name": "a"}).result()["result"].done
    assert device.calls == ["a", "b"] * 2


@pytest.mark.parametrize("backend", ["Device", "OwnDevice", "S[Device,BackgroundThread[Read]]"])
def test_what_it_raises_fails_the_items_that_have_not_failed(device, backend, shortcut):
    with headrace.pipe({"backend": backend, "max": 4}) as pipe:
        cause = device.raises["d"] = RuntimeError("illegal access")
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": k} for k in (1, "bad", 3)])
        errors = failed.value.errors
        assert isinstance(errors[1].__cause__, ValueError)
        for error in (errors[0], errors[2]):
            assert type(error) is BackendError
            assert error.__cause__ is cause
            assert (error.node, error.instance) == ("main", 0)
            assert error.backend in ("Device", "OwnDevice")
            assert "illegal access" in str(error)
        assert errors[0] is not errors[2]
        assert pipe({"data": 4})["result"].done
        stats = pipe.stats()
        assert stats["nodes"]["main"]["failed"] == {"backend": 3}
        assert stats["state"] == "ready"


def test_the_others_are_called_although_one_raises(device):
    with headrace.pipe({"backend": "S[Device(a),Device(b),Device(c)]"}) as pipe:
        device.raises["a"], device.raises["b"] = InputError("first"), RuntimeError("second")
        with pytest.raises(BackendError, match="first") as error:
            pipe({"data": 1})
        assert not isinstance(error.value, InputError)
        assert error.value.__cause__.what == "first"
        assert device.calls == ["a", "b", "c"]
        assert pipe({"data": 1})["result"].done


def test_an_interrupt_waits_for_what_has_begun(device):
    class Interrupted(headrace.Backend):
        def forward(self, batch):
            if batch[0]["data"].value == "interrupt":
                raise KeyboardInterrupt

    headrace.register(Interrupted)
    backend = "S[Device(a),Interrupted]"
    with headrace.pipe({"backend": backend}) as pipe, pytest.raises(KeyboardInterrupt):
        pipe({"data": "interrupt"})
    assert device.calls == ["a"]


def test_not_after_a_batch_that_nobody_ran(device):
    config = {"backend": "Device", "min": 2, "max": 4}
    with headrace.pipe(config) as pipe, pytest.raises(BatchRangeError):
        pipe({"data": 1})
    with pytest.raises(ClosedError):
        pipe({"data": 1})
    assert device.calls == []


def test_only_in_init():
    kept = []

    class Late(headrace.Backend):
        def init(self, options, context):
            kept.append(context)

        def warm_up(self):
            kept[0].batch.at_end(print)

        def forward(self, batch):
            """Never called."""

    class NoFunction(Late):
        def init(self, options, context):
            context.batch.at_end("print")

    headrace.register(Late)
    headrace.register(NoFunction)
    with pytest.raises(SetupError, match="at_end was called after init") as late:
        headrace.pipe({"backend": "Late"})
    assert (late.value.node, late.value.backend) == ("main", "Late")
    with pytest.raises(SetupError, match="takes a function, got 'print'"):
        headrace.pipe({"backend": "NoFunction"})


def test_one_that_could_not_be_built_is_not_called(device):
    class Fails(headrace.Backend):
        def init(self, options, context):
            raise RuntimeError("not here")

        def forward(self, batch):
            """Never called."""

    headrace.register(Fails)
    headrace.register(Either)
    with headrace.pipe({"backend": "Either[S[Device(a),Fails],Device(b)]"}) as pipe:
        pipe({"data": 1})
    assert device.calls == ["b"]


def test_it_belongs_to_the_forward_time(device, monkeypatch):
    """By a clock that only ``finish`` moves on."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(internals.batches, "time", clock)

    class Slow(headrace.Backend):
        def init(self, options, context):
            context.batch.at_end(self.finish)

        def forward(self, batch):
            batch[0]["result"] = 1

        def finish(self):
            clock.now += 0.25

    headrace.register(Slow)
    with headrace.pipe({"backend": "Slow"}) as pipe:
        pipe({"data": 1})
        pipe.submit({"data": 1}).result()
        assert pipe.stats()["nodes"]["main"]["forward_ms"]["mean"] == pytest.approx(250)


# An instance that is lost.


@pytest.fixture
def losing():
    """Register ``Loses``, which is lost where it is told to; give what tells it."""
    control = type("Control", (), {})()
    control.ran, control.at_end = [], set()

    class Loses(headrace.Backend):
        max = None
        rerun = True

        def init(self, options, context):
            self.index = context.instance_index
            context.batch.at_end(self.finish)

        def forward(self, batch):
            control.ran.append(self.index)
            words = [request["data"] for request in batch]
            if "lost" in words:
                raise InstanceLostError("the context is gone")
            for request in batch:
                request["result"] = request["data"]
            if "returned" in words:
                lost = InstanceLostError("the context is gone")
                return [lost if word == "returned" else None for word in words]
            if "end" in words:
                control.at_end.add(self.index)
            return None

        def finish(self):
            if self.index in control.at_end:
                raise InstanceLostError("the context is gone")

    class OwnLoses(Loses):
        owns_thread = True

    headrace.register(Loses)
    headrace.register(OwnLoses)
    return control


def state_of(pipe, node="main"):
    stats = pipe.stats()
    return stats["state"], [one["alive"] for one in stats["nodes"][node]["instances"]]


@pytest.mark.parametrize("how", ["lost", "returned", "end"])
@pytest.mark.parametrize(
    "backend",
    [
        "Loses",
        "OwnLoses",
        "S[Identity,Loses]",
        "S[Identity,BackgroundThread[Loses]]",
        "CatSplit[Identity,Loses,Identity]",
        "IoC[Loses;S[Identity,Loses]]",
    ],
)
def test_an_instance_that_is_lost_gets_no_further_batch(losing, backend, how, shortcut):
    config = {"backend": backend, "instance_num": 2, "max": 4}
    with headrace.pipe(config) as pipe:
        assert state_of(pipe) == ("ready", [True, True])
        with pytest.raises(InstanceLostError, match="the context is gone") as error:
            pipe({"data": how})
        assert error.value.code == "instance_lost"
        assert isinstance(error.value, BackendError)
        assert error.value.node == "main"
        lost = error.value.instance
        assert state_of(pipe) == ("degraded", [index != lost for index in range(2)])
        assert pipe.ready
        losing.ran.clear()
        for k in range(6):
            assert pipe({"data": k})["result"] == k
            assert pipe.submit({"data": k}).result()["result"] == k
        assert set(losing.ran) == {1 - lost}
        with pytest.raises(InstanceLostError):
            pipe({"data": how})
        assert not pipe.ready
        for call in (lambda: pipe({"data": 1}), lambda: pipe.submit({"data": 1}).result(60)):
            with pytest.raises(BackendError, match="no instance that could take the request"):
                call()


@pytest.mark.parametrize("own", ["Gate", "OwnGate"])
def test_what_waits_for_the_last_one_fails_at_once(gate, waiting, client, own):
    gate.raises["lost"] = InstanceLostError("gone")
    with headrace.pipe({"backend": own, "max": 1}) as pipe:
        first = gate.entered(client(pipe, {"data": "lost"}))
        others = [client(pipe, {"data": k}) for k in range(3)]
        futures = [pipe.submit({"data": k}) for k in range(3)]
        waiting(pipe, 6)
        gate.let_go()
        for one in (first, *others):
            with pytest.raises(InstanceLostError):
                one.outcome()
        assert all(isinstance(one.exception(60), InstanceLostError) for one in futures)
        assert len(gate.batches) == 1


def test_the_items_of_a_lost_batch_are_not_run_again(losing):
    with headrace.pipe({"backend": "Loses", "max": 4}) as pipe:
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": word} for word in ("a", "lost", "b")])
        assert [type(error) for error in failed.value.errors] == [InstanceLostError] * 3
        assert len(losing.ran) == 1


def test_the_instance_of_another_node_is_lost_not_this_one(losing, shortcut):
    config = {
        "main": {"backend": "S[Identity,Forward[node.x]]"},
        "x": {"backend": "Loses", "instance_num": 2},
    }
    with headrace.pipe(config) as pipe:
        with pytest.raises(InstanceLostError) as error:
            pipe({"data": "lost", "node_name": "main"})
        assert error.value.node == "x"
        assert state_of(pipe, "main") == ("degraded", [True])
        assert sorted(state_of(pipe, "x")[1]) == [False, True]
        assert pipe({"data": 1, "node_name": "main"})["result"] == 1


def test_an_instance_is_lost_with_what_is_lost_in_its_process(tmp_path):
    (tmp_path / "far.py").write_text(
        "import headrace\n"
        "@headrace.register('FarLoses')\n"
        "class FarLoses(headrace.Backend):\n"
        "    def forward(self, batch):\n"
        "        raise headrace.errors.InstanceLostError('the context is gone')\n"
    )
    config = {"import": [str(tmp_path / "far.py")], "backend": "S[Identity,Process[FarLoses]]"}
    with headrace.pipe(config) as pipe:
        with pytest.raises(InstanceLostError, match="the context is gone") as error:
            pipe({"data": 1})
        assert error.value.node == "main"
        assert state_of(pipe) == ("degraded", [False])


# Code that is brought in.


@pytest.mark.parametrize(
    ("argument", "variable", "allowed"),
    [(True, None, True), (False, None, False), (True, "0", False), (True, "1", True)],
)
def test_a_backend_knows_whether_code_may_be_brought_in(monkeypatch, argument, variable, allowed):
    class Says(headrace.Backend):
        def init(self, options, context):
            self.allowed = context.allow_import

        def forward(self, batch):
            for request in batch:
                request["result"] = self.allowed

    headrace.register(Says)
    if variable is not None:
        monkeypatch.setenv("HEADRACE_IMPORT", variable)
    with headrace.pipe({"backend": "Says"}, allow_import=argument) as pipe:
        assert pipe({"data": 1})["result"] is allowed
        copy = pickle.loads(pickle.dumps(pipe.config))
    with headrace.pipe(copy) as pipe:
        assert pipe({"data": 1})["result"] is allowed
    with headrace.pipe(copy, allow_import=False) as pipe:
        assert pipe({"data": 1})["result"] is False


def test_an_element_knows_which_class_alone_takes_what_it_writes():
    found = []

    class Told(headrace.Backend):
        def init(self, options, context):
            found.append((type(self).__name__, context.expression.followed_by))

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    class First(Told):
        pass

    class Last(Told):
        pass

    for cls in (First, Last):
        headrace.register(cls.__name__, cls, replace=True)

    def endings(expression):
        found.clear()
        with headrace.pipe({"backend": expression}) as pipe:
            pipe({"data": 1})
        return dict(found)

    assert endings("S[First,Last]") == {"First": Last, "Last": None}
    assert endings("S[S[First],Last]") == {"First": Last, "Last": None}
    assert endings("S[First,(or)Last]") == {"First": None, "Last": None}
    assert endings("S[BackgroundThread[First],Last]")["First"] is None
    assert endings("S[First,BackgroundThread[Last]]")["Last"] is None
    assert endings("First") == {"First": None}
    assert endings("IoC[First;Last]") == {"First": None, "Last": None}


@given(st.lists(st.floats(0.01, 1e4), min_size=1), st.sampled_from((0.25, 0.5, 0.9, 0.99, 1.0)))
def test_a_percentile_is_the_least_duration_that_the_share_does_not_exceed(durations, share):
    timings = internals.Timings()
    for one in durations:
        timings.add(one)
    ordered = sorted(durations)
    least = next(one for k, one in enumerate(ordered, 1) if k >= share * len(ordered))
    assert timings.percentile(share) == pytest.approx(least, rel=0.1)
    assert timings.count == len(durations)
