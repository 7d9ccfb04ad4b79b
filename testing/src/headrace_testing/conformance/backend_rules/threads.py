"""Rules about threads: several instances, several threads, and the state of each thread."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_testing.conformance.frames import current_frames
from headrace_testing.conformance.live import USUAL_BATCH
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.values import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import TypeAlias

    from headrace.keys import Request
    from headrace_testing.conformance.live import Live
    from headrace_testing.conformance.subject import Subject

T = TypeVar("T")

_ROUNDS = 3
_LIMIT_S = 120.0
_PATIENCE_S = 2.0
_STORM, _STORM_S, _SWITCH_S = 50, 1.0, 1e-6
"""How many batches each of two instances runs beside the other, for how long, and how often Python changes threads."""

_PLACES, _PLACES_S = 1000, 5.0
"""In front of how many instructions another instance runs a batch, and for how long."""

_GLANCE_S, _RESTS_S = 0.001, 0.03
"""How often to look whether an instance still waits for a lock, and how long it sleeps at one place where it does."""

_HELD = "where an instance holds a lock that another one waits for"
"""The key of `Subject.measured` under which `instances-agree` leaves these instructions to `instances-help`."""

_HELD_S, _HELD_SHARE = 1e-3, 0.5
"""A lock that is held longer, and for a larger part of a batch, makes instances useless."""

_MEASURED, _MEASURED_S = 5, 2.0
"""How many batches are measured at least, and for how long where a lock seems to be held: a busy machine makes all of a few long."""


def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a new thread; give its result, or raise its error."""
    (result,) = _together([function])
    return result


def _together(functions: list[Callable[[], T]]) -> list[T]:
    """Call functions, each in a thread of its own, all at the same moment."""
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(functions))

    def run(place: int) -> None:
        try:
            barrier.wait(_LIMIT_S)
            results[place] = functions[place]()
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S)
    if any(thread.is_alive() for thread in threads):
        raise Broken(f"a call did not end within {_LIMIT_S:.0f} s")
    if errors:
        raise errors[0]
    return results


def _result(pool: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    return pool.submit(function).result(_LIMIT_S)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[list[Callable[[Callable[[], Any]], Any]]]:
    """Return threads that live at the same time, so that no two of them have the same identifier."""
    pools = [ThreadPoolExecutor(1, "headrace-conformance") for _ in range(count)]
    try:
        for pool in pools:
            pool.submit(threading.get_ident).result(_LIMIT_S)
        yield [functools.partial(_result, pool) for pool in pools]
    finally:
        for pool in pools:
            pool.shutdown(wait=False)


@rule("instances-agree", "threads-in-turn")
def instances_agree(subject: Subject) -> None:
    """A node may have several instances, which run at the same time and must not disturb each other.

    Two instances of one node, each in a thread of its own, run different batches at the same time, again and
    again, while Python changes between threads as often as it can. Then one runs a batch, and before each instruction of the
    backend's package the other one runs another batch in between (unless it waits for a lock). Every request gets the same result as
    from one instance alone.
    """
    live = subject.build(instance_num=2)
    if len(live.instances) != 2:
        raise Broken(f"a node with instance_num = 2 has {len(live.instances)} instance(s)")

    def work(index: int) -> list[tuple[int, Any]]:
        results: list[tuple[int, Any]] = []
        until = time.monotonic() + _STORM_S * subject.share
        for turn in range(_STORM):
            if turn >= _ROUNDS and time.monotonic() > until:
                break
            start = (turn + index) % _ROUNDS
            batch = live.take(lambda k, start=start: subject.item(start + k))  # type: ignore[misc]
            results += [(start + k, kept(r)) for k, r in enumerate(live.results(batch, index))]
        return results

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        both = _together([lambda: work(0), lambda: work(1)])
    finally:
        sys.setswitchinterval(interval_s)
    for index, results in enumerate(both):
        for k, result in results:
            problem = f"beside another instance, instance {index} gives request {k} something else"
            subject.must_equal(result, subject.expected(k), problem)
    subject.measured[_HELD] = _in_between(subject, live)
    if subject.measured[_HELD]:  # twice: a machine that stands still for a moment is no lock
        subject.measured[_HELD] &= _in_between(subject, live, subject.measured[_HELD])
    subject.done(live)


_Place: TypeAlias = "tuple[CodeType, int]"


def _in_between(subject: Subject, live: Live, only: set[_Place] | None = None) -> set[_Place]:
    """Run a batch of the first instance, and between its instructions batches of the second one; give where that waits."""
    ours = list(range(len(live.take(subject.item, 2))))
    theirs = [k + len(ours) for k in range(len(live.take(subject.item, 3)))]
    for k in (*ours, *theirs):
        subject.expected(k)
    run = functools.partial(subject.must_give, live, theirs, "while another instance runs", index=1)
    begin = time.monotonic()
    run()
    alone_s = time.monotonic() - begin
    between: list[Future[None]] = []
    places, locks = set[_Place](), set[_Place]()
    until = time.monotonic() + _PLACES_S
    rests: _Rest | None = None

    def step(place: _Place) -> None:
        nonlocal rests
        if place in places or len(places) == _PLACES or time.monotonic() > until:
            return
        if only is not None and place not in only:
            return
        places.add(place)
        if not between or between[-1].done():
            between.append(pool.submit(run))
            rests = None
        if rests is not None:
            wait(between[-1:], _GLANCE_S)
        if rests is None or _rest_of(thread) != rests:
            rests = _until_it_rests(between[-1], thread, 5 * alone_s)
        if not between[-1].done():
            locks.add(place)

    with ThreadPoolExecutor(1, "headrace-conformance") as pool:
        thread = pool.submit(threading.current_thread).result(_LIMIT_S)
        with _stepping(subject, live, step):
            subject.must_give(live, ours, "while another instance runs batches in between")
        for call in between:
            call.result(_LIMIT_S)
    return locks


_Rest: TypeAlias = "tuple[FrameType | None, int, str]"


def _rest_of(thread: threading.Thread) -> _Rest:
    """Return where a thread is, and whether the system lets it sleep ("S"), as far as it says so."""
    frame = current_frames().get(thread.ident or 0)
    try:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="utf-8")
        state = stat.rpartition(") ")[2][:1]
    except OSError:
        state = "S"
    return frame, -1 if frame is None else frame.f_lasti, state


def _until_it_rests(future: Future[None], thread: threading.Thread, least_s: float) -> _Rest:
    """Wait until a call has ended, or its thread sleeps at one place: it waits for a lock."""
    least_s, until = max(_RESTS_S, least_s), time.monotonic() + max(_PATIENCE_S, 4 * least_s)
    rest, since = _rest_of(thread), time.monotonic()
    while not future.done() and time.monotonic() < until:
        wait([future], _GLANCE_S)
        now = _rest_of(thread)
        if now != rest or now[2] != "S":
            rest, since = now, time.monotonic()
        elif time.monotonic() - since > least_s:
            break
    return rest


@contextlib.contextmanager
def _stepping(subject: Subject, live: Live, step: Callable[[_Place], None]) -> Iterator[None]:
    """Call a function before each instruction of the backend's package, in ``forward`` of the first instance."""
    package = subject.cls.__module__.partition(".")[0]
    root, own = live.root, vars(live.root).get("forward")
    forward = root.forward

    def instruction(frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            step((frame.f_code, frame.f_lasti))
        return instruction

    def call(frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] != package:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return instruction

    def traced(batch: list[Request]) -> Any:
        before = sys.gettrace()
        sys.settrace(call)
        try:
            return forward(batch)
        finally:
            sys.settrace(before)

    root.forward = traced  # type: ignore[method-assign]
    try:
        yield
    finally:
        del root.forward
        if own is not None:
            root.forward = own  # type: ignore[method-assign]


@rule("instances-help", "instances-agree")
def instances_help(subject: Subject) -> str:
    """Instances run at the same time to be faster: a lock that all of them take leaves one at work, and the others waiting.

    No lock that instances share is held for a millisecond of a usual batch, and for half of it. What C libraries lock is
    not seen.
    """
    locks: set[_Place] = subject.measured.get(_HELD, set())
    if not locks:
        return "no instance waits for another one"
    live = subject.build()
    whole_s, there_s, untraced_s = math.inf, math.inf, math.inf
    until = time.monotonic() + _MEASURED_S
    for turn in itertools.count(1):
        batch = live.take(subject.item)
        begin = time.perf_counter()
        live.results(batch)
        # The shortest of each: the machine may have had something else to do meanwhile.
        untraced_s = min(untraced_s, time.perf_counter() - begin)
        there, whole = _spent(subject, live, locks)
        there_s, whole_s = min(there_s, there), min(whole_s, whole)
        share = min(1.0, there_s / whole_s)
        held_s = share * untraced_s
        is_held = share > _HELD_SHARE and held_s > _HELD_S
        if turn >= _MEASURED and (not is_held or time.monotonic() > until):
            break
    subject.done(live)
    text = f"an instance holds a lock that the others wait for during {share:.0%} of a batch"
    if is_held:
        raise Broken(f"{text}, {1e3 * held_s:.1f} ms: let each have what it computes with")
    return text


def _spent(subject: Subject, live: Live, locks: set[_Place]) -> tuple[float, float]:
    """Return how many seconds of a batch are spent at some instructions, and how many it takes."""
    at: list[tuple[_Place | None, float]] = [(None, time.perf_counter())]
    with _stepping(subject, live, lambda place: at.append((place, time.perf_counter()))):
        live.results(live.take(subject.item))
    at.append((None, time.perf_counter()))
    spent = [(place, end - begin) for (place, begin), (_, end) in itertools.pairwise(at)]
    return sum(s for place, s in spent if place in locks), sum(s for _, s in spent)


@rule("threads-in-turn", "order-kept")
def threads_in_turn(subject: Subject) -> str:
    """Any thread may run a batch, unless the class says `owns_thread = True`.

    The backend is built in one thread, called in turn by three others and closed by a fifth. The
    results stay the same and `close` raises nothing. A backend that cannot do that must declare
    `owns_thread = True`: then core runs `init`, every `forward` and `close` in one thread.
    """
    with _threads(_ROUNDS + 2) as threads:
        live: Live = threads[0](subject.build)
        ks = list(range(len(live.take(subject.item))))
        for turn in range(1, _ROUNDS + 1):
            moment = f"in thread {turn} after that of init"
            try:
                threads[turn](functools.partial(subject.must_give, live, ks, moment))
            except Broken as error:
                raise Broken(f"{moment} it does not do what it does alone: {error}") from error
        threads[-1](lambda: subject.done(live))
    return "it owns its thread" if subject.cls.owns_thread else "any thread may run it"


@rule("thread-state-kept", "threads-in-turn", "closes-unused")
def thread_state_kept(subject: Subject) -> None:
    """The thread that runs a batch belongs to others: to a caller, or to another pipeline.

    In a thread that builds it, calls it (with usual batches, the largest one, a bad request) and closes it,
    the backend leaves context variables as they were, and so the state that libraries and the system keep
    per thread: decimal contexts, numpy's error state, torch's gradient and inference modes and its current
    CUDA device and stream, the event loop, tracing, and the thread's name. A backend that owns its thread may change the
    state of that thread.
    """
    live = subject.live

    def calls() -> str | None:
        import decimal

        decimal.getcontext()
        live.results(live.take(subject.item))  # at their first use libraries set up their own state
        before = _state()
        for want in (USUAL_BATCH, live.weights[-1]):
            live.results(live.take(subject.repeating, want))
        return _changed(before, _state())

    def life() -> str | None:
        import decimal

        decimal.getcontext()
        before = _state()
        own = subject.build()
        own.results(own.take(subject.item))
        own.alone({})
        subject.done(own)
        return _changed(before, _state())

    for work, when in (
        (lambda: _first_call(subject), "a batch"),
        (calls, "a batch"),
        (life, "a whole life"),
    ):
        changed = in_thread(work)
        if changed is not None:
            raise Broken(f"after {when} the thread has another {changed}")


def _first_call(subject: Subject) -> str | None:
    """Return the first of the backend's own context variables that its first call leaves changed."""
    import decimal

    decimal.getcontext()
    before = _variables()
    subject.live.results(subject.live.take(subject.item))
    after = _variables()
    own = {key: value for key, value in after.items() if before.get(key) is not value}
    return f"context variable {next(iter(own)).name!r}" if own else None


def _variables() -> dict[contextvars.ContextVar[Any], Any]:
    return dict(contextvars.copy_context().items())


def _state() -> dict[str, Any]:
    import decimal

    context = decimal.getcontext()
    state: dict[str, Any] = {
        "context variables": {var.name: id(value) for var, value in _variables().items()},
        "decimal context": (context.prec, context.rounding, repr(context.traps)),
        "trace function": (sys.gettrace(), sys.getprofile()),
        "pair of hooks of asynchronous generators": sys.get_asyncgen_hooks(),
        "event loop": _event_loop(),
        "name": threading.current_thread().name,
    }
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "geterr"):
        state["error state of numpy"] = dict(numpy.geterr())
    if torch is not None and hasattr(torch, "is_grad_enabled"):
        state["gradient mode of torch"] = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        )
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["CUDA device of torch"] = torch.cuda.current_device()
            state["CUDA stream of torch"] = torch.cuda.current_stream()
    return state


def _event_loop() -> Any:
    """Return the event loop that is set in a thread that is not the main one, None without one."""
    asyncio: Any = sys.modules.get("asyncio")
    with contextlib.suppress(RuntimeError):
        return None if asyncio is None else asyncio.get_event_loop()
    return None


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for key, value in after.items():
        if key in before and before[key] != value:
            return key
    return None


RULES: tuple[Rule, ...] = (
    instances_agree,
    instances_help,
    threads_in_turn,
    thread_state_kept,
)
