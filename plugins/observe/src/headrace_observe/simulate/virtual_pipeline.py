"""A pipeline in virtual time: the nodes, queues and policies of a configuration, whose backends take given times."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import InputError, LimitError, SetupError, code_of
from headrace.words import select
from headrace_observe.bench.arrivals import Arrival
from headrace_observe.bench.load import client, send
from headrace_observe.bench.measurement import Point
from headrace_observe.bench.notes import Window
from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from headrace_observe.simulate.service_times import ServiceTimes

__all__ = [
    "BACKEND",
    "ELEMENT",
    "KEPT",
    "SIMULATED_CLOCK",
    "Flow",
    "Simulation",
    "elements_key",
    "let_pass",
]

SIMULATED_CLOCK = (
    "virtual: from the arrival of a request to its answer; the threads of the real scheduler take turns; "
    "switches of threads and the work of clients take what was measured of them, and nothing where the times are by hand; "
    "instances slow each other down as far as that was measured"
)

BACKEND = "SimulatedBatches"
"""The name of the backend that stands in for all others."""

_SENT = "simulated_request"
_STEPS = "simulated_steps"
ELEMENT = "simulated_element"
KEPT = ("data", _SENT)
"""The keys that each request has at each node, beside the lists of `elements_key`."""


def elements_key(node: str) -> str:
    """Return the key of the list over which a node with ``each`` runs."""
    return f"simulated_elements_{node}"


@dataclass(frozen=True)
class Flow:
    """How the requests of a node go on.

    Attributes:
        instance_num: How many instances run side by side.
        pad: Whether copies fill batches up.
        without_result: The share of requests to which the node gives no ``result``, so that a node with ``or`` runs.
        elements: For a node with ``each``, the mean number of elements of a request, else None.
        steps: For a node with `Iterate`, the mean number of steps of a request, else None.
        steps_most: How many steps `Iterate` lets a request run, then it fails.
    """

    instance_num: int
    pad: bool = False
    without_result: float = 0.0
    elements: float | None = None
    steps: float | None = None
    steps_most: int | None = None


def let_pass(seconds: float) -> None:
    """Let virtual time pass for the calling thread."""
    time.sleep(seconds)  # noqa: TID251 - it costs no time


@dataclass
class _Seen:
    """The results so far."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)
    batches: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)


class SimulatedBatches(headrace.Backend):
    """Take the time of a batch, and let its requests go on as often as it was so when times were measured.

    Reads:
        data: Anything.
    Writes:
        result: The same.
    Batch:
        1 or more.

    Source:
        own
    """

    class Options(headrace.Options):
        """Options of SimulatedBatches.

        Attributes:
            carries: How many instances auto gives its node.
        """

        carries: int | None = Field(None, ge=1)

    keeps = True
    simulation: Simulation
    """The simulation that runs; there is one at a time in a process."""

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return as many as the node has for which it stands in."""
        carries: int | None = options.carries
        return carries

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Find the times and the flow of the node."""
        self._run, self._context = self.simulation, context
        self.node = context.node_name
        self._flow, self._times = self._run.flows[self.node], self._run.times[self.node]
        self._ended_at = -math.inf

    def forward(self, batch: list[dict[str, Any]]) -> list[Exception | None]:
        """Sleep for the time of the batch, in virtual time."""
        run, own = self._run, [*range(len(batch))]
        outcomes: list[Exception | None] = [None] * len(batch)
        if self._flow.pad:
            own = select(batch, own, lambda _: True, outcomes, fillers=False)
        run.wake_up()
        now = run.now()
        try:
            seconds = self._times.seconds(len(batch), run.draw(), run.running)
        except InputError as error:
            run.error = error
            raise
        waited = self._ended_at == now and batch[0][_SENT].at < now
        between_s = run.one_of(self._times.between_s) if waited else 0.0
        run.seen.batches[self.node].append((now, len(own)))
        run.seen.busy[self.node] += seconds
        run.running += 1
        let_pass(between_s + seconds)
        run.running -= 1
        self._ended_at = now = run.now()
        run.awake[get_ident()] = now
        for place in own:
            outcomes[place] = self._end(batch[place], now)
        return outcomes

    def _end(self, request: dict[str, Any], now: float) -> Exception | None:
        """Give the outcome of a request that has run."""
        flow, sent, draw = self._flow, request[_SENT], self._run.draw
        if flow.steps is not None and flow.steps > 1:
            steps = request.pop(_STEPS, 0) or 1 + int(
                math.log(1 - draw()) / math.log(1 - 1 / flow.steps)
            )
            ran = request.pop(f"{_STEPS}_ran", 0) + 1
            if ran < steps and ran == flow.steps_most:
                return LimitError(f"it took more than {ran} steps", limit=ran)
            if ran < steps:
                request[_STEPS], request[f"{_STEPS}_ran"] = steps, ran
                self._context.request.resume(self._context.request.keep(request))
                return headrace.PENDING
        sent.at = now
        if not flow.without_result or draw() >= flow.without_result:
            request["result"] = request["data"]
        return None


class Simulation:
    """Requests through the nodes of a pipeline in virtual time.

    Args:
        config: The configuration, in which the backend of each node is `SimulatedBatches`.
        flows: How the requests of each node go on.
        entry: The node at which requests enter.
        times: The times of batches of each node.
        seed: The seed of the random draws of times.
        wake_s: The mean time that a woken thread takes to go on, in seconds. Times are drawn from an exponential
            distribution. With 0, those of an open loop take times from the spread that was measured at the first node.
            The threads of a closed loop of one node then go on one after the other, and take the turns that were
            measured there: the interpreter runs one thread at a time. What was not measured takes no time.
        like: Sample requests, for policies that pick: each request is like one that is drawn from these.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        flows: Mapping[str, Flow],
        entry: str,
        times: Mapping[str, ServiceTimes],
        seed: int = 0,
        wake_s: float = 0.0,
        like: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.flows, self.times = flows, times
        self.draw = random.Random(seed).random  # noqa: S311 - no secret
        self._draw_like = random.Random(seed + 1).randrange  # noqa: S311 - no secret
        self.config, self._wake_s, self._like = config, wake_s, [*like] or [{}]
        self.seen = _Seen(batches={name: [] for name in flows}, busy=dict.fromkeys(flows, 0.0))
        self.awake: dict[int, float] = {}
        self.running = 0
        self.error: InputError | None = None
        self.now: Callable[[], float] = float
        self.entry, self._is_open = entry, False
        self._wakes_s: Sequence[float] = ()
        self._turns_s: Sequence[float] = ()
        self._turn_ends = self._last_sent = self._over = 0.0

    def closed_loop(self, clients: int, requests: int, warm_up: int) -> Point:
        """Simulate ``clients`` clients, each of which sends its next request when it has its answer.

        The figures leave out the first ``warm_up`` answers, and the requests that end after the last of ``requests``
        requests was sent.
        """
        left = itertools.count()
        if len(self.flows) == 1:
            self._turns_s = self.times[self.entry].turns_s

        def goes_on() -> bool:
            return self.error is None and next(left) < requests

        def run(pipe: headrace.Pipeline) -> list[threading.Thread]:
            def call(request: dict[str, Any]) -> None:
                self._last_sent = self.awake[get_ident()] = request[_SENT].at = self.now()
                try:
                    pipe(request)
                finally:
                    self.wake_up(answered=True)

            args = (call, self._requests(), self, goes_on, self.now)
            return [
                threading.Thread(target=client, args=args) for _ in range(min(clients, requests))
            ]

        self._run(run)
        return self._point({"kind": "closed", "clients": clients}, warm_up)

    def open_loop(self, arrivals: Iterable[float], about: dict[str, Any], warm_up: int) -> Point:
        """Simulate requests that arrive at given times, in seconds.

        The figures leave out the first ``warm_up`` answers, and the requests that end after the last one has come, which count
        where each is an `Arrival`.
        The thread that sends wakes up for each request, and the thread that waits for its answer at the end. An `Arrival` has the
        priority, the weight and the deadline of its request, and is told how long that took.
        Latencies count from the given arrival time.
        """
        self._is_open = True
        if not self._wake_s:
            self._wakes_s = self.times[self.entry].wakes_s

        def run(pipe: headrace.Pipeline) -> list[threading.Thread]:
            def coming() -> Iterator[float]:
                for self._last_sent in arrivals:
                    yield self._last_sent

            def submit(request: dict[str, Any]) -> Any:
                sent.append(self._submit(pipe, request))
                while sent[0].done() and len(sent) > 1:
                    sent.popleft()
                return sent[-1]

            def send_all() -> None:
                notes: Any = self
                send(submit, self._requests(), coming(), notes, self._pause, self.now)
                for sending in sent:  # before the close, of which policies would hear
                    sending.exception()

            sent: deque[Any] = deque()
            return [threading.Thread(target=send_all)]

        self._run(run)
        return self._point(about, warm_up)

    def _submit(self, pipe: headrace.Pipeline, request: dict[str, Any]) -> Future[Any]:
        request[_SENT].at = self.now()
        at = self._last_sent
        if not isinstance(at, Arrival):
            return pipe.submit(request)
        request["request_size"] = max(1, at.visit.own_weight)
        future = pipe.submit(request, priority=at.visit.priority, timeout=at.timeout_s)
        future.add_done_callback(lambda _: setattr(at, "took_s", self.now() - at))
        return future

    # How it runs.

    def _run(self, load: Callable[[headrace.Pipeline], Sequence[threading.Thread]]) -> None:
        """Let the threads of a load run on a pipeline in virtual time."""
        testing = library("headrace_testing", "simulate", "headrace simulate")
        headrace.register(BACKEND, SimulatedBatches, replace=True)
        SimulatedBatches.simulation = self
        with ExitStack() as undo:
            undo.callback(delattr, SimulatedBatches, "simulation")
            try:
                self.now = undo.enter_context(testing.virtual_time(limit_s=math.inf))
            except RuntimeError as error:
                raise SetupError(f"nothing can be simulated here: {error}") from error
            self._send_all(load)
        if self.error is not None:
            raise self.error

    def _send_all(self, load: Callable[[headrace.Pipeline], Sequence[threading.Thread]]) -> None:
        pipe = headrace.pipe(self.config)
        threads = [*load(pipe)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.close(timeout=None)
        self._over = self.now()

    def _requests(self) -> Iterator[dict[str, Any]]:
        """Give requests without end, each like one of the samples."""
        counts = {n: f.elements for n, f in self.flows.items() if f.elements is not None}
        while True:
            request = {"data": None, **self._like[self._draw_like(len(self._like))]}
            request[_SENT] = SimpleNamespace(at=0.0)  # when it came to the node
            for name, mean in counts.items():  # rounded up or down at random
                request[elements_key(name)] = [None] * (int(mean) + (self.draw() < mean % 1))
            yield request

    def one_of(self, spread: Sequence[float]) -> float:
        """Draw from a spread; 0 where it is empty."""
        return spread[int(self.draw() * len(spread))] if spread else 0.0

    def _waking(self) -> float:
        """Draw the time that a thread takes to wake up, in seconds."""
        if self._wakes_s:
            return self.one_of(self._wakes_s)
        return -self._wake_s * math.log(1 - self.draw()) if self._wake_s else 0.0

    def _pause(self, seconds: float) -> bool:
        """Let the thread that sends wait; one that is late does not sleep. Tell whether sending ends."""
        if seconds:
            let_pass(seconds + self._waking())
        return self.error is not None

    def wake_up(self, *, answered: bool = False) -> None:
        """Let the calling thread take the time of waking up, if it was asleep; then, with an answer, that of its turn."""
        now = self.now()
        is_awake = self.awake.get(get_ident()) == now
        if is_awake and not answered:
            return
        at = now if is_awake else now + self._waking()
        if self._turns_s and answered:
            at = self._turn_ends = max(at, self._turn_ends) + self.one_of(self._turns_s)
        if at > now:
            let_pass(at - now)

    # What the threads of a load note: see `headrace_observe.bench.notes.Notes`.

    def ok(self, ended: float, latency: float) -> None:
        """Note a success; in an open loop, who waits for the answer wakes up first."""
        late = self._waking() if self._is_open else 0.0
        self.seen.answers.append((ended + late, latency + late))

    def failed(self, ended: float, error: BaseException) -> None:
        """Note a failure; what a policy of the configuration has raised ends the simulation."""
        code = code_of(error)
        if code == "contract" and self.error is None:
            self.error = InputError(str(error))
        self.seen.failed.append((ended, code))

    # The figures.

    def _point(self, about: dict[str, Any], warm_up: int) -> Point:
        log, end = self.seen, self._last_sent
        log.answers.sort(key=lambda answer: answer[0])
        ended = [at for at, _ in log.answers]
        if isinstance(end, Arrival):  # all that came are of interest, also where they are too many
            end = math.nextafter(max([self._over, *ended[-1:]]), math.inf)
        start = ended[warm_up - 1] if 0 < warm_up <= len(ended) else 0.0
        start = min(start, end)
        first, last = bisect_left(ended, start), bisect_left(ended, end)
        if last <= first:  # with so few requests all ended after the last one was sent
            first, last = 0, len(ended)
            start, end = 0.0, ended[-1] if ended else end
        latencies = array("d", [seconds for _, seconds in log.answers[first:last]])
        window = Window(start, end, latencies)
        window.failed.update(code for at, code in log.failed if start <= at <= end)
        sizes = {
            name: Counter(size for at, size in batches if start <= at <= end)
            for name, batches in log.batches.items()
        }
        over = max(self._over, self._last_sent)
        busy = {
            name: round(log.busy[name] / (over * flow.instance_num), 4) if over else 0.0
            for name, flow in self.flows.items()
        }
        beyond = {n: sorted(t.extrapolated) for n, t in self.times.items() if t.extrapolated}
        more: dict[str, Any] = {"simulated": True, "utilisation": busy, "extrapolated": beyond}
        return Point(about, SIMULATED_CLOCK, window, nodes=sizes, more=more)
