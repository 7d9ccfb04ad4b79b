"""The pipeline that users call."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from headrace._run.blueprint import Blueprint
from headrace._run.engine import Engine
from headrace._run.entrance import leave_all, raise_failed, seconds
from headrace._run.graph.walk import walk
from headrace._run.notebook import Statistics, html_of
from headrace._run.records.probes import GuardedProbe, Probes
from headrace._run.requests.futures import LoopCall, RequestFuture, give_up_all
from headrace._run.requests.mapping import Flight, amap_requests, each, map_requests
from headrace._run.requests.parts import PartSink
from headrace._run.requests.streams import AsyncStream, Reader, Stream
from headrace._run.steps.tracebacks import set_abandoned
from headrace.errors import InputError
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._language.plan.pipeline_config import PipelineConfig
    from headrace._run.entrance import Admitted
    from headrace._run.graph.route import Graph
else:
    PipelineConfig = Any  # for who asks what the annotations mean: its module would import pydantic

Error = TypeVar("Error", bound=BaseException)

_INNER = ("headrace._", "contextlib")
"""Beginnings of the names of modules whose frames tell a user nothing."""


def without_inner_frames(error: Error) -> Error:
    """Take the frames of Headrace out of the tracebacks of an error and its cause. Give the error.

    There are dozens of such frames between the call of ``pipe`` and the ``init`` that has failed.
    """
    for raised in (error, error.__cause__):
        if raised is not None:
            raised.__traceback__ = _outer(object.__getattribute__(raised, "__traceback__"))
    return error


def _outer(last: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while last is not None:
        if not last.tb_frame.f_globals.get("__name__", "").startswith(_INNER):
            frames.append(last)
        last = last.tb_next
    following: TracebackType | None = None
    for frame in reversed(frames):
        following = TracebackType(following, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return following


def _check_keywords(keys: dict[str, Any]) -> None:
    for key in keys:
        message, hint = "a request is one dict", f'Write stream({{"{key}": x}}).'
        raise InputError(message, key=key, expected="a dict", got=f"the keyword {key!r}", hint=hint)


class Pipeline:
    """Backends composed by a configuration. Safe to call from any number of threads.

    ``with`` and ``async with`` close it at their end, without draining when an error leaves the
    block.

    A request is a dict with ``data``. It is changed in place: ``result`` is written, and ``data``
    is the caller's object again when the call is over. From call to answer the dict belongs to the
    pipeline: another call that sends it meanwhile gets an InputError.
    """

    def __init__(self, blueprint: Blueprint | None = None) -> None:
        """Build the pipeline of a blueprint, which `headrace.pipe` makes from a configuration.

        Raises:
            SetupError: A backend could not be built. What was built is closed again.
            PluginError: A plugin or a library is missing.
            TypeError: ``blueprint`` is no blueprint.
        """
        if not isinstance(blueprint, Blueprint):
            raise TypeError("a Pipeline is made of a configuration by headrace.pipe(source)")
        engine = Engine(blueprint)
        self._engine = engine
        engine.start(self)
        self._entrance = engine.entrance
        self._graph = cast("Graph", engine.graph)  # asked for where `call` of the entrance is None
        self._on_way = engine.entrance.on_way
        engine.probes.notify("pipeline_started", self)

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
            timeout: Seconds from now. It holds while the request is queued, between nodes and
                running.
            priority: A greater one goes first. Equals go in order of arrival.

        Returns:
            ``data``, each request with its ``result``.

        Raises:
            RequestError: The request failed. See `headrace.errors`.
            RequestsFailed: Some items of the list failed.
            ClosedError: The pipeline is closed.
        """
        if type(data) is dict:
            # The key itself tells whose claim it is: each call of `id` makes an int of its own, and
            # `data` lives here meanwhile.
            on_way, key, call = self._on_way, id(data), self._entrance.call
            try:
                if on_way.setdefault(key, key) is not key:
                    self._entrance.refuse_twice(data)
                plain = timeout is None and priority == 0
                if plain and call is not None:
                    call(data)
                elif plain and self._graph.only and "data" in data and "node_name" not in data:
                    walk(self._graph, self._graph.only, data)
                else:
                    self._entrance.run_one(data, timeout, priority)
                del on_way[key]
            except BaseException:  # no call here: no second Ctrl-C comes before `del`
                if key in on_way and on_way[key] is key:
                    del on_way[key]
                raise
            return data
        admitted: list[Admitted] = []
        try:
            self._admit(data, timeout, priority, admitted)
            self._entrance.run(admitted)
        except BaseException:
            leave_all(admitted)
            raise
        if isinstance(data, list):
            raise_failed([entry for entry, _ in admitted])
        else:
            admitted[0][0].raise_error()
        return data

    @overload
    def submit(
        self,
        data: Request,
        *,
        timeout: float | None = None,
        priority: int = 0,
        on_part: Callable[[Any, bool], object] | None = None,
    ) -> RequestFuture: ...
    @overload
    def submit(
        self, data: list[Request], *, timeout: float | None = None, priority: int = 0
    ) -> list[RequestFuture]: ...
    def submit(
        self,
        data: Any,
        *,
        timeout: float | None = None,
        priority: int = 0,
        on_part: Callable[[Any, bool], object] | None = None,
    ) -> Any:
        """Let a request run and return at once. This waits only for room in a full queue.

        Args:
            data: A request, or a list of requests.
            timeout: See `__call__`.
            priority: See `__call__`.
            on_part: Called as ``on_part(part, waits)`` with each part of the answer of the one
                request, in the thread that gives it. ``waits`` tells whether that thread may wait
                there. What it raises ends the request with that error. A part of an element of
                ``each`` is ``(index, part)``. `stream` is written on it.

        Returns:
            A future of the dict, or a list of futures, one per item.

        Raises:
            ClosedError: The pipeline is closed.
            InputError: ``on_part`` was given with a list.
        """
        several = isinstance(data, list)
        futures = [RequestFuture() for _ in data] if several else [RequestFuture()]
        self._start(data, timeout, priority, futures, on_part)
        return futures if several else futures[0]

    def _start(
        self,
        data: Any,
        timeout: float | None,
        priority: int,
        futures: Sequence[RequestFuture],
        on_part: Callable[[Any, bool], object] | None,
        *,
        waits: bool = True,
    ) -> None:
        """Let requests run whose outcomes the futures take; parts of a single one may be taken."""
        if on_part is not None and isinstance(data, list):
            message, hint = "parts are of one request", "Send each request of the list by itself."
            raise InputError(message, expected="a dict", got="list", hint=hint)
        admitted: list[Admitted] = []
        try:
            self._admit(data, timeout, priority, admitted)
            if on_part is not None:
                futures[0]._parts = PartSink(admitted[0][0], on_part)
            self._entrance.submit(admitted, futures, waits=waits)
        except BaseException:
            leave_all(admitted)
            raise

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
            asyncio.CancelledError: The task was cancelled. ``abandoned`` is True when a backend
                still runs on a request. Python 3.10 gives who awaits the task another one,
                whose ``__context__`` is this.
        """
        import asyncio  # a quarter of `import headrace`; who awaits has it already

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        open_calls = [0]

        def note_end(_: LoopCall) -> None:
            open_calls[0] -= 1
            if not open_calls[0] and not future.done():
                future.set_result(None)

        admitted: list[Admitted] = []
        calls: list[LoopCall] = []
        try:
            self._admit(data, timeout, priority, admitted)
        except BaseException:
            leave_all(admitted)
            raise
        try:  # right behind the other one: no Ctrl-C comes in between
            calls = self._entrance.begin(loop, admitted, note_end)
            open_calls[0] = len(calls)
            if calls:
                await future
            for call in calls:
                call.give_error_back()
        except BaseException as error:
            for call in calls:
                call.give_error_back()
            self._end_call(data, admitted, error)
            for call in calls:
                call.end()
            raise
        if isinstance(data, list):
            raise_failed([entry for entry, _ in admitted])
        else:
            admitted[0][0].raise_error()
        return data

    def _end_call(self, data: Any, admitted: list[Admitted], error: BaseException) -> None:
        """Give up the requests of a coroutine that leaves with an error.

        The error says whether a backend still runs on one.
        """
        entries = [entry for entry, _ in admitted]
        abandoned = give_up_all(self._engine.box, entries)
        set_abandoned(error, abandoned)
        if isinstance(data, dict) and not abandoned:
            data.pop("result", None)  # the request may have ended a moment before the cancel
        for entry in entries:
            if not abandoned:
                entry.give_back()
            entry.error = None  # no caller takes this error any more; see `Entry.take_error`

    def call_soon(
        self,
        data: Request,
        done: Callable[[LoopCall], object],
        *,
        timeout: float | None = None,
        priority: int = 0,
    ) -> LoopCall:
        """Begin one request in the running event loop, and call back when it has ended.

        Requests begun in one turn of the loop enter the pipeline together at its end, and one wake
        tells the loop of their outcomes: a server hands over many for the price of one.

        Args:
            data: A request.
            done: Called in the loop, with what this returns, once the request has ended.
            timeout: See `__call__`.
            priority: See `__call__`.

        Returns:
            ``request``, the dict, ``error``, which is None or its error once it has ended, and
            ``cancel()``, after which ``done`` is not called. It tells whether a backend still runs
            on the dict.

        Raises:
            InputError: The request is none. ``done`` is not called.
            ClosedError: The pipeline is closed.
            RuntimeError: There is no running event loop.
        """
        import asyncio  # as in `call_async`

        if type(data) is not dict and isinstance(data, (list, tuple, Iterator)):
            raise InputError("this is one request", expected="a dict", got=type(data).__name__)
        loop, entrance = asyncio.get_running_loop(), self._entrance
        admitted: list[Admitted] = []
        try:
            if entrance.closing is not None:
                entrance.check_open([data])
            entrance.admit([data], timeout, priority, admitted, self._on_way)
            calls = entrance.begin(loop, admitted, done, together=True)
        except BaseException:
            leave_all(admitted)
            raise
        if not calls:
            admitted[0][0].raise_error()
        return calls[0]

    def map(
        self,
        requests: Iterable[Request],
        *,
        ahead: int = 256,
        ordered: bool = True,
        timeout: float | None = None,
        priority: int = -1,
        on_error: str = "raise",
    ) -> Iterator[Any]:
        """Run the requests of an iterator, of any length, in the gaps of other traffic.

        It is lazy: it draws when its reader asks for an answer, and at most ``ahead`` requests more
        than its reader has answers. Leaving the loop withdraws the requests that wait by then.

        Args:
            requests: Gives requests. What it raises ends the map at once.
            ahead: How many requests run or wait at a time, at least 1.
            ordered: Whether answers come in the order of the requests, else as they end.
            timeout: Seconds for each request, as in `__call__`.
            priority: See `__call__`. By default all that is called without one goes first.
            on_error: ``"raise"`` ends it with the first error. ``"give"`` gives each error of a
                request in the place of its answer.

        Returns:
            An iterator of the dicts that ``requests`` gave, each with its ``result``, and of errors
            with ``"give"``.

        Raises:
            RequestError: While it is read: a request failed.
            ClosedError: While it is read: the pipeline is closed. Also with ``"give"``.
            ValueError: ``ahead`` or ``on_error`` is none of these.
        """
        # A list of one: what is no dict then fails as others fail.
        return map_requests(
            Flight(ahead, ordered, on_error),
            lambda request: self.submit([request], timeout=timeout, priority=priority)[0],
            requests,
        )

    def amap(
        self,
        requests: Iterable[Request] | AsyncIterable[Request],
        *,
        ahead: int = 256,
        ordered: bool = True,
        timeout: float | None = None,
        priority: int = -1,
        on_error: str = "raise",
    ) -> AsyncIterator[Any]:
        """As `map`, for ``async for``. ``aclose()``, or the end of the task, withdraws.

        Args:
            requests: Gives requests, also to ``async for``.
            ahead: See `map`.
            ordered: See `map`.
            timeout: See `map`.
            priority: See `map`.
            on_error: See `map`.

        Returns:
            An asynchronous iterator. See `map`.

        Raises:
            RequestError, ClosedError, ValueError: As `map`.
        """
        return amap_requests(
            Flight(ahead, ordered, on_error),
            partial(self.call_soon, timeout=timeout, priority=priority),
            requests if isinstance(requests, AsyncIterable) else each(requests),
        )

    def stream(
        self,
        data: Request = None,  # type: ignore[assignment]  # refused
        *,
        timeout: float | None = None,
        priority: int = 0,
        most: int = 1024,
        room: Callable[[Any], bool] | None = None,
        **keys: NoReturn,
    ) -> Stream:
        """Let one request run, and read its answer in parts as they come. It begins at this call.

        Leaving the loop (``break``, or ``close()`` of the iterator) cancels the request. Where
        ``most`` parts wait, a generator waits with its next one, and a thread of the backend's own
        waits in ``context.request.emit``: a stream that is left open and not read holds its
        instance.

        Args:
            data: A request.
            timeout: See `__call__`.
            priority: See `__call__`.
            most: How many parts may wait until you read them, at least 1.
            room: Called with each part, in the thread that gives it and before the part can be
                read. Where it returns False no further part is to come until all that wait were
                read. So a reader bounds what waits in bytes.
            **keys: Refused: they are keys of ``data``.

        Returns:
            An iterator of the parts, in order, and last of ``data`` with its ``result``. A part of
            an element of ``each`` comes as ``(index, part)``. The error of the request is raised
            after the parts that have come.

        Raises:
            LimitError: While it is read: ``most`` parts waited, and the thread that gives them
                cannot wait.
            RequestError, ClosedError: As `__call__` does.
            ValueError: ``most`` is no whole number of at least 1.
            InputError: Keys of a request were given as keywords.
        """
        _check_keywords(keys)

        def start(reader: Reader) -> None:
            self._start(data, timeout, priority, [reader], reader)

        return Stream(start, most, room)

    def stream_async(
        self,
        data: Request = None,  # type: ignore[assignment]  # refused
        *,
        timeout: float | None = None,
        priority: int = 0,
        most: int = 1024,
        room: Callable[[Any], bool] | None = None,
        **keys: NoReturn,
    ) -> AsyncStream:
        """As `stream`, for ``async for``. ``aclose()``, or leaving the loop, cancels.

        Args:
            data: A request.
            timeout: See `__call__`.
            priority: See `__call__`.
            most: See `stream`.
            room: See `stream`.
            **keys: See `stream`.

        Returns:
            An asynchronous iterator. See `stream`.

        Raises:
            RuntimeError: There is no running event loop.
            RequestError, ClosedError, ValueError: As `stream`.
        """
        import asyncio  # as in `call_async`

        _check_keywords(keys)

        def start(reader: Reader) -> None:
            self._start(data, timeout, priority, [reader], reader, waits=False)

        return AsyncStream(start, most, room, self._entrance.waker(asyncio.get_running_loop()))

    def _admit(
        self, data: Any, timeout: float | None, priority: int, admitted: list[Admitted]
    ) -> None:
        """Check the request or requests of a call, unless closed. See `Entrance.admit`."""
        items = data if isinstance(data, list) else [data]
        self._entrance.check_open(items)
        if type(data) is not dict and isinstance(data, (tuple, Iterator)):
            hint = 'Write pipe(list(requests)), or pipe({"data": x}).'
            raise InputError("several requests are a list", got=type(data).__name__, hint=hint)
        self._entrance.admit(items, timeout, priority, admitted, self._on_way)

    def stats(self) -> dict[str, Any]:
        """Return counts and times since the start, per node, as a dict for JSON."""
        return Statistics(self._engine.statistics())

    def describe(self) -> dict[str, Any]:
        """Describe what was really built, per node, as a dict that can be written as JSON.

        Where options name files by addresses, ``fetched`` lists address, revision and digest of
        each.
        """
        return self._engine.describe()

    @property
    def ready(self) -> bool:
        """Whether requests are accepted, and each node has an instance, neither lost nor away."""
        return self._engine.ready

    @property
    def config(self) -> PipelineConfig:
        """The configuration. None where the blueprint was made without one."""
        config: PipelineConfig = self._engine.blueprint.config
        return config

    def close(self, *, drain: bool = True, timeout: float | None = 30.0) -> None:
        """Refuse new requests, let the others end, and close all backends.

        It may be called from any thread and more than once. In a thread that runs a batch of this
        pipeline, or takes a request through its nodes, it refuses new requests and returns at once.

        Args:
            drain: Whether waiting requests are run. If not, they fail.
            timeout: Seconds after which all requests that are still open fail with ClosedError.
                None for never. Only a caller whose own thread hangs inside a ``forward`` cannot be
                freed so.
        """
        self._engine.close(drain=bool(drain), timeout=seconds(timeout, least=0))

    # What `headrace.hookspecs.attached` calls.

    def _attach(self, probe: GuardedProbe) -> None:
        Probes([probe]).notify("pipeline_started", self)
        self._engine.add_probe(probe)
        self._ask_on_entry(probe)

    def _detach(self, probe: GuardedProbe) -> None:
        self._engine.remove_probe(probe)
        self._ask_on_entry(probe)

    def _ask_on_entry(self, probe: GuardedProbe) -> None:
        if hasattr(probe.probe, "request_entered"):
            with self._engine.changes:
                self._entrance.use(self._engine.enters())

    def __enter__(self) -> Pipeline:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> Pipeline:  # noqa: PYI034 - Self needs Python 3.11
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import asyncio

        # Another thread closes: tasks of this event loop may await requests that are being drained.
        await asyncio.to_thread(self.close, drain=kind is None)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Pipeline cannot be pickled; pickle pipeline.config and build it there")

    def __repr__(self) -> str:
        return f"<Pipeline {', '.join(self._engine.blueprint.order)}: {self._engine.state}>"

    _repr_html_ = html_of
