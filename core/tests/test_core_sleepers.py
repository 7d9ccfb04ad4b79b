"""Callers that sleep while workers take their requests along a chain of nodes."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import headrace
from headrace._scheduling import sleeper as sleeper_module
from headrace._scheduling.locks import Signal
from headrace._scheduling.scheduler import Scheduler
from headrace._scheduling.sleeper import Sleeper
from headrace.errors import BackendError, ClosedError, ContractError, InputError, OverloadedError
from headrace.policies import BestFit

LATE_S = 60.0

CHAIN = {
    "a": {"backend": "BackgroundThread[Adds]", "next": "b"},
    "b": {"backend": "BackgroundThread[Adds]", "next": "c"},
    "c": {"backend": "BackgroundThread[Adds]"},
}


class Adds(headrace.Backend):
    """Adds 1, after the function that the request brings for this node."""

    def init(self, options, context):
        self.node = context.node_name

    def forward(self, batch):
        for request in batch:
            if self.node in request:
                request[self.node]()
            request["result"] = request["data"] + 1


class Gate:
    """Lets whoever passes wait until it is opened, and tells that somebody has come."""

    def __init__(self):
        self.come = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *_):
        self.come.set()
        assert self.opened.wait(LATE_S)

    def wait(self):
        assert self.come.wait(LATE_S)

    def open(self):
        self.opened.set()


class Interrupted(BaseException):
    pass


class CountingSignal(Signal):
    """A signal that counts how often its sleeper woke up, or interrupts it once ``event`` is set."""

    def __init__(self, event=None):
        super().__init__()
        self.event = event
        self.wakes = 0
        self._sleeps = threading.Semaphore(0)

    def wait(self):
        """Wait for the next sleep: who finds its answer there before has no reason to sleep."""
        assert self._sleeps.acquire(timeout=LATE_S)

    def sleep(self, timeout_s=None):
        if self.event is not None:
            event, self.event = self.event, None
            assert event.wait(LATE_S)
            raise Interrupted
        self._sleeps.release()
        woken = super().sleep(timeout_s)
        self.wakes += 1
        return woken


@pytest.fixture(autouse=True)
def _adds():
    headrace.register("Adds", Adds, replace=True)


@pytest.fixture
def clients():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def signals(monkeypatch):
    """Let callers sleep on these, one after the other; then on their own again."""
    given = []

    class Kept(dict):
        def pop(self, ident, default=None):
            return given.pop(0) if given else super().pop(ident, default)

    monkeypatch.setattr(sleeper_module, "kept_signals", Kept())
    return given


def counts(pipe):
    return {
        name: (node["submitted"], node["ok"], node["waiting"])
        for name, node in pipe.stats()["nodes"].items()
    }


def refuses(pipe):
    try:
        pipe.submit({"data": 1}).cancel()
    except ClosedError:
        return True
    return False


def between(monkeypatch, pipe, node):
    """Stop the thread that moves a request on, just before it looks at the next node."""
    gate = Gate()
    served = Scheduler.served_by_workers

    def stops(self):
        if self.name == node and threading.current_thread().name.startswith("headrace"):
            gate()
        return served.fget(self)

    monkeypatch.setattr(Scheduler, "served_by_workers", property(stops))
    return gate


def test_the_caller_wakes_up_once_for_the_whole_way(clients, signals):
    signal = CountingSignal()
    with headrace.pipe(CHAIN) as pipe:
        signals.append(signal)
        request = {"data": 1, "a": signal.wait}
        assert clients.submit(pipe, request).result(LATE_S) == {**request, "result": 4}
        assert signal.wakes == 1
        assert counts(pipe) == dict.fromkeys("abc", (1, 1, 0))


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_is_hit_while_it_moves_a_request_on_tries_again_and_then_says_so(
    clients, monkeypatch, times
):
    hits, enters = [MemoryError("none left") for _ in range(times)], sleeper_module.Sleeper._enter

    def enter(self, *, internal):
        if self.at[0].name == "b" and hits:
            raise hits.pop()
        enters(self, internal=internal)

    monkeypatch.setattr(sleeper_module.Sleeper, "_enter", enter)
    with headrace.pipe(CHAIN) as pipe:
        request = {"data": 1}
        answer = clients.submit(pipe, request)
        if times == 1:
            assert answer.result(LATE_S)["result"] == 4
        else:
            with pytest.raises(BackendError, match="cannot go on") as raised:
                answer.result(LATE_S)
            assert isinstance(raised.value.__cause__, MemoryError)
            assert (raised.value.node, raised.value.abandoned) == ("b", False)
            assert request == {"data": 1}
        assert clients.submit(pipe, {"data": 1}).result(LATE_S)["result"] == 4


@pytest.mark.usefixtures("takes_turns")
def test_where_callers_run_what_waits_the_caller_takes_its_request_on_itself(clients, signals):
    signal = CountingSignal()
    config = {**CHAIN, "b": {"backend": "Adds", "next": "c"}}
    with headrace.pipe(config) as pipe:
        signals += [signal, signal]
        ident = []
        request = {
            "data": 1,
            "a": signal.wait,
            "b": lambda: ident.append(threading.current_thread().name),
            "c": signal.wait,
        }
        assert clients.submit(pipe, request).result(LATE_S)["result"] == 4
        assert ident[0].startswith("ThreadPoolExecutor")
        assert signal.wakes == 2


@pytest.mark.parametrize("node", "abc")
def test_an_error_names_its_node_and_gives_the_dict_back(clients, node):
    def breaks():
        raise ValueError("broken")

    with headrace.pipe(CHAIN) as pipe:
        request = {"data": 1, node: breaks}
        with pytest.raises(BackendError, match="broken") as raised:
            clients.submit(pipe, request).result(LATE_S)
        assert raised.value.node == node
        assert request == {"data": 1, node: breaks}
        assert clients.submit(pipe, {"data": 1}).result(LATE_S)["result"] == 4


def test_what_the_next_node_refuses_fails_in_its_name(clients):
    def spoil():
        request["request_size"] = "two"

    request = {"data": 1, "a": spoil}
    with headrace.pipe(CHAIN) as pipe:
        with pytest.raises(InputError) as raised:
            clients.submit(pipe, request).result(LATE_S)
        assert raised.value.node == "b"
        assert request["data"] == 1
        assert "result" not in request
        assert pipe.stats()["nodes"]["b"]["failed"] == {"input": 1}


@pytest.mark.parametrize("node", "ab")
def test_who_is_interrupted_while_it_waits_leaves_the_queue(clients, signals, node, until):
    gate = Gate()
    with headrace.pipe(CHAIN) as pipe:
        first = clients.submit(pipe, {"data": 1, node: gate})
        gate.wait()
        event = threading.Event()
        signals.append(CountingSignal(event))
        request = {"data": 1}
        second = clients.submit(pipe, request)
        until(lambda: pipe.stats()["nodes"][node]["waiting"] == 1)
        event.set()
        with pytest.raises(Interrupted) as raised:
            second.result(LATE_S)
        assert raised.value.abandoned is False
        assert request == {"data": 1}
        gate.open()
        assert first.result(LATE_S)["result"] == 4
        assert counts(pipe)["c"] == (1, 1, 0)


@pytest.mark.parametrize("node", "ab")
def test_who_is_interrupted_while_a_backend_runs_abandons_the_request(clients, signals, node):
    gate = Gate()
    with headrace.pipe(CHAIN) as pipe:
        signals.append(CountingSignal(gate.come))
        request = clients.submit(pipe, {"data": 1, node: gate})
        with pytest.raises(Interrupted) as raised:
            request.result(LATE_S)
        assert raised.value.abandoned is True
        gate.open()
        assert clients.submit(pipe, {"data": 1}).result(LATE_S)["result"] == 4
        assert counts(pipe)["c"] == (1, 1, 0)


def test_who_is_interrupted_between_two_nodes_waits_for_the_worker(clients, signals, monkeypatch):
    with headrace.pipe(CHAIN) as pipe:
        moving = between(monkeypatch, pipe, "b")
        signals.append(CountingSignal(moving.come))
        withdrawn = threading.Event()
        looks = sleeper_module.Sleeper._withdraw

        def withdraw(self):
            self._signal.sleep = lambda: (withdrawn.set(), Signal.sleep(self._signal))
            return looks(self)

        monkeypatch.setattr(sleeper_module.Sleeper, "_withdraw", withdraw)
        request = {"data": 1}
        answer = clients.submit(pipe, request)
        assert withdrawn.wait(LATE_S)  # it has looked at node a, where all is over, and sleeps
        assert not answer.done()
        moving.open()
        with pytest.raises(Interrupted) as raised:
            answer.result(LATE_S)
        assert raised.value.abandoned is False
        assert request == {"data": 1}
        assert pipe.stats()["nodes"]["b"]["batches"] == 0


def test_who_is_interrupted_just_before_the_next_queue_is_taken_back(clients, signals, monkeypatch):
    """The worker has noted the next entry, and the caller withdraws that before it enters."""
    entering = Gate()
    enters = sleeper_module.Sleeper._enter

    def enter(self, *, internal):
        if self.at[0].name == "b" and self.at[1].state == "new":
            entering()
        enters(self, internal=internal)

    monkeypatch.setattr(sleeper_module.Sleeper, "_enter", enter)
    with headrace.pipe(CHAIN) as pipe:
        signals.append(CountingSignal(entering.come))
        request = {"data": 1}
        answer = clients.submit(pipe, request)
        with pytest.raises(Interrupted) as raised:
            answer.result(LATE_S)
        entering.open()
        assert raised.value.abandoned is False
        assert request == {"data": 1}
        assert pipe.stats()["nodes"]["b"]["batches"] == 0


@pytest.mark.parametrize("drain", [True, False])
def test_close_waits_for_a_request_between_two_nodes(clients, monkeypatch, drain, until):
    pipe = headrace.pipe(CHAIN)
    moving = between(monkeypatch, pipe, "b")
    answer = clients.submit(pipe, {"data": 1})
    moving.wait()
    closing = clients.submit(pipe.close, drain=drain, timeout=LATE_S)
    until(lambda: refuses(pipe))
    assert not closing.done()
    moving.open()
    assert answer.result(LATE_S)["result"] == 4
    closing.result(LATE_S)


def test_a_close_whose_time_is_over_fails_a_request_between_two_nodes(clients, monkeypatch):
    pipe = headrace.pipe(CHAIN)
    moving = between(monkeypatch, pipe, "b")
    answer = clients.submit(pipe, {"data": 1})
    moving.wait()
    pipe.close(timeout=0)
    moving.open()
    with pytest.raises(ClosedError):
        answer.result(LATE_S)


def test_a_request_between_two_nodes_runs_on_the_new_instances(clients, monkeypatch):
    with headrace.pipe(CHAIN) as pipe:
        moving = between(monkeypatch, pipe, "b")
        answer = clients.submit(pipe, {"data": 1})
        moving.wait()
        pipe.reload("b", {"backend": "BackgroundThread[S[Adds,Adds]]"})
        moving.open()
        assert answer.result(LATE_S)["result"] == 5


def test_bounds_count_a_request_where_it_entered(clients, until):
    config = {**CHAIN, "a": {**CHAIN["a"], "queue_size": 1, "queue_full": "reject"}}
    gate = Gate()
    with headrace.pipe(config) as pipe:
        first = clients.submit(pipe, {"data": 1, "b": gate})
        gate.wait()
        second = clients.submit(pipe, {"data": 2})
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        with pytest.raises(OverloadedError):
            clients.submit(pipe, {"data": 3}).result(LATE_S)
        gate.open()
        assert [first.result(LATE_S)["result"], second.result(LATE_S)["result"]] == [4, 5]
        assert clients.submit(pipe, {"data": 3}).result(LATE_S)["result"] == 6


def test_who_waits_for_room_enters_when_a_request_has_left_another_node(clients, until):
    config = {**CHAIN, "a": {**CHAIN["a"], "queue_size": 1}}
    gate = Gate()
    with headrace.pipe(config) as pipe:
        answers = [clients.submit(pipe, {"data": 1, "b": gate})]
        gate.wait()
        answers.append(clients.submit(pipe, {"data": 2}))
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        answers.append(clients.submit(pipe, {"data": 3}))
        until(lambda: pipe.stats()["nodes"]["a"]["waiting"] == 1)
        gate.open()
        assert [one.result(LATE_S)["result"] for one in answers] == [4, 5, 6]


def test_a_request_that_is_moved_on_into_a_cycle_is_refused(clients, until):
    """A backend of another pipeline waits for a request; the node that it comes to waits for that."""
    at_a, in_b = Gate(), Gate()
    with headrace.pipe(CHAIN) as pipe, headrace.pipe({"backend": "Adds"}) as other:
        name = next(iter(other.config.nodes))
        inner = {"data": 1, "a": at_a}
        outer = clients.submit(other, {"data": 1, name: lambda: pipe(inner)})
        at_a.wait()

        def calls():
            in_b.come.set()
            other({"data": 1})

        request = {"data": 1, "node_name": "b", "b": calls}
        second = clients.submit(pipe, request)
        in_b.wait()
        until(lambda: other.stats()["nodes"][name]["waiting"] == 1)
        at_a.open()
        with pytest.raises(BackendError) as raised:
            outer.result(LATE_S)
        assert isinstance(raised.value, ContractError) or isinstance(
            raised.value.__cause__, ContractError
        )
        assert second.result(LATE_S)["result"] == 3


def test_many_callers_get_one_answer_each_whatever_happens_to_the_next_node(clients):
    config = {name: {**node, "max": 4, "instance_num": 2} for name, node in CHAIN.items()}
    config["c"] = {"backend": "Adds", "max": 2}
    with headrace.pipe(config) as pipe:

        def run(client):
            answers = []
            for number in range(60):
                request = {"data": 1000 * client + number}
                pipe(request)
                answers.append(request["result"] - request["data"])
            return answers

        answers = [clients.submit(run, client) for client in range(6)]
        for _ in range(5):
            pipe.reload("b", {"max": 4})
        assert [one.result(LATE_S) for one in answers] == [[3] * 60] * 6
        assert counts(pipe) == dict.fromkeys("abc", (360, 360, 0))


@pytest.mark.parametrize("own", [False, True])
def test_a_runner_goes_on_with_the_greatest_priority_and_asks_a_policy_of_others(
    gate, own, waiting
):
    asked = []

    @headrace.register("Asked", replace=True)
    class Asked(BestFit):
        def choose(self, weight, free):
            asked.append(weight)
            return super().choose(weight, free)

    with headrace.pipe(
        {"backend": "Gate", **({"dispatch_policy": "Asked"} if own else {})}
    ) as pipe:
        first = pipe.submit({"data": "first"})
        gate.wait_entered()
        others = [pipe.submit({"data": n}, priority=n) for n in (1, 3, 2)]
        waiting(pipe, 3)
        gate.open()
        assert first.result(LATE_S)["result"] == "first"
        assert [one.result(LATE_S)["result"] for one in others] == [1, 3, 2]
        assert gate.batches == [["first"], [3], [2], [1]]
        assert asked == ([1, 3, 2, 1] if own else [])
        assert pipe.stats()["nodes"]["main"]["batch_size"]["histogram"] == {"1": 4}


@pytest.mark.parametrize(
    ("error", "abandoned"),
    [
        (None, False),
        (CancelledError(), False),
        (ClosedError(), False),
        (ClosedError(abandoned=True), True),
    ],
)
def test_who_leaves_when_all_is_over_is_told_whether_a_backend_still_runs(error, abandoned):
    over = SimpleNamespace(over=True, at=(None, SimpleNamespace(error=error), None))
    assert Sleeper._withdraw(over) is abandoned
