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
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, Problem, SetupError
from headrace_serve.listening import REUSES_PORTS, bound, listen, reaches_others, url_of
from headrace_serve.running import OPEN, announce, say, signals
from headrace_serve.supervisor import Supervisor

if TYPE_CHECKING:
    from headrace_serve.running import Listening
    from headrace_serve.settings import Settings

__all__ = ["run_workers"]

_CPU_COUNT = "PYTHON_CPU_COUNT"
"""The variable of the environment that tells Python, and pipelines, how many cores a process may use."""

_CROWDED = (
    "warning: model {model!r} may run {most} threads at a time in each worker, which has {share};"
    " with fewer instances (instance_num) or threads they do not wait for each other"
)
_GRACE_S = 10.0
"""Seconds beyond the time for draining, after which a process is killed."""


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
        with os.fdopen(reading, encoding="utf-8") as told_back, contextlib.suppress(ValueError):
            for line in told_back:  # the last of a killed process may be cut
                message = json.loads(line)
                threads.update(message.get("ready", ()))
                events.put(("ready", number) if "ready" in message else ("told", number, message))
        status = process.wait()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        events.put(("exit", number, status))

    threading.Thread(target=watch, name=f"headrace-serve-worker-{number}", daemon=True).start()
    return process
