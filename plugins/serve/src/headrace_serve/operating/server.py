"""The server: an event loop in its own thread that listens for both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from uvicorn.server import ServerState

from headrace.errors import ClosedError, HeadraceError, SetupError
from headrace_serve.admission.allowing import check_allowed
from headrace_serve.admission.keys import Keys
from headrace_serve.admission.limits import Limits
from headrace_serve.models.catalogue import Catalogue, build_models
from headrace_serve.models.held import Held, check_models, together
from headrace_serve.operating.draining import answered, end_connections, stop_grpc
from headrace_serve.operating.grpc_port import GrpcSide
from headrace_serve.operating.http_port import HttpPort
from headrace_serve.operating.listening import (
    check_ports,
    check_ui,
    listen,
    new_loop,
    reaches_others,
    run_loop,
    url_of,
)
from headrace_serve.operating.tls import Tls
from headrace_serve.service import Service
from headrace_serve.ui.examples import Examples

if TYPE_CHECKING:
    import concurrent.futures
    import socket
    from collections.abc import Collection, Coroutine, Iterable, Sequence
    from pathlib import Path

    from headrace_models import Memory
    from headrace_serve.models.entries import ModelEntry
    from headrace_serve.operating.tls import Certificates
    from headrace_serve.operating.worker_changes import WorkerChanges

__all__ = ["Server"]

T = TypeVar("T")

logger = logging.getLogger("headrace.serve")

_OLD_S = 30.0
"""Seconds for requests to end in pipelines that a reload has replaced."""

_CUT_OFF_S = 1.0
"""Seconds for the clients of requests that were cut off to get that as their answer."""


class Server:
    """Serves models from a thread of its own.

    Making a server reads, checks and builds the models. `start` opens the port. With ``listen_first`` making it only
    reads and checks them, and `start` opens the port before it builds them. ``with`` starts and closes the server::

        with headrace_serve.Server({"page": "page.toml"}, port=0) as server:
            print(server.url)

    Attributes:
        host: The address on which the server listens.
        port, grpc_port, admin_port: Its ports. A port that was given as 0 has its number once the server is started.
    """

    _stopping: asyncio.Task[None] | None = None

    def __init__(  # noqa: PLR0913 - settings, by name
        self,
        models: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        grpc_port: int | None = None,
        admin_port: int | None = None,
        limits: Limits | None = None,
        debug_errors: bool = False,
        priority_default: int = 2,
        keys: Keys | str | Path | None = None,
        tls: Tls | None = None,
        allow: Iterable[str] = (),
        allow_import: bool = True,
        cors_origins: Sequence[str] = (),
        allow_hosts: Sequence[str] = (),
        server_name: str = "headrace-serve",
        metrics: str = "default",
        ui: bool = False,
        examples: str | Path | None = None,
        apis: Sequence[str] = (),
        worker: int | None = None,
        worker_changes: WorkerChanges | None = None,
        listen_first: bool = False,
        watch: bool | str | Path = False,
        exit_on_error: bool = True,
        memory: Memory | None = None,
    ) -> None:
        """Build the models, unless ``listen_first`` leaves that to `start`.

        Args:
            models: See `headrace_serve.models.entries.read_entries`.
            host: The address to listen on. Only programs of this machine reach the default.
            port: The port of REST. 0 takes a free one.
            grpc_port: A port for gRPC alone. 0 takes a free one. With None, and without TLS, ``port`` answers gRPC.
            admin_port: A port for health, metrics and the repository with connections of its own. None: there is none.
            limits: Bounds. See `headrace_serve.Limits`.
            debug_errors: Whether clients get the text of every error. If False, the answer for an error inside
                the pipeline names only node, backend and code.
            keys: The keys that clients need, or the path of their file. None: clients need no key.
            tls: The files of TLS, for both protocols. None: without TLS.
            priority_default: The priority of requests that give none. 1 is the most urgent.
            allow: The parts of the protocol to turn on, which are off by default: ``repository`` (requests load and
                unload models).
            allow_import: Whether configurations may import code.
            cors_origins: Origins (``https://host[:port]``, or ``*``) whose pages may read answers in a browser.
            allow_hosts: More hosts that the header ``Host`` may name. If there are any, no others may, besides names of this
                machine, without them a server that only this machine reaches, and that needs no keys, is asked by these.
            server_name: The name in the metadata of the server. Some clients ask for ``triton``.
            metrics: ``default``: ``/metrics`` also has what code in this process registers in the default registry of
                prometheus-client. ``server``: it does not.
            ui: Whether the live page is at ``/ui``. Without ``keys`` it needs an address of this machine alone.
            examples: A folder of pictures and texts that the live page offers as inputs to try. It needs ``ui``.
            apis: The APIs of other servers that are answered, too: ``openai``, or another of the hook `headrace_apis`.
            worker: The number of this process among several that share the ports by SO_REUSEPORT, which needs Linux.
                None: the server is this process alone.
            worker_changes: Makes in all of those processes the changes that requests ask for.
            listen_first: Whether `start` opens the port before it builds the models. Meanwhile the server is alive and not
                ready, each model takes requests as soon as it is built, and requests for the others are refused with 503.
            watch: Whether a changed file is an update of the models that it belongs to. The path of a folder: new files in it
                are models, too. It needs ``headrace-models[watch]``.
            exit_on_error: Whether a model that cannot be built, or that a plugin refuses, is an error. If not, the others are
                served, a log says why, and a request tries it again. With ``watch`` it is never an error.
            memory: The memory that the models may take together. Sizes and models that stay are those of their entries.

        Raises:
            ConfigError, SetupError, PluginError: As `headrace.pipe` raises them, where the models are built. ConfigError also for a wrong
                model, file of keys, certificate, origin or name in ``allow``, a key for an unknown model, a live page for
                everybody, or a folder without examples.
            TypeError, ValueError: A port is no number from 0 to 65535, or both are one. ``priority_default`` is no
                int, or less than 1. ``keys``, ``limits`` or ``tls`` is of another type.
        """
        check_ports(port=port, grpc_port=grpc_port, admin_port=admin_port)
        check_ui(host, served=ui, keyed=keys is not None)
        offered, tls, limits = Examples.of(examples, served=ui), Tls.of(tls), Limits.of(limits)
        self.host, self.port = host, port
        self.grpc_port, self.admin_port = grpc_port, admin_port
        self._shared = worker is not None
        self._tls = tls
        self._certificates = None if tls is None else tls.read()
        self._keys, known = keys, Keys.of(keys)
        self._watch, self._allow = watch, check_allowed(allow)
        self._unbuilt: dict[tuple[str, str], ModelEntry] | None = None
        self._exits, self._failed = exit_on_error and not watch, dict[str, HeadraceError]()
        how: Any = {"allow_import": allow_import, "workers": self._shared, "memory": memory}
        read: Any = dict(how, keys=known, may_be_none=may_come_later(models, watch, self._allow))
        catalogue = self._catalogue(models, how, read, listen_first=listen_first)
        try:
            service = self._service = Service(
                catalogue,
                limits=limits,
                debug_errors=debug_errors,
                priority_default=priority_default,
                keys=known,
                given=models,
                allow=self._allow,
                allow_import=allow_import,
                cors_origins=cors_origins,
                allow_hosts=allow_hosts,
                server_name=server_name,
                metrics=metrics,
                ui=ui,
                examples=offered,
                apis=apis,
            )
        except BaseException:
            catalogue.close(2.0)
            raise
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._state, self._turn = ServerState(), asyncio.Lock()
        service.worker, self._worker_changes = worker, worker_changes
        if worker_changes is not None:
            service.change_all, service.starting = worker_changes.ask, listen_first
        if not listen_first:
            self._load()
        self._grpc = GrpcSide(service)
        service.connections = lambda: len(self._state.connections)
        self._ports: list[HttpPort] = []
        # A signal handler may interrupt any method of the server in the main thread and call another one, so both
        # locks may be taken again by the thread that holds them.
        self._changing = threading.RLock()
        self._deciding = threading.RLock()
        self._reloads, self._closed, self._over = 0, False, threading.Event()
        self._closing: dict[str, tuple[int]] = {}

    def _catalogue(
        self, models: Any, how: dict[str, Any], read: dict[str, Any], *, listen_first: bool
    ) -> Catalogue:
        """Return the models, built unless that comes later."""
        if not listen_first and self._exits:
            return build_models(models, **read)
        failed = self._failed
        entries, self._aliases = check_models(models, **read, failed=failed)
        if failed and self._exits:  # the others are built to say all that is wrong
            held = Held(**how)
            with held.models:
                rest = {p: e for p, e in entries.items() if ":".join(p) not in failed}
                list(held.load(rest, {}, failed))
            raise together(failed)
        self._unbuilt = entries
        lazy = {place: entry for place, entry in entries.items() if entry.lazy}
        return Catalogue([], held=Held(**how), loading=entries.keys() - lazy, lazy=lazy)

    @property
    def url(self) -> str:
        """The address of REST."""
        return url_of("http" if self._tls is None else "https", self.host, self.port)

    @property
    def admin_url(self) -> str | None:
        """The address of health, metrics and repository; None without ``admin_port``."""
        if self.admin_port is None or not self._ports:
            return None
        return f"{self.url.rpartition(':')[0]}:{self.admin_port}"

    @property
    def grpc_url(self) -> str | None:
        """The address of the port for gRPC alone; None without one."""
        return None if self.grpc_port is None else url_of("grpc", self.host, self.grpc_port)

    def threads(self) -> dict[str, int]:
        """Return how many threads the instances of each model and their libraries may run, by ``name:version``."""
        return {f"{model.name}:{model.version}": model.threads for model in self._service.models}

    def start(self) -> None:
        """Listen, and build the models that are not built yet, one after the other. Return when all take requests.

        Raises:
            SetupError, PluginError: The server cannot listen on the address, or a model cannot be built. The server is closed.
            RuntimeError: The server was started before.
            ClosedError: It was closed before, or while it built models.
        """
        if self._thread is not None:
            raise RuntimeError("a server is started once")
        if self._closed:
            raise ClosedError("the server is closed")
        try:
            listener = listen(self.host, self.port, shared=self._shared)
        except SetupError:
            self.close(timeout=2.0)
            raise
        address, self.port = listener.getsockname()[:2]
        self._service.gate.listens(self.host, local=not reaches_others(address))
        loop = new_loop()
        thread = threading.Thread(target=run_loop, args=(loop,), name="headrace-serve", daemon=True)
        thread.start()
        self._process, self._loop, self._thread = os.getpid(), loop, thread
        self._service.loop = loop
        try:
            self._in_loop(self._open(listener)).result()
        except BaseException:
            listener.close()
            self.close(timeout=2.0)
            self._end_thread()  # `close` may have come before the thread was known
            raise
        if self._unbuilt is not None:
            self._build()

    def _build(self) -> None:
        """Build the models while the server listens; each takes requests at once. If that fails, close the server."""
        try:
            with self._changing:
                self._load()
            self._in_loop(self._join()).result()
        except BaseException:
            self.close(timeout=2.0)
            raise

    def _load(self) -> None:
        """Build the models that are not built yet, and follow all from then on."""
        service, failed = self._service, self._failed
        if self._unbuilt is not None:
            entries, self._unbuilt = self._unbuilt, None
            for model in service.models.held.load(entries, self._aliases, failed):
                service.call(partial(service.put, model))
            if failed and self._exits:
                raise together(failed)
            built = {(served.name, served.version) for served in service.models}
            late = {place: entry for place, entry in entries.items() if place not in built}
            for title in failed.keys() - {":".join(place) for place in late}:  # others are logged
                logger.warning("model %r is not served: %s", title, failed[title])

            def postpone() -> None:
                service.models = service.models.postponed(late)
                service.changes.notify()

            service.call(postpone)
        self._follow()

    def _follow(self) -> None:
        """Serve from now on what those change by themselves who hold the models."""
        self._service.updates.look()
        if self._watch:
            folder = None if isinstance(self._watch, bool) else self._watch
            self._service.models.held.models.watch(folder)

    async def _join(self) -> None:
        """Make the changes that requests have asked for in other processes; none of them can be made before all models are built."""
        if self._worker_changes is not None:
            await self._worker_changes.join(self._service)

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the event loop, before that of a `close` that comes later.

        Raises:
            ClosedError: The server is not started, or is closed.
        """
        # The loop is closed where a signal handler has called `close` since the question.
        with self._deciding, contextlib.suppress(RuntimeError):
            if self._loop is not None and not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ClosedError("the server does not run")

    def reload(
        self,
        models: Any = None,
        *,
        keys: Keys | str | Path | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Read the configurations, the file of keys and the certificates again, and serve with these.

        New pipelines are built while the old ones serve. If one cannot be built, the old ones stay. Requests
        in an old pipeline end there, before it is closed. A `headrace.Pipeline` among the models does not change.
        Files of models must not be written in place: write new weights beside the old ones, and rename them before.

        Args:
            models: The models to serve from now on. None: the same as before, read again.
            keys: The keys that clients need from now on, or the path of their file. None: the same as before.
                A file is read again.
            memory: The memory from now on, of the same devices. None: the same as before.

        Raises:
            ConfigError, SetupError, PluginError: As `headrace.pipe` raises them. Nothing has changed.
            ClosedError: The server is not started, or is closed, or this is a forked child.
        """
        with self._changing, self.counting_reload():
            if self._loop is None or self._closed or self._process != os.getpid():
                raise ClosedError("the server does not run")
            self._reloads = number = self._reloads + 1
            service = self._service
            keys = self._keys if keys is None else keys
            known = Keys.of(keys)
            given = service.given if models is None else models
            certificates = None if self._tls is None else self._tls.read()
            new = build_models(
                given,
                service.models,
                keys=known,
                allow_import=service.allow_import,
                memory=memory,
                may_be_none=may_come_later(given, self._watch, self._allow),
            )
            try:
                if self._reloads != number:  # by a signal handler, which has read everything later
                    return
                self._in_loop(self._exchange(new, known, given, certificates)).result()
            finally:
                new.drop()
            self._keys = keys
            service.updates.look()
            new.wait(_OLD_S)

    def counting_reload(self) -> contextlib.AbstractContextManager[None]:
        """Count a block as one reload in the metrics, by whether it raises; a reload inside of it is the same one."""
        return self._service.counters.loading("reload")

    async def _exchange(
        self, new: Catalogue, keys: Keys | None, given: Any, certificates: Certificates | None
    ) -> None:
        """Replace models, keys and certificates."""
        async with self._turn:
            if certificates is not None:
                self._certificates = certificates
                self._listen()
            service, old = self._service, self._service.models
            service.models, service.given, service.keys = new, given, keys
            new.switch(old)
            service.updates.follow(new.held.models, given)
            service.changes.notify()

    def drain(self) -> None:
        """Report from now on that the server is not ready, and go on serving.

        A load balancer then sends no new clients here. Its earlier clients are still answered.
        """
        self._service.leaving = True
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(self._service.changes.notify)

    def close(self, *, timeout: float = 30.0) -> None:
        """Accept nothing new, let requests end within ``timeout`` seconds, and close the models.

        A request that is not done by then gets an answer that says so. A reload that still builds is given up: it
        raises ClosedError once it has built. A further call waits for the end of the first one. Where it comes from a
        signal handler that has interrupted the first one, it returns at once. In a forked child it does nothing.
        """
        if not timeout >= 0:
            raise ValueError(f"timeout is at least 0, got {timeout!r}")
        if self._process != os.getpid():
            return  # the event loop runs in the parent alone
        me = (threading.get_ident(),)
        first = self._closing.setdefault("first", me)
        if first is not me:
            if first != me:
                self._over.wait()
            return
        with self._deciding:
            self._closed = True
        ends = time.monotonic() + timeout
        # Closing starts no thread, which may be what the system lacks, and each step is taken whatever became of the others.
        loop: Any = self._loop
        run = partial(asyncio.run_coroutine_threadsafe, loop=loop)
        with contextlib.ExitStack() as steps:
            steps.callback(self._over.set)
            if loop is not None:
                steps.callback(self._end_thread)
                steps.callback(lambda: run(self._cut_off()).result())
            # Closing the pipelines fails the requests that are left; their clients get that error as their answer.
            steps.callback(lambda: self._service.models.close(max(0.0, ends - time.monotonic())))
            if loop is not None:
                run(self._end(timeout)).result()

    def _end_thread(self) -> None:
        """Stop the event loop, and wait for its thread."""
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Server:  # noqa: PYI034 - Self needs Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open(self, listener: socket.socket) -> None:
        service = self._service
        async with self._turn:
            if self._unbuilt is None:
                await self._join()
            if self.grpc_port is not None:
                own = listen(self.host, self.grpc_port, "--grpc-port", shared=self._shared)
                self._grpc.open(own)
                self.grpc_port = own.getsockname()[1]
            ports = [HttpPort(listener, service, self._state, self._grpc.connection)]
            if self.admin_port is not None:
                own = listen(self.host, self.admin_port, "--admin-port", shared=self._shared)
                self.admin_port = own.getsockname()[1]
                ports.append(HttpPort(own, service, ServerState(), admin=True))
            self._ports = ports
            self._listen()

    def _listen(self) -> None:
        """Accept new connections with the latest certificates; open connections stay."""
        context = None if self._certificates is None else self._certificates.context
        for port in self._ports:
            port.listen(context)
        self._grpc.listen(self._certificates)

    async def _end(self, timeout: float) -> None:
        """Accept no new connection, then close each connection when its request is answered."""
        ends = time.monotonic() + timeout
        self._service.leaving = True
        async with self._turn:  # after a start or an exchange that is not done yet
            for port in self._ports[:1]:
                await port.stop()
        self._service.refuse_new()
        stopping = stop_grpc(self._grpc, self._service, timeout)
        self._stopping = asyncio.create_task(stopping)
        await end_connections(self._state, timeout)
        await self._service.end(max(0.0, ends - time.monotonic()))
        self._service.updates.follow()

    async def _cut_off(self) -> None:
        """Answer the requests that were cut off, and end all connections."""
        await answered(self._state, asyncio.get_running_loop().time() + _CUT_OFF_S)
        for task in list(self._state.tasks):
            task.cancel()
        for port in self._ports[:1]:
            await port.close()
        if self._stopping is not None:
            await self._stopping
        for port in self._ports[1:]:  # it has told until now that the server is not ready
            await port.stop()
            await end_connections(port.state, _CUT_OFF_S)
            await port.close()


def may_come_later(models: Any, watch: bool | str | Path, allow: Collection[str]) -> bool:
    """Return whether there may be no model yet: new files of a folder are some, or a request loads the first one."""
    return not isinstance(watch, bool) or ("repository" in allow and bool(models))
