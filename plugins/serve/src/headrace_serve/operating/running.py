"""Runs a server from its start to the signal that ends it."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from typing import TYPE_CHECKING

from headrace.errors import ClosedError, HeadraceError
from headrace_models import Memory
from headrace_serve.operating.allocator import keep_freed_memory
from headrace_serve.operating.init_process import HANGUP
from headrace_serve.operating.listening import reaches_others
from headrace_serve.operating.logs import quoted, say

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    from headrace_serve.operating.server import Server
    from headrace_serve.operating.settings import Settings
    from headrace_serve.operating.worker_changes import WorkerChanges

    Listening = Callable[[dict[str, str | None]], None]

__all__ = ["INTERRUPTED", "announce", "run", "signals"]

_OPEN = "warning: everybody who can reach this address can send requests"
_PLAIN = "warning: without TLS, keys and requests can be read on their way"

INTERRUPTED = 130
"""The exit status after Ctrl-C, and if a second signal ends the process at once."""

_TWICE_S = 0.2
"""The same signal once more within so many seconds is no second one: ``timeout`` sends it to its child and to the group."""

_OTHER_FILES = 1024
"""Files that are open beside connections: those of models and their processes."""


def run(
    settings: Settings,
    listening: Listening | None = None,
    *,
    worker: int | None = None,
    worker_changes: WorkerChanges | None = None,
    started: Callable[[Server], None] | None = None,
    listen_first: bool = True,
    early: Sequence[int] = (),
) -> int:
    """Serve until a signal, drain, and give the exit status: 0 after SIGTERM, 130 after Ctrl-C (SIGINT).

    Args:
        settings: The models, and how they are served.
        listening: Called with the addresses once all models take requests.
        worker: The number of this worker process. None: the server is this process alone.
        worker_changes: Makes in all worker processes the changes that requests ask for.
        started: Called once all models take requests, instead of printing the addresses and calling ``listening``.
        listen_first: Whether the server listens before its models are built.
        early: Has an element once a SIGHUP came before the signals are caught here, as of `hangups`.

    Raises:
        ConfigError, SetupError, PluginError: As `Server` raises them.
    """
    keep_freed_memory()
    who = "" if worker is None else f"worker {worker}: "
    with contextlib.ExitStack() as until_the_end:
        server = settings.server(worker, worker_changes, listen_first=listen_first)
        until_the_end.enter_context(switching(settings.switch_interval_ms))
        protocols = 1 if settings.grpc_port is None else 2
        until_the_end.enter_context(opening(protocols * settings.limits.max_connections))
        came = until_the_end.enter_context(signals(ends_at_second=worker is None))
        ending = _Ending(server, settings, quiet=worker is not None)
        if early:  # what was read before it may be out of date
            ending.hangups.put(True)
        threading.Thread(
            target=ending.follow, args=(came,), name="headrace-serve-signals", daemon=True
        ).start()
        try:
            server.start()
        except ClosedError:
            if not ending.begun:
                raise
        ending.built()
        if ending.begun:
            ending.over.wait()
            return ending.status
        if started is not None:
            started(server)
        else:
            announce(settings, server.url, server.grpc_url, listening, server.admin_url)
        until_the_end.enter_context(_reloading(server, settings, who, ending.hangups))
        ending.over.wait()
    return ending.status


class _Ending:
    """Reloads and drains a server as signals say, in a thread of its own: a model may take minutes to build in the main thread.

    Args:
        server: The server, which may still build its models.
        settings: Have the times for draining.
        quiet: Whether the supervisor says that the server drains.

    Attributes:
        hangups: Has an element for each SIGHUP.
        begun: Whether a signal to end has come.
        over: Set once the server is closed.
        status: The exit status.
    """

    def __init__(self, server: Server, settings: Settings, *, quiet: bool) -> None:
        self._server, self._settings, self._quiet = server, settings, quiet
        self._lock = threading.Lock()
        self._built = self.begun = False
        self.hangups: SimpleQueue[bool] = SimpleQueue()
        self.over = threading.Event()
        self.status = 0

    def built(self) -> None:
        """Note that the main thread builds no model any more, so that the process ends in the ordinary way."""
        with self._lock:
            self._built = True

    def follow(self, came: Iterator[int]) -> None:
        """Note each SIGHUP in ``hangups``. At another signal drain and close the server.

        If a model is still being built then, the process ends here, because nothing interrupts that.
        """
        for number in came:
            if number != HANGUP:
                self.status = INTERRUPTED if number == signal.SIGINT else 0
                break
            self.hangups.put(True)
        else:
            return  # the server could not start
        self.begun = True
        if not self._quiet:
            say("draining")
        try:
            self._server.drain()
            threading.Event().wait(self._settings.drain_delay_s)
            self._server.close(timeout=self._settings.drain_timeout_s)
        except BaseException:  # noqa: BLE001 - told here, since the process ends beside what this thread raises
            self.status = 1
            traceback.print_exc()
        finally:  # the process ends, whatever the system lacks
            with self._lock:
                if not self._built:
                    os._exit(self.status)
            self.over.set()


@contextlib.contextmanager
def switching(interval_ms: float) -> Iterator[None]:
    """Set the interpreter's switch interval, in milliseconds, until the block ends.

    The event loop and the threads of instances on a GPU run Python code for a moment at a time. Each wait for the
    interpreter lock, while another thread runs Python, lasts up to one interval.
    """
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_ms / 1e3)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


@contextlib.contextmanager
def opening(connections: int) -> Iterator[None]:
    """Raise the limit of open files to what so many connections need, as far as the system permits, until the block ends.

    Many systems begin with 1024 open files, and let a process have more if it asks for them.
    """
    if sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [n for n in (connections + _OTHER_FILES, hard) if n != resource.RLIM_INFINITY]
    raises = soft != resource.RLIM_INFINITY and soft < min(limits)
    if raises:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits), hard))
    try:
        yield
    finally:
        if raises:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def signals(
    second: Callable[[], None] | None = None, *, ends_at_second: bool = True
) -> Iterator[Iterator[int]]:
    """Catch SIGINT, SIGTERM and SIGHUP until the block ends. Give an iterator over the signals' numbers.

    Any thread may iterate. The numbers come through a socket into which the interpreter's C handler writes. A Python
    handler alone is not enough. It runs only when the main thread runs Python code, and a signal that arrives just
    before the main thread begins to wait for a lock does not wake that thread.

    Args:
        second: Called when a second SIGINT or SIGTERM comes, just before it ends the process.
        ends_at_second: Whether it does. A worker process gets each signal a second time from its supervisor where it comes
            to all processes of a service, and the supervisor kills it.
    """
    first: list[tuple[int, float]] = []

    def on_signal(number: int, frame: object) -> None:
        if number == HANGUP:
            return
        now = time.monotonic()
        if not first:
            first.append((number, now))
        elif ends_at_second and (number != first[0][0] or now - first[0][1] >= _TWICE_S):
            if second is not None:
                second()
            os._exit(INTERRUPTED)  # at once: an ordinary exit waits for threads

    numbers: list[signal.Signals] = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None:
        numbers.append(HANGUP)
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    descriptor = signal.set_wakeup_fd(writing.fileno())
    before = {number: signal.signal(number, on_signal) for number in numbers}
    came = _numbers(reading, numbers)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        writing.close()
        if inspect.getgeneratorstate(came) == inspect.GEN_CREATED:
            reading.close()  # nobody has iterated, so the iterator will not close it


def _numbers(reading: socket.socket, wanted: Collection[int]) -> Generator[int, None, None]:
    with reading:
        while written := reading.recv(1):
            if written[0] in wanted:
                yield written[0]


def announce(
    settings: Settings,
    url: str,
    grpc_url: str | None,
    listening: Listening | None,
    admin_url: str | None = None,
) -> None:
    """Print the addresses at which requests are accepted, and call ``listening`` with them.

    If other machines reach them, warn if clients need neither a key nor a certificate, and if there is no TLS.
    """
    say(f"serving {url}" if grpc_url is None else f"serving {url} and {grpc_url}")
    addresses = {"url": url, "grpc_url": grpc_url}
    if settings.ui:
        say(f"live page at {url}/ui")
    if admin_url is not None:
        say(f"health, metrics and repository also at {admin_url}")
        addresses["admin_url"] = admin_url
    if listening is not None:
        listening(addresses)
    if reaches_others(settings.host):
        if settings.keys is None and settings.tls_client_ca is None:
            say(_OPEN)
        if settings.tls_cert is None:
            say(_PLAIN)


@contextlib.contextmanager
def _reloading(
    server: Server, settings: Settings, who: str, wanted: SimpleQueue[bool]
) -> Iterator[None]:
    """Reload once for each element of a queue, in a thread of its own.

    New pipelines may take minutes to build, and a signal that ends the server must not wait for them. What is still
    being built at the end of the block is left to the end of the process.
    """

    def work() -> None:
        while wanted.get():
            _reload(server, settings, who)

    threading.Thread(target=work, name="headrace-serve-reload", daemon=True).start()
    try:
        yield
    finally:
        wanted.put(False)


def _reload(server: Server, settings: Settings, who: str) -> None:
    try:
        with server.counting_reload():
            server.reload(**settings.read(), memory=settings.memory() or Memory({}))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the old pipelines go on
        text = (
            str(error)
            if isinstance(error, HeadraceError)
            else quoted(f"{type(error).__name__}: {error}")
        )
        say(f"{who}error: {text}\nnothing has changed")
    else:
        say(f"{who}reloaded")
