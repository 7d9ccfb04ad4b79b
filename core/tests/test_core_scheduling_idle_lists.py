"""Claims without the lock: what may happen between the looks of a caller and its claim."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from typing import ClassVar

import pytest

import headrace
from headrace._scheduling.instance import Instance
from headrace._scheduling.locks import taking
from headrace.errors import BackendError, ClosedError, ContractError


class Step(headrace.Backend):
    """``result = data``; runs `during`, counts, remembers which instance ran what."""

    max = None
    during = None
    ran: ClassVar[list] = []
    closed: ClassVar[list] = []

    def forward(self, batch):
        for request in batch:
            type(self).ran.append((self, request["data"]))
            request["result"] = request["data"]
        if self.during is not None:
            during, self.during = self.during, None
            return during(batch)
        return None

    def close(self):
        type(self).closed.append(self)


@pytest.fixture(autouse=True)
def _step():
    Step.ran, Step.closed = [], []
    headrace.register("Step", Step, replace=True)


class Hooked(deque):
    """Calls a function when a caller has looked whether anything lies here, once."""

    hook = None

    def __len__(self):
        length = super().__len__()
        if self.hook is not None:
            hook, self.hook = self.hook, None
            hook()
        return length

    def __bool__(self):
        return len(self) > 0


def scheduler_of(pipe):
    return pipe._engine.entrance.only


def call_swift(pipe, data):
    """Call a pipeline whose instances count as swift, however busy this machine has been."""
    for instance in scheduler_of(pipe).instances:
        instance.mean_s = 1e-6
    pipe({"data": data})


def warm(pipe):
    """Let the first batches be timed, so that the node knows its backend as swift."""
    for k in range(3):
        call_swift(pipe, f"warm {k}")
    del Step.ran[:]


def hook(pipe, function):
    """Call ``function`` between a caller's look at the idle list and its claim."""
    scheduler = scheduler_of(pipe)
    node = scheduler._node
    hooked = Hooked(node.idle[0])
    assert len(hooked) == len(scheduler.instances)
    hooked.hook = function
    with node.lock:
        node.idle = scheduler._idle_list = (hooked,)


def elsewhere(function):
    """Run a function in another thread, to its end."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def idle_in(pipe):
    """Give the idle instances, each as often as it is listed."""
    node = scheduler_of(pipe)._node
    return [*node.idle[0], *node.free]


@pytest.fixture
def pipe():
    with headrace.pipe({"backend": "Step"}) as pipe:
        warm(pipe)
        yield pipe


@pytest.mark.usefixtures("takes_turns")
def test_a_swift_backend_is_called_without_the_lock(pipe):
    node = scheduler_of(pipe)._node
    with node.lock:  # whoever asked for it would wait for ever
        for k in range(8):
            elsewhere(lambda k=k: pipe({"data": k}))
    assert [data for _, data in Step.ran] == list(range(8))
    stats = pipe.stats()["nodes"]["main"]
    assert (stats["submitted"], stats["ok"], stats["batches"]) == (11, 11, 11)


@pytest.mark.usefixtures("takes_turns")
def test_a_slow_backend_is_called_without_the_lock_while_no_caller_waits(pipe):
    scheduler = scheduler_of(pipe)
    node, (instance,) = scheduler._node, scheduler.instances
    claims, claim = [], scheduler._claim
    scheduler._claim = lambda *about: claims.append(about) or claim(*about)
    instance.mean_s = 1.0  # it stays slow for the calls to come
    pipe({"data": "makes it count as slow"})
    with node.lock:
        for k in range(8):
            elsewhere(lambda k=k: pipe({"data": k}))
    assert not claims
    node.callers.add("one that waits for a batch")
    elsewhere(lambda: pipe({"data": 8}))
    assert len(claims) == 1
    assert [data for _, data in Step.ran][1:] == list(range(9))
    assert idle_in(pipe) == [instance]


@pytest.mark.usefixtures("takes_turns")
def test_a_slow_backend_does_not_run_under_a_lock_that_its_caller_holds(pipe):
    scheduler = scheduler_of(pipe)
    (instance,) = scheduler.instances
    instance.mean_s = 1.0
    pipe({"data": "makes it count as slow"})
    refused = []

    def destructor():
        with taking(threading.RLock()), pytest.raises(ContractError) as raised:
            pipe({"data": 1})
        refused.append(raised.value)

    elsewhere(destructor)
    assert "destructor" in str(refused[0])
    assert [data for _, data in Step.ran] == ["makes it count as slow"]


@pytest.mark.usefixtures("takes_turns")
def test_the_idle_list_is_empty_while_its_instance_runs_and_full_afterwards(pipe):
    scheduler = scheduler_of(pipe)
    (instance,) = scheduler.instances
    seen = []

    def look(batch):
        seen.append((idle_in(pipe), instance.busy, instance.ident))

    instance.backend.during = look
    pipe({"data": 1})
    assert seen == [([], True, threading.get_ident())]
    assert idle_in(pipe) == [instance]
    assert not instance.busy


@pytest.mark.parametrize("caller", [lambda call: call(), elsewhere])
def test_instances_take_turns_from_the_first_request_on(caller, monkeypatch):
    """An instance that has run nothing counts as slow: it must not be left behind the swift ones."""
    monkeypatch.setattr(Instance, "timed", lambda self, _: setattr(self, "mean_s", 1e-6))
    with headrace.pipe({"backend": "Step", "instance_num": 3}) as pipe:
        caller(lambda: [pipe({"data": k}) for k in range(9)])
        assert [one["batches"] for one in pipe.stats()["nodes"]["main"]["instances"]] == [3, 3, 3]


def test_instances_take_turns():
    with headrace.pipe({"backend": "Step", "instance_num": 3}) as pipe:
        warm(pipe)
        for k in range(9):
            call_swift(pipe, k)
        order = [backend for backend, _ in Step.ran]
        assert len(set(order[:3])) == 3
        assert order[3:] == order[:6]


@pytest.mark.usefixtures("takes_turns")
def test_a_caller_that_was_not_the_quickest_waits_for_its_turn(pipe):
    scheduler = scheduler_of(pipe)
    (instance,) = scheduler.instances
    inside, go = threading.Event(), threading.Event()

    def wait(batch):
        inside.set()
        assert go.wait(30)

    def quicker():
        instance.backend.during = wait
        other.start()
        assert inside.wait(30)
        # Who takes the instance now has to wait for it: let it go as soon as that one waits.
        threading.Thread(target=release_when_waiting).start()

    def release_when_waiting():
        while not scheduler._queue.count:
            with scheduler._node.lock:
                pass
        go.set()

    other = threading.Thread(target=lambda: pipe({"data": "first"}))
    hook(pipe, quicker)
    request = {"data": "second"}
    pipe(request)
    other.join(30)
    assert request == {"data": "second", "result": "second"}
    assert [data for _, data in Step.ran] == ["first", "second"]
    assert idle_in(pipe) == [instance]


@pytest.mark.usefixtures("takes_turns")
def test_a_claim_of_an_instance_that_has_been_taken_out_of_service_is_given_back(pipe):
    old = scheduler_of(pipe).instances[0].backend
    hook(pipe, lambda: elsewhere(lambda: pipe.reload("main", {"instance_num": 2})))
    request = {"data": 1}
    pipe(request)
    assert request["result"] == 1
    ((ran, _),) = Step.ran
    assert ran is not old
    assert Step.closed == [old]
    assert sorted(i.index for i in idle_in(pipe)) == [0, 1]
    stats = pipe.stats()["nodes"]["main"]
    assert (stats["submitted"], stats["ok"], stats["waiting"]) == (4, 4, 0)


@pytest.mark.usefixtures("takes_turns")
def test_a_claim_in_a_pipeline_that_has_begun_to_close_is_refused(pipe):
    (instance,) = scheduler_of(pipe).instances
    hook(pipe, lambda: elsewhere(pipe.close))
    request = {"data": 1}
    with pytest.raises(ClosedError):
        pipe(request)
    assert request == {"data": 1}
    assert Step.ran == []
    assert Step.closed == [instance.backend]


def test_who_comes_while_a_request_runs_is_served_after_it(pipe):
    (instance,) = scheduler_of(pipe).instances
    futures = []
    instance.backend.during = lambda batch: futures.append(pipe.submit({"data": 2}))
    pipe({"data": 1})
    assert futures[0].result(30)["result"] == 2
    assert idle_in(pipe) == [instance]


@pytest.mark.parametrize("is_hit", [False, True])
def test_closing_while_a_request_runs_lets_it_end_and_those_that_wait(
    pipe, is_hit, monkeypatch, request
):
    """Also where an interrupt hits the caller that has just put its instance on the list of before."""
    if is_hit:
        request.getfixturevalue("takes_turns")
    scheduler = scheduler_of(pipe)
    (instance,) = scheduler.instances
    instance.mean_s = 1e-6
    futures = []

    def during(batch):
        futures.append(pipe.submit({"data": 2}))
        closing = threading.Thread(target=pipe.close)
        closing.start()
        futures.append(closing)
        while scheduler._node.refusing is None:
            pass

    def hit(*_):
        raise KeyboardInterrupt

    instance.backend.during = during
    asked = {"data": 1}
    if is_hit:
        monkeypatch.setattr(scheduler, "_look", hit)
    with pytest.raises(KeyboardInterrupt) if is_hit else nullcontext():
        pipe(asked)
    assert ("result" in asked) is not is_hit
    assert futures[0].result(30)["result"] == 2
    futures[1].join(30)
    assert Step.closed == [instance.backend]


def test_a_reload_while_a_request_runs_waits_for_it(pipe):
    (instance,) = scheduler_of(pipe).instances
    reloading = threading.Thread(target=lambda: pipe.reload("main", {"instance_num": 2}))

    def during(batch):
        reloading.start()
        while scheduler_of(pipe)._node.retiring == []:
            pass
        assert Step.closed == []

    instance.backend.during = during
    pipe({"data": 1})
    reloading.join(30)
    assert Step.closed == [instance.backend]
    assert instance not in idle_in(pipe)
    pipe({"data": 2})
    assert [backend is instance.backend for backend, _ in Step.ran] == [True, False]


def test_an_error_is_counted_and_the_instance_goes_on(pipe):
    (instance,) = scheduler_of(pipe).instances
    for wrong in (lambda batch: [ValueError("no")], lambda batch: 1 / 0, lambda batch: 7):
        instance.backend.during = wrong
        request = {"data": 1}
        with pytest.raises(BackendError):
            pipe(request)
        assert request == {"data": 1}
        assert idle_in(pipe) == [instance]
    failed = pipe.stats()["nodes"]["main"]["failed"]
    assert failed == {"backend": 2, "contract": 1}


def test_an_interrupt_gives_the_instance_back_once(pipe):
    (instance,) = scheduler_of(pipe).instances

    def interrupt(batch):
        raise KeyboardInterrupt

    instance.backend.during = interrupt
    request = {"data": 1}
    with pytest.raises(KeyboardInterrupt):
        pipe(request)
    assert request == {"data": 1}
    assert idle_in(pipe) == [instance]
    pipe(request)
    assert request["result"] == 1


@pytest.mark.parametrize("mean_s", [1e-6, 1.0])
def test_an_instance_that_a_thread_was_hit_on_is_not_its_own_while_it_waits_for_a_helper(
    pipe, monkeypatch, mean_s
):
    scheduler = scheduler_of(pipe)
    (instance,) = scheduler.instances
    instance.mean_s = mean_s
    pipe({"data": 1})
    inside, go, asked = threading.Event(), threading.Event(), threading.Event()
    seen = []

    def hit(batch):
        inside.set()
        assert go.wait(30)
        raise SystemExit

    def recovered(*_):
        seen.append((instance.ident, instance.busy))
        asked.set()

    instance.backend.during = hit
    monkeypatch.setattr(scheduler, "_recovered", recovered)

    def call():
        with pytest.raises(SystemExit):
            pipe({"data": 2})

    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(30)
    with scheduler._node.lock:  # the helper thread that gives the instance back waits for it
        go.set()
        assert asked.wait(30)
    thread.join(30)
    assert seen == [(0, True)]
    assert pipe({"data": 3})["result"] == 3


@pytest.mark.usefixtures("takes_turns")
def test_a_backend_that_has_become_slow_is_left_to_the_main_thread_and_the_lock(pipe, until):
    (instance,) = scheduler_of(pipe).instances

    def slow(batch):
        instance.mean_s = 1.0

    instance.backend.during = slow

    def swift_again(batch):
        instance.mean_s = 1e-6

    def idle():
        node = scheduler_of(pipe)._node
        return node.slow, list(node.idle[0])

    for _ in range(2):
        instance.backend.during = slow
        pipe({"data": 1})
        until(lambda: idle() == (True, [instance]))
        pipe({"data": 2})
        assert idle_in(pipe) == [instance]
        instance.backend.during = swift_again
        pipe({"data": 3})
        until(lambda: idle() == (False, [instance]))


@pytest.mark.parametrize(
    "keys",
    [{"batch_sizes": [1, 2]}, {"timeout_ms": 1000}, {"min": 2, "max": 4, "pad": True}],
)
def test_nodes_whose_requests_all_pass_the_queue_have_nothing_on_their_idle_list(keys):
    with headrace.pipe({"backend": "Step", **keys}) as pipe:
        warm(pipe)
        assert scheduler_of(pipe)._node.idle == (deque(),)


@pytest.mark.stress
def test_threads_that_call_reload_and_close_lose_nothing():
    """Every request has one outcome, and no batch runs on an instance that is closed."""
    import sys

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            pipe = headrace.pipe({"backend": "Step", "instance_num": 2})
            warm(pipe)
            ok, refused = [], []

            def call(pipe=pipe, ok=ok, refused=refused):
                for k in range(3000):
                    try:
                        assert pipe({"data": k})["result"] == k
                    except ClosedError:
                        refused.append(k)
                    else:
                        ok.append(k)

            threads = [threading.Thread(target=call) for _ in range(6)]
            for thread in threads:
                thread.start()
            for number in (1, 3, 2):
                pipe.reload("main", {"instance_num": number})
            pipe.close()
            for thread in threads:
                thread.join(60)
            assert len(ok) + len(refused) == 18_000
            stats = pipe.stats()["nodes"]["main"]
            assert stats["ok"] == len(ok) + 3
            assert all(backend._state == "closed" for backend in Step.closed)
    finally:
        sys.setswitchinterval(interval)
