"""Reload: new instances in place of the old ones while requests go on, all of it or nothing."""

from __future__ import annotations

import gc
import pickle
import signal
import threading
import weakref
from functools import partial
from typing import ClassVar

import internals
import pytest
from loading import refused

import headrace
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ConfigError,
    ContractError,
    DeadlineExceededError,
    SetupError,
)
from headrace.hookspecs import attached
from headrace_testing import Failing

FAILS_LATE_S = 60.0

pytestmark = pytest.mark.usefixtures("shortcut")


class Control:
    """What a test sees and steers of the backend ``Versioned``, by version.

    Attributes:
        built, closed: ``(version, index)`` of each instance, in the order of init and close.
        threads: Identifiers of the threads in which instances ran ``close``.
        batches: ``(version, data of the batch)``.
        slow: Versions whose init waits.
        broken: Per version what its init raises.
        held: Data whose batch waits.
        calls: Per version what its init calls.
        during: Per data what its batch calls, once.
        cancelled: Versions that were asked to give up while their init waited.
    """

    def __init__(self):
        self.built, self.closed, self.batches = [], [], []
        self.threads = []
        self.stores = []
        self.slow, self.cancelled = set(), set()
        self.held = ["old"]
        self.broken, self.calls, self.during = {}, {}, {}
        self._building = threading.Semaphore(0)
        self._build = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)
        self._leave = threading.Semaphore(0)
        self._closes = threading.Semaphore(0)

    def wait_building(self):
        assert self._building.acquire(timeout=FAILS_LATE_S), "nothing is built"

    def let_build(self, times=1):
        self._build.release(times)

    def wait_entered(self, times=1):
        for _ in range(times):
            assert self._entered.acquire(timeout=FAILS_LATE_S), "no batch began"

    def entered(self, sent):
        """Return what was sent, once a batch that waits has begun."""
        self.wait_entered()
        return sent

    def let_go(self, times=1):
        self._leave.release(times)

    def wait_closed(self, times=1):
        for _ in range(times):
            assert self._closes.acquire(timeout=FAILS_LATE_S), "nothing was closed"


class Store:
    def __init__(self, control, version):
        self.control, self.version = control, version

    def close(self):
        self.control.stores.append(self.version)


@pytest.fixture
def control():
    steer = Control()

    class Versioned(headrace.Backend):
        """Gives the version and the data."""

        class Options(headrace.Options):
            version: int = 1
            most: int = 8

        def init(self, options, context):
            self.version, self.index = options.version, context.instance_index
            self.max = options.most
            steer.built.append((self.version, self.index))
            if self.version in steer.calls:
                steer.calls[self.version]()
            if self.version in steer.slow:
                steer._building.release()
                assert steer._build.acquire(timeout=FAILS_LATE_S), "nobody let it build"
                if context.cancelled():
                    steer.cancelled.add(self.version)
            if self.version in steer.broken:
                raise steer.broken[self.version]
            context.shared.get_or_create("store", lambda: Store(steer, self.version))

        def forward(self, batch):
            steer.batches.append((self.version, [request["data"] for request in batch]))
            for request in batch:
                steer.during.pop(request["data"], int)()
            if any(request["data"] in steer.held for request in batch):
                steer._entered.release()
                assert steer._leave.acquire(timeout=FAILS_LATE_S), "nobody let the batch go"
            for request in batch:
                request["result"] = (self.version, request["data"])

        def close(self):
            steer.closed.append((self.version, self.index))
            steer.threads.append(threading.current_thread().name)
            steer._closes.release()

    class OwnVersioned(Versioned):
        owns_thread = True

    headrace.register("Versioned", Versioned, replace=True)
    headrace.register("OwnVersioned", OwnVersioned, replace=True)
    yield steer
    steer._leave.release(64)
    steer._build.release(64)


def main_of(pipe):
    return pipe.stats()["nodes"]["main"]


def test_new_values_are_seen_everywhere_and_the_old_instances_are_closed(control):
    with headrace.pipe({"backend": "Versioned", "max": 4, "instance_num": 2}) as pipe:
        assert pipe({"data": 0})["result"] == (1, 0)
        before = pipe.config
        pipe.reload("main", {"version": 2, "instance_num": 3, "batching_timeout": 1.5})
        assert control.closed == [(1, 1), (1, 0)]
        assert control.stores == [1]
        assert pipe({"data": 0})["result"] == (2, 0)
        assert pipe.submit({"data": 1}).result(FAILS_LATE_S)["result"] == (2, 1)
        wanted = {
            "backend": "Versioned",
            "max": 4,
            "instance_num": 3,
            "version": 2,
            "batching_timeout": 1.5,
        }
        assert pipe.config.to_dict() == wanted
        assert pickle.loads(pickle.dumps(pipe.config)).to_dict() == wanted
        assert before.to_dict()["instance_num"] == 2
        node = pipe.describe()["nodes"]["main"]
        assert node["instance_num"] == 3
        assert node["tree"]["options"]["version"] == {"value": 2, "origin": "node"}
        explained = headrace.explain(pipe.config)["nodes"]["main"]
        assert explained["tree"]["options"]["version"]["value"] == 2
        assert [one["index"] for one in main_of(pipe)["instances"]] == [0, 1, 2]
        pipe.reload(
            "main", {"version": None, "Versioned::most": 3, "max": None, "min": None, "most": None}
        )
        assert pipe({"data": 0})["result"] == (1, 0)
        assert pipe.describe()["nodes"]["main"]["range"] == [1, 3]
    assert sorted(control.built) == sorted(control.closed)


def test_without_changes_the_node_is_built_again(control):
    with headrace.pipe({"backend": "Versioned"}) as pipe:
        pipe.reload("main", {})
        assert control.built == [(1, 0), (1, 0)]
        assert control.closed == [(1, 0)]


def test_requests_flow_while_the_new_ones_are_built(control, client):
    control.slow.add(2)
    with headrace.pipe({"backend": "Versioned"}) as pipe:
        reload = client(pipe.reload, "main", {"version": 2})
        control.wait_building()
        assert pipe({"data": 1})["result"] == (1, 1)
        assert pipe.submit({"data": 2}).result(FAILS_LATE_S)["result"] == (1, 2)
        assert pipe({"data": 3}, timeout=FAILS_LATE_S)["result"] == (1, 3)
        assert pipe.config.to_dict() == {"backend": "Versioned"}
        control.let_build()
        reload.outcome()
        assert pipe({"data": 4})["result"] == (2, 4)


@pytest.mark.parametrize("backend", ["Versioned", "OwnVersioned"])
@pytest.mark.parametrize("way", ["call", "submit", "timeout"])
def test_an_old_instance_is_closed_when_its_batch_ends_and_who_waits_goes_to_the_new(
    control, client, waiting, backend, way
):
    with headrace.pipe({"backend": backend}) as pipe:
        if way == "submit":
            old = client(pipe.submit({"data": "old"}).result, FAILS_LATE_S)
        else:
            old = client(pipe, {"data": "old"}, timeout=FAILS_LATE_S if way == "timeout" else None)
        control.wait_entered()
        queued = client(pipe, {"data": "queued"})
        waiting(pipe, 1)
        reload = client(pipe.reload, "main", {"version": 2})
        assert queued.outcome()["result"] == (2, "queued")
        assert pipe({"data": "late"})["result"] == (2, "late")
        assert control.closed == []
        assert reload.is_alive()
        assert main_of(pipe)["submitted"] == 3
        control.let_go()
        assert old.outcome()["result"] == (1, "old")
        reload.outcome()
        assert control.closed == [(1, 0)]
        stats = main_of(pipe)
        assert (stats["ok"], stats["batches"], stats["waiting"]) == (3, 3, 0)
    assert control.closed == [(1, 0), (2, 0)]
    if backend == "OwnVersioned":
        assert all(name == "headrace-main-0" for name in control.threads)


def test_the_store_of_the_old_instances_goes_with_the_last_of_them(control, client):
    with headrace.pipe({"backend": "Versioned", "instance_num": 2}) as pipe:
        old = control.entered(client(pipe, {"data": "old"}))
        reload = client(pipe.reload, "main", {"version": 2})
        control.wait_closed()
        assert len(control.closed) == 1
        assert control.stores == []
        control.let_go()
        old.outcome()
        reload.outcome()
        assert control.stores == [1]
    assert control.stores == [1, 2]


@pytest.mark.parametrize("where", ["init", "warm_up"])
def test_when_the_new_ones_fail_the_old_ones_stay_and_all_that_was_built_is_closed(
    control, where, monkeypatch
):
    config = {"backend": "S[Versioned,Second]", "instance_num": 2}

    class Second(headrace.Backend):
        class Options(headrace.Options):
            breaks: bool = False

        def init(self, options, context):
            self.breaks = options.breaks and context.instance_index == 1
            if self.breaks and where == "init":
                raise ValueError("no memory")

        def warm_up(self):
            if self.breaks:
                raise ValueError("no memory")

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Second", Second, replace=True)
    with headrace.pipe(config) as pipe:
        before = pipe.config
        with pytest.raises(SetupError, match="no memory") as caught:
            pipe.reload("main", {"version": 2, "breaks": True})
        assert caught.value.node == "main"
        assert caught.value.instance == 1
        assert pipe.config is before
        assert sorted(control.closed) == [(2, 0), (2, 1)]
        assert pipe({"data": 1})["result"] == (1, 1)
        assert pipe.stats()["state"] == "ready"
        pipe.reload("main", {"version": 3})
        assert pipe({"data": 1})["result"] == (3, 1)


def test_ranges_that_leave_a_hole_are_refused_before_anything_changes():
    class Holey(headrace.Backend):
        class Options(headrace.Options):
            step: int = 0

        def init(self, options, context):
            self.min = 1 + options.step * context.instance_index
            self.max = self.min + 1

        def forward(self, batch):
            for request in batch:
                request["result"] = self.max

    headrace.register("Holey", Holey, replace=True)
    with headrace.pipe({"backend": "Holey", "instance_num": 2}) as pipe:
        for step, hole in ((9, "3 to 9"), (3, "3")):
            with pytest.raises(SetupError, match=rf"no instance takes a weight of {hole}\b(?! to)"):
                pipe.reload("main", {"step": step})
        assert pipe({"data": 1})["result"] == 2
        pipe.reload("main", {"step": 2})  # 1 to 2, and 3 to 4
        assert pipe({"data": 1, "request_size": 3})["result"] == 4


@pytest.mark.parametrize(
    "key", ["next", "map", "or", "each", "queue_size", "queue_full", "threads", "define", "import"]
)
@pytest.mark.parametrize("single", [True, False])
def test_what_cannot_change_is_refused_by_name(control, key, single):
    node = {"backend": "Versioned"}
    with headrace.pipe(node if single else {"main": node}) as pipe:
        (problem,) = refused(pipe.reload, "main", {key: 1, "version": 2}).problems
        assert problem.code == "fixed"
        assert problem.path == f"main.{key}"
        assert key in problem.message
        assert control.built == [(1, 0)]


@pytest.mark.parametrize(
    ("changes", "suggestion"),
    [
        ({"versoin": 2}, "version"),
        ({"instance_nun": 2}, "instance_num"),
        ({"backend": "Versionned"}, "Versioned"),
        ({"instance_num": 0}, None),
        ({"version": "two"}, None),
        ({"versoin": None}, "version"),
        ({"backend": None}, None),
        ({"backend": {"a": 1}}, None),
    ],
)
@pytest.mark.parametrize("single", [True, False])
def test_a_wrong_configuration_is_reported_as_when_it_is_loaded(
    control, changes, suggestion, single
):
    node = {"backend": "Versioned", "version": 1}
    with headrace.pipe(node if single else {"main": node}) as pipe:
        found = refused(pipe.reload, "main", changes).problems
        assert suggestion in [problem.suggestion for problem in found]
        assert control.built == [(1, 0)]
        assert pipe({"data": 1})["result"] == (1, 1)


def test_an_unknown_node_gets_the_nearest_name(control):
    with headrace.pipe({"detect": {"backend": "Versioned"}}) as pipe:
        assert refused(pipe.reload, "detekt", {}).problems[0].suggestion == "detect"
        with pytest.raises(TypeError, match="mapping"):
            pipe.reload("detect", [("version", 2)])
        with pytest.raises(ValueError, match="timeout"):
            pipe.reload("detect", {}, timeout=-1)


def test_a_closed_pipeline_refuses(control):
    pipe = headrace.pipe({"backend": "Versioned"})
    pipe.close()
    with pytest.raises(ClosedError):
        pipe.reload("main", {})


def test_closed_meanwhile_the_old_ones_stay_and_what_was_built_is_closed(control, client):
    control.slow.add(2)
    pipe = headrace.pipe({"backend": "Versioned"})
    reload = client(pipe.reload, "main", {"version": 2})
    control.wait_building()
    pipe.close()
    with pytest.raises(ClosedError):
        reload.outcome()
    assert control.closed == [(1, 0)]
    assert pipe.config.to_dict() == {"backend": "Versioned"}
    control.wait_closed()
    control.let_build()
    control.wait_closed()
    assert control.closed == [(1, 0), (2, 0)]
    assert control.cancelled == {2}


@pytest.mark.slow
def test_close_waits_for_the_batches_of_old_instances_and_closes_them(control, client):
    pipe = headrace.pipe({"backend": "Versioned"})
    old = control.entered(client(pipe, {"data": "old"}))
    reload = client(pipe.reload, "main", {"version": 2})
    assert pipe({"data": 1})["result"] == (2, 1)
    internals.run_out_of_time(pipe, "version")
    reload.outcome()
    control.let_go()
    pipe.close()
    assert old.outcome()["result"] == (1, "old")
    assert sorted(control.closed) == [(1, 0), (2, 0)]
    assert sorted(control.stores) == [1, 2]


@pytest.mark.slow
def test_an_old_batch_that_hangs_is_left_behind_by_reload_and_by_close(control, client):
    pipe = headrace.pipe({"backend": "Versioned"})
    old = control.entered(pipe.submit({"data": "old"}))
    reload = client(pipe.reload, "main", {"version": 2})
    assert pipe({"data": 1})["result"] == (2, 1)
    internals.run_out_of_time(pipe, "version")
    reload.outcome()
    pipe.reload("main", {"version": 3})
    assert pipe.submit({"data": 1}).result(FAILS_LATE_S)["result"] == (3, 1)
    assert control.closed == [(2, 0)]
    pipe.close(timeout=0)
    with pytest.raises(ClosedError) as caught:
        old.result(FAILS_LATE_S)
    assert caught.value.abandoned
    assert control.closed == [(2, 0), (3, 0)]
    control.wait_closed(2)
    control.let_go()
    control.wait_closed()
    assert control.closed[2] == (1, 0)


def test_when_the_time_is_over_before_they_are_warm_the_old_ones_stay(control, client):
    control.slow.add(2)
    with headrace.pipe({"backend": "Versioned", "instance_num": 2}) as pipe:
        reload = client(pipe.reload, "main", {"version": 2})
        control.wait_building()
        internals.run_out_of_time(pipe, "version")
        with pytest.raises(DeadlineExceededError, match="not warm within") as caught:
            reload.outcome()
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.node == "main"
        assert pipe({"data": 1})["result"] == (1, 1)
        control.let_build()
        control.wait_closed()
        assert control.closed == [(2, 0)]  # the second of them was not even begun
        assert control.cancelled == {2}
        pipe.reload("main", {"version": 3})
        assert pipe({"data": 1})["result"] == (3, 1)
    assert sorted(control.built) == sorted(control.closed)


def test_one_reload_at_a_time_and_the_next_sees_what_the_first_has_changed(control, client):
    control.slow.add(2)
    with headrace.pipe({"backend": "Versioned", "max": 2}) as pipe:
        first = client(pipe.reload, "main", {"version": 2})
        control.wait_building()
        with pytest.raises(DeadlineExceededError, match="another reload"):
            pipe.reload("main", {"max": 3}, timeout=0)
        second = client(pipe.reload, "main", {"max": 4})
        assert control.built == [(1, 0), (2, 0)]
        control.let_build(2)
        first.outcome()
        second.outcome()
        assert pipe.config.to_dict() == {"backend": "Versioned", "version": 2, "max": 4}


def test_a_thread_that_builds_a_node_is_refused(control):
    with headrace.pipe({"backend": "Versioned"}) as pipe:
        seen = []

        def reload_inside():
            with pytest.raises(ContractError, match="reload") as caught:
                pipe.reload("main", {"version": 9})
            seen.append(caught.value)

        control.calls[2] = reload_inside
        pipe.reload("main", {"version": 2})
        assert len(seen) == 1
        assert pipe({"data": 1})["result"] == (2, 1)


def test_a_probe_waits_for_the_new_instances_alone(control):
    class Asks:
        def batch_done(self, *batch):
            pipe.reload("main", {"version": len(control.built) + 1}, timeout=FAILS_LATE_S)

        def request_done(self, *request):
            self.batch_done()

        def instance_changed(self, *change):
            pass

    with headrace.pipe({"backend": "Versioned"}) as pipe, attached(pipe, Asks()):
        assert pipe({"data": 1})["result"] == (1, 1)
        assert pipe.submit({"data": 2}).result(FAILS_LATE_S)["result"] == (3, 2)
        assert pipe.stats()["probes"]["Asks"]["errors"] == 0


BATCHES = {
    "backend": {"backend": "Versioned"},
    "another": {"backend": "Versioned", "instance_num": 2},
    "own thread": {"backend": "OwnVersioned"},
    "graph": {"first": {"backend": "Identity", "next": "main"}, "main": {"backend": "Versioned"}},
}


@pytest.mark.parametrize("way", ["handler", "submit", "timeout"])
@pytest.mark.parametrize("config", BATCHES.values(), ids=BATCHES)
def test_a_thread_that_runs_a_batch_waits_for_the_new_instances_alone(control, config, way):
    """Its own batch ends on the old instance, which is closed after it."""
    send = {
        "handler": lambda pipe, data: pipe({"data": data}),
        "submit": lambda pipe, data: pipe.submit({"data": data}).result(FAILS_LATE_S),
        "timeout": lambda pipe, data: pipe({"data": data}, timeout=FAILS_LATE_S),
    }[way]
    with headrace.pipe(config) as pipe:

        def reload(*_):
            pipe.reload("main", {"version": 2}, timeout=FAILS_LATE_S)
            seen.append((pipe.config.to_dict() == config, list(control.closed)))

        seen = []
        before = signal.signal(signal.SIGINT, reload)
        ask = partial(signal.raise_signal, signal.SIGINT) if way == "handler" else reload
        control.during["ask"] = ask
        try:
            request = send(pipe, "ask")
        finally:
            signal.signal(signal.SIGINT, before)
        assert request["result"] == (1, "ask")
        control.wait_closed()
        ((unchanged, closed),) = seen
        assert not unchanged
        assert not any(version == 2 for version, _ in closed)
        assert send(pipe, "next")["result"] == (2, "next")


@pytest.mark.parametrize(
    "call", [lambda pipe: pipe({"data": 1}), lambda pipe: pipe.submit({"data": 1}).result()]
)
def test_a_thread_that_runs_a_batch_waits_for_no_reload_that_waits_for_this_batch(
    control, client, until, call
):
    def reload():
        others.append(client(pipe.reload, "main", {"version": 2}))
        until(lambda: pipe.config.to_dict().get("version") == 2)
        pipe.reload("main", {"version": 3}, timeout=FAILS_LATE_S)
        pipe.reload("main", {"version": 4}, timeout=FAILS_LATE_S)
        closed.extend(control.closed)

    others, closed = [], []
    control.during[1] = reload
    with headrace.pipe({"backend": "Versioned"}) as pipe:
        assert call(pipe)["result"] == (1, 1)
        others[0].outcome()
        assert call(pipe)["result"] == (4, 1)
    assert (1, 0) not in closed
    assert sorted(control.closed) == [(version, 0) for version in (1, 2, 3, 4)]


def test_what_waits_and_fits_none_of_the_new_ones_is_refused_with_both_numbers(
    control, client, waiting
):
    with headrace.pipe({"backend": "Versioned", "max": 8}) as pipe:
        old = control.entered(client(pipe, {"data": "old"}))
        heavy = pipe.submit({"data": "heavy", "request_size": 5})
        light = pipe.submit({"data": "light", "request_size": 3})
        waiting(pipe, 2)
        reload = client(pipe.reload, "main", {"version": 2, "max": 4})
        with pytest.raises(BatchRangeError) as caught:
            heavy.result(FAILS_LATE_S)
        assert (caught.value.weight, caught.value.max) == (5, 4)
        assert light.result(FAILS_LATE_S)["result"] == (2, "light")
        with pytest.raises(BatchRangeError):
            pipe({"data": 1, "request_size": 5})
        control.let_go()
        old.outcome()
        reload.outcome()
        assert main_of(pipe)["failed"] == {"batch_range": 2}


def test_a_new_instance_is_not_left_idle_because_old_batches_hold_all_runners(control, client):
    control.held.extend(("a", "b"))
    with headrace.pipe({"backend": "Versioned", "instance_num": 2}) as pipe:
        old = [control.entered(pipe.submit({"data": data})) for data in ("a", "b")]
        reload = client(pipe.reload, "main", {"version": 2, "instance_num": 1})
        assert pipe.submit({"data": 1}).result(FAILS_LATE_S)["result"] == (2, 1)
        control.let_go(2)
        reload.outcome()
        assert [f.result(FAILS_LATE_S)["result"] for f in old] == [(1, "a"), (1, "b")]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends POSIX signals")
def test_interrupted_while_it_waits_nothing_changes(control, client, request):
    control.slow.add(2)
    me = threading.get_ident()
    hit = threading.Event()

    def handle(signum, frame):
        if not hit.is_set():
            hit.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt():
        control.wait_building()
        # CPython does not see a signal that comes just before a thread goes to sleep: once more.
        while not hit.is_set():
            signal.pthread_kill(me, signal.SIGINT)
            hit.wait(0.05)

    with headrace.pipe({"backend": "Versioned"}) as pipe:
        storm = client(interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipe.reload("main", {"version": 2})
        storm.outcome()
        control.let_build()
        control.wait_closed()
        assert control.closed == [(2, 0)]
        assert pipe({"data": 1})["result"] == (1, 1)


def test_a_batch_that_was_cut_before_keeps_its_own_sizes(control, client):
    config = {"backend": "Versioned", "batch_sizes": [4], "pad": True}
    with headrace.pipe(config) as pipe:
        old = control.entered(client(pipe, {"data": "old"}))
        reload = client(pipe.reload, "main", {"batch_sizes": None, "pad": None, "version": 2})
        control.let_go()
        assert old.outcome()["result"] == (1, "old")
        reload.outcome()
        pipe({"data": "new"})
    assert control.batches == [(1, ["old"] * 4), (2, ["new"])]


def test_changed_waits_hold_for_those_who_wait_already(control, client, waiting):
    control.held.append("new")
    config = {"backend": "Versioned", "instance_num": 2, "batching_timeout": 1e9, "max": 4}
    with headrace.pipe(config) as pipe:
        old = control.entered(client(pipe, {"data": "old"}))
        queued = [pipe.submit({"data": "new"}), pipe.submit({"data": "more"})]
        waiting(pipe, 2)  # the second instance waits for company
        reload = control.entered(client(pipe.reload, "main", {"batching_timeout": 0, "version": 2}))
        control.let_go(2)
        for one in (old, reload):
            one.outcome()
        assert [f.result(FAILS_LATE_S)["result"][0] for f in queued] == [2, 2]


class NotesItself(headrace.policies.Greedy):
    sends_when_idle = False
    asked: ClassVar[list] = []

    def cut(self, queue, instance, now):
        self.asked.append(self)
        return super().cut(queue, instance, now)


def test_policies_are_made_anew_when_their_keys_change_and_kept_otherwise(control):
    headrace.register("notes_itself", NotesItself, replace=True)
    config = {"backend": "Versioned", "batch_policy": "notes_itself", "max": 4}
    with headrace.pipe(config) as pipe:

        def asked():
            NotesItself.asked.clear()
            pipe({"data": 1}, timeout=FAILS_LATE_S)
            return NotesItself.asked[0]

        first = asked()
        pipe.reload("main", {"version": 2})
        assert asked() is first
        pipe.reload("main", {"batching_timeout": 2})
        assert asked() is not first
        assert asked().options.batching_timeout == 2


# Nodes that name each other.


def test_an_alias_leads_to_the_new_instances_and_is_a_node_like_others(control):
    config = {
        "main": {"backend": "Versioned"},
        "alias": {"backend": "Forward[node.main]", "timeout_ms": 1e6},
    }
    with headrace.pipe(config) as pipe:
        pipe.reload("main", {"version": 2})
        assert pipe({"data": 1, "node_name": "alias"})["result"] == (2, 1)
        pipe.reload("alias", {"timeout_ms": 1e-6})
        assert pipe.config.to_dict()["alias"]["timeout_ms"] == 1e-6
        with pytest.raises(DeadlineExceededError):
            pipe({"data": 1, "node_name": "alias"})
        pipe.reload("alias", {"timeout_ms": None})
        assert pipe({"data": 1, "node_name": "alias"})["result"] == (2, 1)
        pipe.reload("alias", {"backend": "Versioned", "version": 5})
        assert pipe({"data": 1, "node_name": "alias"})["result"] == (5, 1)
        pipe.reload("alias", {"backend": "Forward[node.main]", "version": None, "instance_num": 2})
        pipe.reload("main", {"version": 3})
        assert pipe({"data": 1, "node_name": "alias"})["result"] == (3, 1)


def test_who_forwards_to_a_node_reaches_its_new_instances_and_may_be_reloaded_itself(control):
    config = {
        "outer": {"backend": "S[Identity,Forward[node.main]]"},
        "main": {"backend": "Versioned"},
        "other": {"backend": "Identity"},
    }
    with headrace.pipe(config) as pipe:
        pipe.reload("main", {"version": 2})
        assert pipe({"data": 1, "node_name": "outer"})["result"] == (2, 1)
        pipe.reload("outer", {"backend": "S[Forward[node.main],Identity]", "max": 4})
        pipe.reload("main", {"version": 3})
        assert pipe({"data": 1, "node_name": "outer"})["result"] == (3, 1)
        pipe.reload("other", {"backend": "S[Identity,Forward[node.outer]]"})
        assert pipe({"data": 1, "node_name": "other"})["result"] == (3, 1)
        with pytest.raises(ConfigError, match="needed to build itself"):
            pipe.reload("main", {"backend": "Forward[node.other]", "version": None})


def test_instances_that_another_node_holds_cannot_be_exchanged(control):
    config = {
        "main": {"backend": "Versioned"},
        "thief": {"backend": "S[Identity,Proxy[main.0]]"},
    }
    with headrace.pipe(config) as pipe:
        with pytest.raises(SetupError, match=r"thief holds the instance 'main\.0'") as caught:
            pipe.reload("main", {"version": 2})
        assert "Forward[node.main]" in str(caught.value)
        assert pipe({"data": 1, "node_name": "thief"})["result"] == (1, 1)
        pipe.reload("thief", {"backend": "S[Proxy[main.0],Identity]"})
        assert pipe({"data": 1, "node_name": "thief"})["result"] == (1, 1)
        pipe.reload("thief", {"backend": "Identity"})
        pipe.reload("main", {"version": 2})
        assert pipe({"data": 1, "node_name": "main"})["result"] == (2, 1)
        with pytest.raises(SetupError, match="built for its own node alone"):
            pipe.reload("thief", {"backend": "S[Identity,Proxy[main.0]]"})
        assert pipe({"data": 1, "node_name": "thief"})["result"] == 1


def test_instances_that_the_entrypoint_holds_cannot_be_exchanged(control):
    config = {
        "global": {"entrypoint": "S[Identity,Proxy[main.0]]"},
        "main": {"backend": "Versioned"},
    }
    with headrace.pipe(config) as pipe:
        with pytest.raises(SetupError, match=r"entrypoint holds the instance 'main\.0'"):
            pipe.reload("main", {"version": 2})
        assert pipe({"data": 1})["result"] == (1, 1)


@pytest.mark.parametrize(
    "keys",
    [
        {"node_entrypoint": "Versioned"},
        {"node_entrypoint": "Register[Batching[Reflect[backend]]]"},
        {"init": "IoC[InstancesRegister[Reflect[backend]];Register[Batching[InstanceDispatcher]]]"},
        {
            "init": "InstancesRegister[Reflect[backend]]",
            "node_entrypoint": "IoC[Register(front)[Batching[InstanceDispatcher]];Forward[front]]",
        },
        {
            "node_entrypoint": "IoC[InstancesRegister[BackgroundThread[Reflect[backend]]],"
            "Register[DI[Batching,InstanceDispatcher]];Forward[node.{node_name}]]"
        },
    ],
)
def test_nodes_with_an_entrypoint_of_their_own_are_exchanged(control, keys):
    config = {"main": {"backend": "Versioned", **keys}, "alias": {"backend": "Forward[node.main]"}}
    with headrace.pipe(config) as pipe:
        for version in (2, 3):
            pipe.reload("main", {"version": version})
            for name in ("main", "alias"):
                assert pipe({"data": 1, "node_name": name})["result"] == (version, 1)
            assert len(control.built) == len(control.closed) + 1
    assert sorted(control.built) == sorted(control.closed)


def test_in_a_graph_each_errors_can_change_and_every_node_can(control):
    config = {
        "split": {"backend": "Identity", "next": "each"},
        "each": {"backend": "Failing(on=bad)", "each": "data", "next": "last"},
        "last": {"backend": "Versioned"},
    }
    headrace.register("Failing", Failing, replace=True)
    with headrace.pipe(config) as pipe:
        with pytest.raises(BackendError):
            pipe({"data": ["a", "bad"]})
        pipe.reload("each", {"each_errors": "none"})
        assert pipe({"data": ["a", "bad"]})["result"] == (1, ["a", None])
        pipe.reload("last", {"version": 2})
        assert pipe.submit({"data": ["a"]}).result(FAILS_LATE_S)["result"] == (2, ["a"])


def test_a_front_of_the_pipelines_own_stays(control):
    config = {
        "global": {"entrypoint": "S[Identity,DagDispatcher]"},
        "main": {"backend": "Versioned", "next": "second"},
        "second": {"backend": "Identity"},
    }
    with headrace.pipe(config) as pipe:
        pipe.reload("main", {"version": 2})
        assert pipe({"data": 1})["result"] == (2, 1)
        with pytest.raises(ConfigError, match="entrypoint"):
            pipe.reload("second", {"backend": "DagDispatcher"})
        assert pipe({"data": 1})["result"] == (2, 1)


def test_paths_in_changes_start_from_the_working_directory(tmp_path, monkeypatch):
    class Reads(headrace.Backend):
        class Options(headrace.Options):
            path: headrace.FilePath

        def init(self, options, context):
            self.text = options.path.read_text(encoding="utf-8")

        def forward(self, batch):
            for request in batch:
                request["result"] = self.text

    headrace.register("Reads", Reads, replace=True)
    configs, elsewhere = tmp_path / "configs", tmp_path / "elsewhere"
    for folder in (configs, elsewhere):
        folder.mkdir()
        (folder / "model.txt").write_text(folder.name, encoding="utf-8")
    (configs / "pipe.toml").write_text('backend = "Reads"\npath = "model.txt"\n', encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    with headrace.pipe(configs / "pipe.toml") as pipe:
        assert pipe({"data": 1})["result"] == "configs"
        pipe.reload("main", {"max": 4})
        assert pipe({"data": 1})["result"] == "configs"
        pipe.reload("main", {"path": "model.txt"})
        assert pipe({"data": 1})["result"] == "elsewhere"
        assert pickle.loads(pickle.dumps(pipe.config)) == pipe.config
        with pytest.raises(ConfigError, match=r"nowhere\.txt"):
            pipe.reload("main", {"path": "nowhere.txt"})


def keeper(alive):
    """Register a backend that keeps its context, and notes all that live."""

    class Keeper(headrace.Backend):
        """Gives its version."""

        class Options(headrace.Options):
            version: int = 1

        def init(self, options, context):
            self.context, self.version = context, options.version
            alive.add(self)

        def forward(self, batch):
            for request in batch:
                request["result"] = self.version

    headrace.register("Keeper", Keeper, replace=True)


def test_retired_instances_are_forgotten_by_backends_of_other_nodes_that_keep_their_context(until):
    alive = weakref.WeakSet()
    keeper(alive)
    config = {
        "first": {"backend": "Keeper", "next": "second", "instance_num": 2},
        "second": {"backend": "S[Keeper,Forward[node.third]]", "next": "fourth"},
        "third": {"backend": "BackgroundThread[Keeper]"},
        "fourth": {"backend": "IoC[Keeper;S[Keeper,Keeper]]"},
    }
    with headrace.pipe(config) as pipe:
        built = len(alive)
        for round_ in range(3):
            for node in config:
                pipe.reload(node, {"version": round_})
                pipe({"data": 1})
        until(lambda: gc.collect() >= 0 and len(alive) == built)
    del pipe
    # The thread that closes wakes this one and then leaves its frames, which still hold what it closed.
    # Where threads run at once, this one may collect before that.
    until(lambda: gc.collect() >= 0 and not alive)


def test_an_instance_that_a_reload_leaves_out_is_forgotten(until):
    alive = weakref.WeakSet()
    keeper(alive)
    config = {"first": {"backend": "Keeper", "instance_num": 3}, "second": {"backend": "Keeper"}}
    with headrace.pipe(config) as pipe:
        assert len(alive) == 4
        pipe.reload("first", {"instance_num": 1})
        until(lambda: gc.collect() >= 0 and len(alive) == 2)


def test_an_option_that_is_a_table_can_be_changed(control):
    class Table(headrace.Backend):
        class Options(headrace.Options):
            table: dict[str, int]

        def init(self, options, context):
            self.table = options.table

        def forward(self, batch):
            for request in batch:
                request["result"] = self.table

    headrace.register("Table", Table, replace=True)
    with headrace.pipe({"backend": "Table", "table": {"a": 1}}) as pipe:
        pipe.reload("main", {"table": {"b": 2}})
        assert pipe({"data": 0})["result"] == {"b": 2}
        assert pipe.config.to_dict()["table"] == {"b": 2}
