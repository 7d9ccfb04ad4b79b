"""``--workers``: several whole processes that share the ports, and are started again when they die.

Each process has every model, its own queues and its own bounds. The kernel of Linux spreads connections over the
processes that listen (SO_REUSEPORT), so a dead process gets none, and each process reports its own readiness.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem
from headrace.plugins import usable_cpus
from headrace_serve.operating.listening import REUSES_PORTS, bound, not_listening, url_of
from headrace_serve.operating.logs import say
from headrace_serve.operating.running import announce, signals
from headrace_serve.operating.supervisor import Supervisor
from headrace_serve.process import CPU_COUNT

if TYPE_CHECKING:
    from headrace_serve.operating.running import Listening
    from headrace_serve.operating.settings import Settings

__all__ = ["run_workers"]

_CROWDED = (
    "warning: model {model!r} may run {most} threads at a time in each worker, which has {share};"
    " with fewer instances (instance_num) or threads they do not wait for each other"
)
_TOLD_S = 5.0
"""Seconds for a process to take the message that all are ready, unless it has ended."""

_GRACE_S = 10.0
"""A process is killed if it has not ended this many seconds after the time for draining."""


def run_workers(settings: Settings, count: int, listening: Listening | None = None) -> int:
    """Serve with several processes until a signal. Give the exit status.

    Args:
        settings: The models, and how they are served.
        count: The number of processes.
        listening: Called with the addresses once the models of all processes take requests.

    Raises:
        ConfigError: A setting or a configuration is wrong, or the platform lacks what several processes need.
        SetupError: A port is in use, or cannot be bound.
    """
    _check_platform(settings)
    settings.shared(settings.port, settings.grpc_port, settings.admin_port, count).check()
    # These sockets are bound but do not listen. So no other program can take the ports while no worker process
    # listens, and the kernel gives all connections to the worker processes.
    wanted = {
        "--port": settings.port,
        "--grpc-port": settings.grpc_port,
        "--admin-port": settings.admin_port,
    }
    with contextlib.ExitStack() as taken:
        sockets: list[Any] = [
            None if port is None else taken.enter_context(_held(settings.host, port, option))
            for option, port in wanted.items()
        ]
        held = taken.pop_all()
    ports: list[Any] = [each and each.getsockname()[1] for each in sockets]
    shared = settings.shared(ports[0], ports[1], ports[2], count)
    cores = usable_cpus()
    each = max(1, cores // count)
    threads: dict[str, int] = {}
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    told = threading.Semaphore(0)

    def all_ready() -> None:
        for number in supervisor.workers:
            supervisor.send(number, {"served": True})
        for _ in supervisor.workers:  # so that whoever reads the addresses finds all ready
            told.acquire(timeout=_TOLD_S)
        scheme = "http" if shared.tls_cert is None else "https"
        grpc = None if ports[1] is None else url_of("grpc", shared.host, ports[1])
        admin = None if ports[2] is None else url_of(scheme, shared.host, ports[2])
        announce(shared, url_of(scheme, shared.host, shared.port), grpc, listening, admin)
        share = f"1 of {cores} cores" if each == 1 else f"{each} of {cores} cores"
        say(f"{count} workers, each with all models loaded, bounds of its own and {share}")
        for model, most in threads.items():
            if most > each:
                say(_CROWDED.format(model=model, most=most, share=share))

    supervisor = Supervisor(
        count,
        lambda number: _spawn(
            number, shared, each, threads, events, told, listen_first=not supervisor.served
        ),
        all_ready=all_ready,
        end_s=shared.drain_delay_s + shared.drain_timeout_s + _GRACE_S,
        answer_s=shared.worker_healthcheck_s,
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
            held.close()


def _check_platform(settings: Settings) -> None:
    if settings.ui:
        problem = "--ui with --workers: the page shows one process, and a browser would reach another one each time"
        hint = "Serve with one process, or look at /metrics, which names the worker of each sample."
        raise ConfigError(Problem("serve", problem, hint=hint))
    if not REUSES_PORTS:
        problem = "--workers needs Linux, whose kernel spreads connections over processes"
        hint = "Serve with one process, and take cores by Process[X] in the pipeline."
        raise ConfigError(Problem("serve", problem, hint=hint))


def _held(host: str, port: int, option: str) -> Any:
    """Return a socket for a port that no other program has, and that only worker processes can take from now on.

    The socket is bound before it shares the port, because one that shares from the start also gets the port of another
    program that shares it. The first try takes no port with connections that are left: without it, two programs that
    start at the same time can both bind.

    Raises:
        SetupError: Another program has the port, or the address is wrong.
    """
    try:
        try:
            held = bound(host, port, shared=False, left=False)
        except OSError:
            held = bound(host, port, shared=False)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        raise not_listening(host, port, error, option) from error
    return held


def _spawn(
    number: int,
    settings: Settings,
    cores: int,
    threads: dict[str, int],
    events: queue.SimpleQueue[Any],
    told: threading.Semaphore,
    *,
    listen_first: bool,
) -> Any:
    """Start a worker process, and a thread that reports when its models take requests, what it sends, and when it has ended.

    Args:
        number: The number of the worker, from 1.
        settings: What the process serves, and how.
        cores: The cores for this process, over which its pipelines divide their threads.
        threads: Gets the number of threads that each model may run in the process.
        events: The queue into which the thread puts its events.
        told: Is released when the process knows that all are ready.
        listen_first: Whether the process listens before its models are built. One that is started again does not, because
            the system gives connections to every process that listens, and others have their models.
    """
    reading, writing = os.pipe()
    # The process gets a session of its own, so that Ctrl-C reaches the supervisor alone, which ends the processes.
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace_serve.operating.worker"],
        stdin=subprocess.PIPE,
        env={**os.environ, CPU_COUNT: str(cores)},
        pass_fds=[writing],
        start_new_session=True,
        text=True,
    )
    os.close(writing)
    setup = {
        "worker": number, "ready": writing, "settings": settings.to_json(), "listen_first": listen_first,
    }  # fmt: skip
    stdin: Any = process.stdin
    with contextlib.suppress(BrokenPipeError):  # the process has ended, which `watch` notices
        stdin.write(json.dumps(setup) + "\n")
        stdin.flush()

    def watch() -> None:
        with os.fdopen(reading, encoding="utf-8") as reports, contextlib.suppress(ValueError):
            for line in reports:  # the last line of a killed process may be cut: ValueError
                message = json.loads(line)
                if "served" in message:
                    told.release()
                    continue
                threads.update(message.get("ready", ()))
                kind = next((kind for kind in ("ready", "pong") if kind in message), None)
                events.put(("message", number, message) if kind is None else (kind, number))
        status = process.wait()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        events.put(("exit", number, status))

    threading.Thread(target=watch, name=f"headrace-serve-worker-{number}", daemon=True).start()
    return process
