"""``--workers``: whole processes that share the ports, started again when they die.

Each has every model, its own queues and its own bounds. On Linux the kernel spreads connections over them
(SO_REUSEPORT), so a process that is not there gets none, and each answers for itself whether it is ready. Elsewhere
all inherit one socket, of which most connections come to one of them, and there is no gRPC.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem, SetupError
from headrace_serve.listening import REUSES_PORTS, bound, listen, reaches_others, url_of
from headrace_serve.running import HANGUP, OPEN, announce, say, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_serve.running import Listening
    from headrace_serve.settings import Settings

__all__ = ["Supervisor", "Worker", "run_workers"]

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_HEALTHY_S = 1.0
"""A process that has served so long was well, and its requests do not kill it at once: the pauses begin anew."""

_CPU_COUNT = "PYTHON_CPU_COUNT"
"""The variable of the environment that tells Python, and pipelines, how many cores a process may use."""

_CROWDED = (
    "warning: model {model!r} may run {most} threads at a time in each worker, which has {share};"
    " with fewer instances (instance_num) or threads they do not wait for each other"
)
_GRACE_S = 10.0
"""Seconds beyond the time for draining, after which a process is killed."""


@dataclass
class Worker:
    """One process.

    Attributes:
        number: From 1.
        process: What `subprocess.Popen` gives; None while it is not there.
        ready: Whether it listens.
        reload: Whether it has missed a SIGHUP while it started.
        failures: How often it has died without having served for a while.
        since: When it listened, by the supervisor's clock.
        due: When it is started again; None: not.
    """

    number: int
    process: Any = None
    ready: bool = False
    reload: bool = False
    failures: int = 0
    since: float = 0.0
    due: float | None = None


class Supervisor:
    """Keeps processes running until it is told to end.

    It is told by ``events``: ``("ready", number)``, ``("exit", number, status)``, ``("signal", number)``.

    Args:
        count: How many processes.
        start: Starts one by its number, and puts its events into ``events``.
        all_ready: Called once, when all listen for the first time.
        end_s: Seconds for the processes to end, before they are killed.
        events: The events.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[int], Any],
        *,
        all_ready: Callable[[], None],
        end_s: float,
        events: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = {number: Worker(number) for number in range(1, count + 1)}
        self._start = start
        self._all_ready = all_ready
        self._end_s = end_s
        self._events = events
        self._clock = clock
        self._served = False
        self._ends: float | None = None
        self._status = 0

    def run(self) -> int:
        """Run until all have ended; give the exit status."""
        for worker in self.workers.values():
            self._begin(worker)
        while self._ends is None or any(one.process is not None for one in self.workers.values()):
            try:
                kind, *told = self._events.get(timeout=self._until_due())
            except queue.Empty:
                self._on_time()
                continue
            getattr(self, f"_on_{kind}")(*told)
        return self._status

    def kill(self) -> None:
        """End all at once."""
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.kill()

    def _begin(self, worker: Worker) -> None:
        worker.due = None
        worker.ready = worker.reload = False
        worker.process = self._start(worker.number)

    def _until_due(self) -> float | None:
        times = [one.due for one in self.workers.values() if one.due is not None]
        if self._ends is not None:
            times = [self._ends]
        return max(0.0, min(times) - self._clock()) if times else None

    def _on_time(self) -> None:
        now = self._clock()
        if self._ends is not None:
            if now >= self._ends:
                self.kill()
                self._ends = now + self._end_s
            return
        for worker in self.workers.values():
            if worker.due is not None and worker.due <= now:
                self._begin(worker)

    def _on_ready(self, number: int) -> None:
        worker = self.workers[number]
        worker.ready, worker.since = True, self._clock()
        if worker.reload and worker.process is not None and HANGUP is not None:
            worker.reload = False
            worker.process.send_signal(HANGUP)
        if not self._served and all(one.ready for one in self.workers.values()):
            self._served = True
            self._all_ready()

    def _on_exit(self, number: int, status: int) -> None:
        worker = self.workers[number]
        worker.process = None
        ready, worker.ready = worker.ready, False
        if self._ends is not None:
            if ready and status != 0:
                say(f"worker {number} ended with {status}")
                self._status = self._status or 1
            return
        if not self._served:
            say(f"worker {number} ended with {status} before all had started")
            self._status = status if status > 0 else 1
            self._finish()
            return
        now = self._clock()
        if ready and now - worker.since >= _HEALTHY_S:
            worker.failures = 0
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**worker.failures)
        worker.failures += 1
        worker.due = now + pause_s
        say(f"worker {number} ended with {status}; it is started again in {pause_s:g} s")

    def _on_signal(self, number: int) -> None:
        if number != HANGUP:
            say("draining")
            self._finish()
            return
        for worker in self.workers.values():
            if worker.ready and worker.process is not None:
                worker.process.send_signal(number)
            else:
                worker.reload = True

    def _finish(self) -> None:
        """Tell all to end."""
        self._ends = self._clock() + self._end_s
        for worker in self.workers.values():
            worker.due = None
            if worker.process is not None:
                worker.process.terminate()


def run_workers(settings: Settings, count: int, listening: Listening | None = None) -> int:
    """Serve with several processes until a signal; give the exit status.

    Args:
        settings: What is served, and how.
        count: How many processes.
        listening: Called with the addresses once all listen.

    Raises:
        ConfigError: A setting or a configuration is wrong, or the platform cannot do it.
        SetupError: A port cannot be listened on.
    """
    _check_platform(settings)
    settings.shared(settings.port, settings.grpc_port).check()
    # On Linux bound and not listening: the ports stay ours, and the processes get all connections.
    held = [_held(settings.host, settings.port)]
    if settings.grpc_port is not None:
        held.append(_held(settings.host, settings.grpc_port))
    inherited = None if REUSES_PORTS else held[0].fileno()
    ports = [one.getsockname()[1] for one in held] + [None]
    shared = settings.shared(ports[0], ports[1])
    cores = _usable_cores()
    each = max(1, cores // count)
    threads: dict[str, int] = {}
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def all_ready() -> None:
        scheme = "http" if shared.tls_cert is None else "https"
        grpc = None if ports[1] is None else url_of("grpc", shared.host, ports[1])
        announce(url_of(scheme, shared.host, shared.port), grpc, listening)
        if reaches_others(shared.host) and shared.keys is None and shared.tls_client_ca is None:
            say(OPEN)
        share = f"1 of {cores} cores" if each == 1 else f"{each} of {cores} cores"
        say(f"{count} workers, each with all models loaded, bounds of its own and {share}")
        for model, most in threads.items():
            if most > each:
                say(_CROWDED.format(model=model, most=most, share=share))

    supervisor = Supervisor(
        count,
        lambda number: _spawn(number, shared, inherited, each, threads, events),
        all_ready=all_ready,
        end_s=shared.drain_delay_s + shared.drain_timeout_s + _GRACE_S,
        events=events,
    )
    with signals(second=supervisor.kill) as came:

        def forward() -> None:
            for number in came:
                events.put(("signal", number))

        threading.Thread(target=forward, name="headrace-serve-signals", daemon=True).start()
        try:
            return supervisor.run()
        finally:
            supervisor.kill()
            for one in held:
                one.close()


def _check_platform(settings: Settings) -> None:
    if sys.platform == "win32":
        what = "--workers needs sockets that processes inherit, which Windows does not have"
    elif settings.grpc_port is not None and not REUSES_PORTS:
        what = "gRPC with --workers needs Linux, whose kernel spreads connections over processes"
    else:
        return
    hint = "Serve with one process, and take cores by Process[X] in the pipeline."
    raise ConfigError(Problem("serve", what, hint=hint))


def _held(host: str, port: int) -> Any:
    try:
        if not REUSES_PORTS:
            return listen(host, port)
        return bound(host, port, shared=True)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="Another program may use the port; choose another with --port or --grpc-port.",
        ) from error


def _usable_cores() -> int:
    said = os.environ.get(_CPU_COUNT, "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _spawn(
    number: int,
    settings: Settings,
    listener: int | None,
    cores: int,
    threads: dict[str, int],
    events: queue.SimpleQueue[Any],
) -> Any:
    """Start a process, and threads that tell when it listens and when it has ended.

    Args:
        number: From 1.
        settings: What it serves.
        listener: The file of the socket that all inherit; None: each has one of its own.
        cores: Its share of the cores, over which its pipelines divide their threads.
        threads: Takes how many threads each model may run there.
        events: Where the threads put what they tell.
    """
    reading, writing = os.pipe()
    # A session of its own: Ctrl-C reaches the supervisor alone, which tells all others.
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace_serve.worker"],
        stdin=subprocess.PIPE,
        env={**os.environ, _CPU_COUNT: str(cores)},
        pass_fds=[writing] if listener is None else [writing, listener],
        start_new_session=True,
        text=True,
    )
    os.close(writing)
    told = {
        "worker": number, "ready": writing, "listener": listener, "settings": settings.to_json()
    }  # fmt: skip
    stdin: Any = process.stdin
    with contextlib.suppress(BrokenPipeError):  # it has ended, which is noticed below
        stdin.write(json.dumps(told) + "\n")
        stdin.flush()

    def watch() -> None:
        with os.fdopen(reading, "rb") as ready:
            told_back = ready.read()
        with contextlib.suppress(ValueError):  # it is gone before it has told
            threads.update(json.loads(told_back))
            events.put(("ready", number))
        status = process.wait()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        events.put(("exit", number, status))

    threading.Thread(target=watch, name=f"headrace-serve-worker-{number}", daemon=True).start()
    return process
