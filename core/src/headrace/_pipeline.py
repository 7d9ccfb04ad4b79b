"""The pipeline: what users call."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from headrace._config import PipelineConfig
from headrace._core import Core
from headrace._futures import AsyncOwner, RequestFuture
from headrace._graph import Walk, is_cheap, may_wait, walk_here, walk_together
from headrace._reload import Reloader
from headrace._scheduling.entry import DONE, Entry
from headrace._tracebacks import without_inner_frames
from headrace.errors import ConfigError, InputError, PluginError, RequestsFailed, SetupError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Pipeline", "pipe"]


def pipe(
    source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig,
    *,
    allow_import: bool = True,
) -> Pipeline:
    """Build a pipeline; it is warm and accepts requests when this returns.

    Args:
        source: A dict, the path of a TOML file (a text is always a path), or a configuration.
        allow_import: Whether the code under ``import`` may run.

    Raises:
        ConfigError: The configuration is wrong; nothing was built.
        SetupError: A backend could not be built; what was built is closed again.
        PluginError: A plugin or a library is missing.
    """
    try:
        return Pipeline(PipelineConfig.load(source, allow_import=allow_import))
    except (ConfigError, PluginError, SetupError) as error:
        raise without_inner_frames(error) from error.__cause__


class Pipeline:
    """Backends composed by a configuration; safe to call from any number of threads.

    ``with`` and ``async with`` close it at their end, without draining when they are left by an error.

    A request is a dict with ``data``. It is changed in place: ``result`` is written, and ``data``
    is the caller's object again when the call is over. From call to answer the dict belongs to the
    pipeline.
    """

    def __init__(self, config: PipelineConfig, *, _shortcut: bool | None = None) -> None:
        core = Core(config, shortcut=_default_shortcut if _shortcut is None else _shortcut)
        self._core = core
        self._reloader = Reloader(core)
        # Before there is anything to close, so that an interrupt leaves nothing open.
        self._finalizer = weakref.finalize(self, _dropped, core)
        self._finalizer.atexit = False
        try:
            core.build()
        except BaseException:
            self._finalizer.detach()
            raise
        self._only: Scheduler | None = core.only
        self._call = None if self._only is None else self._only.call
        self._graph = core.graph

    @overload
    def __call__(
        self, data: Request, *, timeout: float | None = None, priority: int = 0
    ) -> Request: ...
    @overload
    def __call__(
        self, data: list[Request], *, timeout: float | None = None, priority: int = 0
    ) -> list[Request]: ...
    def __call__(self, data: Any, *, timeout: float | None = None, priority: int = 0) -> Any:
        """Run one request, or a list of them, and wait.

        Args:
            data: A request, or a list of requests whose outcomes stay separate.
            timeout: Seconds from now; holds while queued, between nodes and while running.
            priority: Greater goes first; equals in order of arrival.

        Returns:
            ``data``, each request with its ``result``.

        Raises:
            RequestError: The request failed; see `headrace.errors`.
            RequestsFailed: Some items of the list failed.
            ClosedError: The pipeline is closed.
        """
        if timeout is None and priority == 0 and type(data) is dict:
            if self._call is not None:
                self._call(data)
            else:
                self._walk(data)
            return data
        if isinstance(data, list):
            self._core.check_open()
            entries = self._entries(data, timeout, priority)
            self._run(entries)
            _raise_failed(entries)
            return data
        (entry,) = self._entries([data], timeout, priority)
        self._run([entry])
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]
        return data

    @overload
    def submit(
        self, data: Request, *, timeout: float | None = None, priority: int = 0
    ) -> Future[Request]: ...
    @overload
    def submit(
        self, data: list[Request], *, timeout: float | None = None, priority: int = 0
    ) -> list[Future[Request]]: ...
    def submit(self, data: Any, *, timeout: float | None = None, priority: int = 0) -> Any:
        """Let a request run and come back at once; waits only for room in a full queue.

        Args:
            data: A request, or a list of requests.
            timeout: See `__call__`.
            priority: See `__call__`.

        Returns:
            A future of the dict, or a list of futures, one per item.

        Raises:
            ClosedError: The pipeline is closed.
        """
        self._core.check_open()
        single = not isinstance(data, list)
        futures = []
        for entry in self._entries([data] if single else data, timeout, priority):
            future = RequestFuture()
            entry.owner = future
            route = None if self._only or entry.state == DONE else self._core.route_of(entry)
            if entry.state == DONE:
                future.finished(entry)
            elif route is not None:
                walk = Walk(self._core.walked, route, entry, future)
                future.attach(walk, walk)
                walk.start(waits_for_room=True)
            elif self._only is not None:
                future.attach(self._only, entry)
                self._only.submit(entry, waits_for_room=self._only.held_by_this_thread)
            futures.append(future)
        return futures[0] if single else futures

    @overload
    async def call_async(
        self, data: Request, *, timeout: float | None = None, priority: int = 0
    ) -> Request: ...
    @overload
    async def call_async(
        self, data: list[Request], *, timeout: float | None = None, priority: int = 0
    ) -> list[Request]: ...
    async def call_async(
        self, data: Any, *, timeout: float | None = None, priority: int = 0
    ) -> Any:
        """Run one request, or a list of them, without blocking the event loop.

        Args:
            data: A request, or a list of requests.
            timeout: See `__call__`.
            priority: See `__call__`.

        Returns:
            ``data``, as `__call__` does.

        Raises:
            RequestError, RequestsFailed, ClosedError: As `__call__` does.
            asyncio.CancelledError: The task was cancelled; ``abandoned`` is True when a backend
                still runs on a request.
        """
        self._core.check_open()
        single = not isinstance(data, list)
        loop = asyncio.get_running_loop()
        entries = self._entries([data] if single else data, timeout, priority)
        waiting: list[tuple[AsyncOwner, Callable[[], bool]]] = []
        for entry in entries:
            if entry.state == DONE:
                continue
            entry.owner = owner = AsyncOwner(loop)
            if self._only is not None:
                waiting.append((owner, partial(_take_back, self._only, entry)))
                self._only.submit(entry, waits=True)
                continue
            route = self._core.route_of(entry)
            if route is not None and may_wait(route, entry):
                walk = Walk(self._core.walked, route, entry, owner)
                waiting.append((owner, walk.give_up))
                walk.start()
        try:
            for owner, _ in waiting:
                await owner.future
        except asyncio.CancelledError as error:
            left = [give_up() for _, give_up in waiting]
            error.abandoned = any(left)  # type: ignore[attr-defined]
            _forget_result(data, abandoned=any(left))
            for entry in entries:
                entry.error = None  # nobody asks for it; see `Entry.take_error`
            raise
        if not single:
            _raise_failed(entries)
        elif entries[0].error is not None:
            raise entries[0].take_error()  # type: ignore[misc]
        return data

    def _entries(self, items: list[Any], timeout: float | None, priority: int) -> list[Entry]:
        """Make an entry per item; those that are no requests are done, with their error."""
        deadline = _deadline(timeout)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise TypeError(f"priority is an int, got {priority!r}")
        entries: list[Entry] = []
        seen: set[int] = set()
        for item in items:
            entry = Entry(item, None, deadline=deadline, priority=priority)
            if id(item) in seen:
                error = InputError(
                    "this dict stands in the list a second time",
                    hint="Send a dict of its own per request.",
                )
                self._core.refuse(entry, error)
            else:
                seen.add(id(item))
                self._core.admit(entry)
            entries.append(entry)
        return entries

    def _run(self, entries: list[Entry]) -> None:
        if self._only is not None:
            self._only.call_many(entries)
            return
        routes = [None if e.state == DONE else self._core.route_of(e) for e in entries]
        walks = [(route, entry) for route, entry in zip(routes, entries, strict=True) if route]
        walk_together(self._core.walked, walks)

    def _walk(self, request: Request) -> None:
        """Walk one request through the graph in this thread, or let others where that is faster."""
        graph = self._graph or self._core.walked
        only = graph.only
        if only is not None and "data" in request and "node_name" not in request and is_cheap(only):
            walk_here(graph, only, request)
            return
        (entry,) = self._entries([request], None, 0)
        route = None if entry.state == DONE else self._core.route_of(entry)
        if route is not None and "data" in request and is_cheap(route):
            walk_here(graph, route, request)
            return
        if route is not None:
            walk_together(graph, [(route, entry)])
        if entry.error is not None:
            raise entry.take_error()  # type: ignore[misc]

    def stats(self) -> dict[str, Any]:
        """Give counts and times since the start, per node; can be written as JSON."""
        return self._core.statistics()

    def describe(self) -> dict[str, Any]:
        """Give what was really built, per node; can be written as JSON."""
        return self._core.describe()

    def reload(self, node: str, changes: Mapping[str, Any], *, timeout: float = 30.0) -> None:
        """Exchange the instances of one node while requests go on.

        The changed configuration is checked as a whole, and all new instances are built beside the
        old ones, which go on serving, until they are warm. Then requests that wait go to the new
        ones, and each old one is closed when its batch ends. One reload runs at a time; another
        waits for it. Without changes the node is built again as it is, for example from a model
        file that was replaced. An option that has no effect, since args in the expression win, is
        told as a UserWarning.

        Whenever this raises, the old instances are in place and nothing has changed. It returns
        when all old ones are closed, or when ``timeout`` is over: then those whose batch still
        runs are closed later. It blocks; a coroutine calls it through ``asyncio.to_thread``.

        Args:
            node: The name of the node; ``"main"`` for a configuration without tables.
            changes: New values of keys of the node and options of its backends; None takes a key
                away. All but ``next``, ``map``, ``or``, ``each``, ``queue_size`` and
                ``queue_full`` can be changed. Relative paths start from the working directory.
            timeout: Seconds for building, and then for the batches of the old ones. When it is over
                before the new ones are warm, ``context.cancelled()`` is true for them.

        Raises:
            ConfigError: There is no such node, a key cannot be changed, or a value is wrong.
            SetupError: A new backend could not be built, or other nodes hold the old instances.
            PluginError: A plugin or a library is missing.
            DeadlineExceededError: The new instances were not warm in time.
            ClosedError: The pipeline is closed, or was closed meanwhile.
            ContractError: The calling thread runs a batch, or builds a node, of this pipeline.
        """
        _check_seconds(timeout)
        self._reloader.reload(node, changes, timeout)

    @property
    def ready(self) -> bool:
        """Whether requests are accepted and each node has a living instance."""
        return self._core.ready

    @property
    def config(self) -> PipelineConfig:
        """The configuration, with what was reloaded."""
        return self._core.config

    def close(self, *, drain: bool = True, timeout: float = 30.0) -> None:
        """Refuse new requests, let the others end, and close all backends.

        May be called from any thread and more than once. From a thread that runs a batch of this
        pipeline it refuses new requests and returns at once.

        Args:
            drain: Whether requests that wait are run; else they fail.
            timeout: Seconds after which everything that is still open fails with ClosedError. One
                caller cannot be fetched back: the one whose own thread is inside a ``forward``
                that hangs.
        """
        _check_seconds(timeout)
        self._core.close(drain=drain, timeout=timeout)

    def __enter__(self) -> Pipeline:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> Pipeline:  # noqa: PYI034 - Self needs Python 3.11
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # In another thread: what is drained may be awaited by tasks of this event loop.
        await asyncio.to_thread(self.close, drain=kind is None)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Pipeline cannot be pickled; pickle pipeline.config and build it there")

    def __repr__(self) -> str:
        return f"<Pipeline {', '.join(self.config.nodes)}: {self._core.state}>"


_default_shortcut = True
"""Whether a caller that finds a node idle skips the queue; tests run a second time without."""


def _check_seconds(timeout: float) -> None:
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not number or math.isnan(timeout) or timeout < 0:
        raise ValueError(f"timeout is a number of seconds of at least 0, got {timeout!r}")


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout):
        raise TypeError(f"timeout is a number of seconds or None, got {timeout!r}")
    if math.isinf(timeout) and timeout > 0:
        return None
    return time.monotonic() + max(0.0, timeout)


def _raise_failed(entries: list[Entry]) -> None:
    """Raise the errors of a list of requests, if there are any."""
    if any(entry.error is not None for entry in entries):
        raise RequestsFailed([entry.take_error() for entry in entries])


def _forget_result(data: Any, *, abandoned: bool) -> None:
    """Take the result out of a cancelled request, which may have ended well a moment before."""
    if isinstance(data, dict) and not abandoned:
        data.pop("result", None)


def _take_back(scheduler: Scheduler, entry: Entry) -> bool:
    """Take an entry back; tell whether a backend still runs on it."""
    return not scheduler.cancel(entry) and scheduler.abandon(entry)


def _dropped(core: Core) -> None:
    """Close after the last reference is gone: what waits is run, nobody waits for it."""
    if not core.in_service:
        return
    try:
        threading.Thread(
            target=core.close, kwargs={"drain": True, "timeout": 30.0}, daemon=True
        ).start()
    except RuntimeError:
        return  # the interpreter ends; its own handler closes the pipeline
