"""The state that both protocols share: the models, the limits, and the requests that are being answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    ClosedError,
    InstanceLostError,
    OverloadedError,
    RequestError,
    RequestsFailed,
)
from headrace.keys import REQUEST_ID
from headrace_models.exchange.pipeline import Sampled
from headrace_models.exchange.sample import CLIENT_DIGEST
from headrace_serve.admission.allowing import check_allowed, check_metrics, check_origins
from headrace_serve.admission.clients import client_digest
from headrace_serve.admission.gate import Gate
from headrace_serve.admission.limits import Limits
from headrace_serve.admission.memory import MemoryAccount
from headrace_serve.admission.unpacking import UnpackingQueue
from headrace_serve.apis.routes import routes_of
from headrace_serve.errors import (
    ItemError,
    NotAllowedError,
    NotBuiltError,
    UnavailableError,
    UnknownModelError,
    refusal,
)
from headrace_serve.inference.outcomes import run_soon
from headrace_serve.inference.parameters import UNBOUNDED, telling_unit
from headrace_serve.inference.requests import (
    infer,
    prepared,
)
from headrace_serve.inference.streams import answers, parts_of
from headrace_serve.models.repository import Repository
from headrace_serve.models.updates import ModelUpdates
from headrace_serve.monitoring.counters import Counters
from headrace_serve.monitoring.failures import FailureLog
from headrace_serve.monitoring.health_changes import HealthChanges
from headrace_serve.process import Process
from headrace_serve.ui.examples import Examples
from headrace_serve.ui.live import LivePage

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from headrace_serve.admission.keys import Keys
    from headrace_serve.inference.messages import Answer, Asked
    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.models.model import Model
    from headrace_serve.monitoring.access_log import AccessLine

    Request = dict[str, Any]
    Parameters = Mapping[str, Any]

__all__ = ["Service"]

logger = logging.getLogger("headrace.serve")


class Service(MemoryAccount):
    """The models behind the protocols. Used by one event loop.

    Attributes:
        models: The served models.
        updates: Has the models change where those who hold them change them.
        loop: The event loop. None before there is one.
        debug_errors: Whether clients get the text of every error.
        priority_default: The priority of requests that give none. As in Triton, 1 is the most urgent.
        keys: The keys that clients need. None: clients need no key.
        leaving: Whether the server reports that it is not ready, while it still serves.
        starting: Whether other processes that share the ports build their models for the first time, so that the server is not
            ready, although this process may be.
        draining: Whether the server is about to shut down, and refuses new calls of gRPC.
        ending: Set when ``draining`` becomes true.
        counters: The counters of requests and answers.
        changes: Wakes the coroutines that watch whether server and models are ready.
        given: The argument ``models`` from which the models are read again by a reload or a load.
        allow_import: Whether configurations may import code.
        cors_origins: Origins whose pages may read answers. ``"*"``: all.
        server_name: The name in the metadata of the server.
        apis: The routes of other servers.
        metrics: ``default`` adds the default registry of prometheus-client to the metrics, ``server`` does not.
        connections: Gives the number of HTTP connections. `Server` sets it.
        worker: The number of this process among several that share the port. None: the server is this process alone.
        failures: Logs requests that fail in the pipeline, or by their results.
        built_in: The process in which the pipelines were built.
        unpacking: The queue of bodies that are decompressed.
        change_all: Makes a change in all of those processes. None: the server is this process alone.
        live: The state behind the live page. None: there is no such page.
        examples: The example inputs that the live page offers. None: there are none.
        gate: Says whose requests are answered at all. `Server` tells it where it listens.
    """

    def __init__(  # noqa: PLR0913 - settings, by name
        self,
        models: Catalogue,
        *,
        limits: Limits | None = None,
        debug_errors: bool = False,
        priority_default: int = 2,
        keys: Keys | None = None,
        given: Any = None,
        allow: Iterable[str] = (),
        allow_import: bool = True,
        cors_origins: Sequence[str] = (),
        allow_hosts: Sequence[str] = (),
        server_name: str = "headrace-serve",
        metrics: str = "default",
        ui: bool = False,
        examples: str | Path | Examples | None = None,
        apis: Sequence[str] = (),
    ) -> None:
        if isinstance(priority_default, bool) or not isinstance(priority_default, int):
            raise TypeError(f"priority_default is an int, got {priority_default!r}")
        if priority_default < 1:
            raise ValueError(f"priority_default is 1 or more, got {priority_default}")
        self.metrics = check_metrics(metrics)
        self.models = models
        self.loop: asyncio.AbstractEventLoop | None = None
        super().__init__(Limits.of(limits))
        self.debug_errors = debug_errors
        self.priority_default = priority_default
        self.keys = keys
        self.leaving = self.starting = self.draining = False
        self.ending = asyncio.Event()
        self.counters = Counters()
        self.changes = HealthChanges()
        self.connections: Callable[[], int] = int
        self.worker: int | None = None
        self.change_all: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self.given = given
        self.allow_import = allow_import
        self.cors_origins, self.apis = check_origins(cors_origins), routes_of(apis)
        self.server_name = server_name
        self._repository = Repository(self) if check_allowed(allow) else None
        self.failures = FailureLog()
        self.live = LivePage() if ui else None
        self.examples = Examples.of(examples, served=ui)
        self.gate = Gate(allow_hosts, self.cors_origins)
        if ui:  # without keys the live page is for this machine alone, whoever listens
            self.gate.listens(local=True)
        self.unpacking = UnpackingQueue()
        self.built_in = Process()
        self.updates = ModelUpdates(self)
        self.updates.follow(models.held.models, given)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The names of the protocol's extensions that ``allow`` has turned on."""
        return () if self._repository is None else ("model_repository",)

    def refuse_new(self) -> None:
        """Refuse new calls of gRPC from now on, because the server is about to shut down."""
        self.draining = True
        self.ending.set()
        self.changes.notify()

    def allowed_repository(self) -> Repository:
        """Return the repository, which loads and unloads models.

        Raises:
            NotAllowedError: Requests may not load and unload models.
        """
        if self._repository is None:
            raise NotAllowedError(
                "models are loaded when the server starts; requests may load and unload them if it"
                " was started with --allow repository"
            )
        return self._repository

    async def change(self, what: str, name: str, **given: Any) -> None:
        """Change models for a request, in all processes that share the ports.

        Args:
            what: ``load``, ``unload`` or ``exchange``.
            name: The model.
            given: The other arguments of that method of `Repository`, whose errors it raises.
        """
        change = {"what": what, "name": name, **given}
        await (self.make_change if self.change_all is None else self.change_all)(change)

    async def make_change(self, change: dict[str, Any]) -> None:
        """Make a change in this process.

        Args:
            change: ``what`` (``load``, ``unload``, ``exchange``), the ``name`` of the model, and the other arguments of that
                method of `Repository`.

        Raises:
            HeadraceError: The method of `Repository` has raised it.
        """
        given = {key: value for key, value in change.items() if key != "what"}
        await getattr(self.allowed_repository(), change["what"])(**given)

    async def end(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for loads and unloads that run."""
        if self.live is not None:
            await self.live.end()
        if self._repository is not None:
            await self._repository.end(timeout)

    @property
    def ready(self) -> bool:
        """Whether requests are accepted and every model is ready."""
        return not (self.draining or self.leaving or self.starting) and self.models.ready

    def is_ready(self, model: Model) -> bool:
        """Return whether a request for a model would be served; false once the server is about to shut down."""
        return model.serves and not (self.draining or self.leaving)

    def takes_requests(self, name: str, version: str = "") -> bool:
        """Return whether a request for the model of a name would be served, also where that builds it first.

        Raises:
            UnknownModelError: There is no such model or version.
        """
        try:
            return self.is_ready(self.models.find(*self.named(name, version)))
        except NotBuiltError as error:
            failed = self.updates.last_failure(error.name, error.version)
            return not (failed or self.draining or self.leaving)
        except UnavailableError:  # it is being loaded
            return False

    def call(self, change: Callable[[], None]) -> None:
        """Make a change between two steps of the event loop, and return when it is made; in any thread."""
        loop = self.loop
        if loop is None or loop is asyncio._get_running_loop():
            return change()
        changed = threading.Event()

        def make_it() -> None:
            change()
            changed.set()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(make_it)
            while not changed.wait(1.0) and loop.is_running():
                pass
        return None

    def put(self, model: Model) -> None:
        """Serve a model from now on, in the place of the one of its version."""
        old = self.models.get(model.name, model.version)
        self.models = self.models.extended(model)
        if old is not None:
            old.leave()
        self.changes.notify()

    def withdraw(
        self, name: str, version: str, reason: str | None, *, absent: bool = False
    ) -> None:
        """Refuse requests for a version from now on, because its pipeline is closed by who holds it.

        Args:
            name: The model.
            version: Its version.
            reason: Why. None: there is no such version any more.
            absent: Whether a request brings it back.
        """
        model = self.models.get(name, version)
        same = model is not None and model.unloaded and not (model.absent or absent)
        if model is None or (same and reason is not None):
            return
        model.unloaded, model.absent, model.reason = True, absent, reason or ""
        model.leave()
        self.models = self.models.without(model) if reason is None else self.models.extended(model)
        self.changes.notify()

    def named(
        self, name: str, version: str = "", key: Callable[[], str] | None = None
    ) -> tuple[str, str]:
        """Return name and version of a model as they are, of an alias those of the model that its shares choose.

        Args:
            name: What the client asks for.
            version: The version that it asks for, ``""`` for none.
            key: Gives the text by which the shares choose, ``""`` for none. None or none: it is drawn.
        """
        if version or self.models.has(name):
            return name, version
        return self.updates.chosen(self.models, name, key)

    def aliases(self) -> dict[str, dict[str, float]]:
        """Return the shares of each alias that is served."""
        return self.updates.aliases()

    def described(self, name: str, version: str = "") -> Model:
        """Return a model of which clients are told, loaded or not.

        Raises:
            UnknownModelError, UnavailableError: There is none, or it was never built.
        """
        return self._built(*self.named(name, version))

    def _built(self, name: str, version: str) -> Model:
        try:
            return self.models.find(name, version)
        except UnknownModelError as error:
            if error.version:
                raise
            raise UnknownModelError(name, served={*self.models.names, *self.aliases()}) from None

    def find(
        self, name: str, version: str = "", key: Callable[[], str] | None = None
    ) -> Model | None:
        """Return a model that takes requests. None: `ModelUpdates.wait` brings it. Arguments are those of `named`.

        Raises:
            UnknownModelError: There is no such model or version.
            UnavailableError: The model is not loaded, or this is a forked child.
        """
        try:
            model = self._built(*self.named(name, version, key))
        except NotBuiltError:
            return None
        if model.unloaded and not model.absent:
            raise _not_loaded(model)
        if self.built_in.is_other():
            raise UnavailableError("the models were loaded in another process")
        return None if model.absent else model

    def admit(self, model: Model) -> None:
        """Count a request as inside a model, if the model's queue has room. The caller decrements `Model.inside` later.

        Raises:
            OverloadedError: As many requests wait, or are being received, as the queue may hold.
        """
        self.check_queue(model)
        model.inside += 1
        model.use.last_use = time.monotonic()

    def check_queue(self, model: Model) -> None:
        """Check that the queue of a model has room.

        Raises:
            OverloadedError: As many requests wait, or are being received, as the queue may hold.
        """
        full = _full(model)
        if full is not None:
            raise full

    def check_room(self) -> None:
        """Check that there is room for a request before any of it is read.

        Raises:
            OverloadedError: The bodies of other requests, or answers that clients do not receive, use all the room,
                or every model's queue is full.
        """
        self.check_unsent()
        if self.room <= 0:
            self.hold(0, 1)
        full = None
        for model in self.models:
            full = _full(model)
            if full is None:
                return
        if full is not None:
            raise full

    async def infer(
        self, model: Model, asked: Asked, line: AccessLine, limits: Limits | None = None
    ) -> Answer:
        """Run what a client asks for, and count it; it raises the errors of `headrace_serve.inference.requests.infer`.

        Args:
            model: The model.
            asked: What the client asks for.
            line: The line of the access log.
            limits: Those that hold for the model, where they are known.
        """
        limits = limits or self.limits.narrowed(model.limits)
        if line.until_s is not None:
            limits = limits.until(line.until_s)
        if model.timed:
            asked.times = line.timed()
        if self.keys is not None or line.timing is not None or isinstance(model.pipe, Sampled):
            asked.client = self._client(model, line)
        started = time.perf_counter_ns()
        try:
            answer = await infer(
                model,
                asked,
                limits=limits,
                priority_default=self.priority_default,
                debug_errors=self.debug_errors,
                failed_item=lambda error: self._log_failure(model, error, line),
            )
        except BaseException as error:
            self.note_failed(model, error, line, started)
            raise
        requests = answer.inferences if model.signature.by_item else 1
        model.counts.note(time.perf_counter_ns() - started, answer.inferences, requests)
        return answer

    async def run(
        self, model: Model, request: Request, parameters: Parameters, line: AccessLine
    ) -> Any:
        """Run a request of the pipeline, count it, and give its result. It raises the errors of `infer`.

        Args:
            model: The model that runs the request.
            request: The request. It is changed.
            parameters: As `headrace_serve.inference.requests.prepared` takes them.
            line: The line of the access log.
        """
        with self._counted(model, line), telling_unit(parameters):
            call = self.prepared(model, request, parameters, line)
            await run_soon(model.pipe, request, **call)
        return request["result"]

    async def run_all(
        self, model: Model, requests: list[Request], parameters: Parameters, line: AccessLine
    ) -> list[Any]:
        """Run several requests as `run` runs one, and give their results.

        Raises:
            ItemError: One of them failed: the first one's error.
        """
        if len(requests) == 1:
            try:
                return [await self.run(model, requests[0], parameters, line)]
            except (RequestError, ClosedError) as error:
                raise ItemError(0, error) from error
        with self._counted(model, line, len(requests)), telling_unit(parameters):
            call = [self.prepared(model, request, parameters, line) for request in requests]
            try:
                await model.pipe.call_async(requests, **(call[0] if call else {}))
            except RequestsFailed as error:
                failed = {i: each for i, each in enumerate(error.errors) if each is not None}
                raise ItemError(*next(iter(failed.items()))) from error
        return [request["result"] for request in requests]

    async def stream(
        self, model: Model, request: Request, parameters: Parameters, line: AccessLine, **more: int
    ) -> AsyncGenerator[tuple[bool, Any]]:
        """Run a request as `run` does, and give each part of its answer when it comes, and the result last.

        Who closes the iterator before its end cancels the request. Arguments are those of `run` and ``most`` of ``pipe.stream``.

        Returns:
            Pairs: whether it is the result, and the part or result.
        """
        with self._counted(model, line), telling_unit(parameters):
            call = self.prepared(model, request, parameters, line)
            parts = parts_of(model, request, {**call, **more}, self.part_bytes)
            async with contextlib.aclosing(parts) as each:
                async for part in each:
                    yield part

    def prepared(
        self,
        model: Model,
        request: Request,
        parameters: Parameters,
        line: AccessLine,
        limits: Limits | None = None,
    ) -> Mapping[str, Any]:
        """Complete a request of the pipeline as `run` does, in limits that are known or those of the model; return the arguments of its call."""
        if parameters or REQUEST_ID in request:
            line.note_ids(request.get(REQUEST_ID, ""), parameters)
        if limits is None:
            limits = self.limits.narrowed(model.limits) if model.limits else self.limits
        if line.until_s is not None:
            limits = limits.until(line.until_s)
        plain = self.keys is None and line.timing is None and not (parameters or model.timed)
        plain = plain and not isinstance(model.pipe, Sampled)
        if plain and limits.max_timeout_ms is None:
            return UNBOUNDED
        return prepared(
            request,
            parameters,
            line.timed() if model.timed else None,
            self._client(model, line),
            limits=limits,
            priority_default=self.priority_default,
        )

    async def answers(
        self, model: Model, asked: Asked, line: AccessLine
    ) -> AsyncGenerator[tuple[bool, Answer | None]]:
        """Run what a client asks for, count it, and give an answer for each part when it comes, and the last.

        Who closes the iterator before its end cancels the request. The pairs and errors are those of
        `headrace_serve.inference.streams.answers`.
        """
        if model.timed:
            asked.times = line.timed()
        asked.client = self._client(model, line)
        limits, default = self.limits.narrowed(model.limits), self.priority_default
        if line.until_s is not None:
            limits = limits.until(line.until_s)
        with self._counted(model, line):
            each_answer = answers(
                model, asked, limits=limits, priority_default=default, part_bytes=self.part_bytes
            )
            async with contextlib.aclosing(each_answer) as each:
                async for answer in each:
                    yield answer

    def _client(self, model: Model, line: AccessLine) -> dict[str, Any]:
        """Return what the ``context`` of a request says of its client: key, number of keys, where times go, in an exchange who it is."""
        client = line.told(None if self.keys is None else len(self.keys))
        if isinstance(model.pipe, Sampled):
            client[CLIENT_DIGEST] = client_digest(line.key, line.client)
        return client

    @contextlib.contextmanager
    def _counted(self, model: Model, line: AccessLine, requests: int = 1) -> Iterator[None]:
        """Count the block as requests of a model; if it is left before its end, they have failed."""
        started = time.perf_counter_ns()
        try:
            yield
        except BaseException as error:
            self.note_failed(model, error, line, started)
            raise
        model.counts.note(time.perf_counter_ns() - started, requests, requests)

    def note_failed(
        self, model: Model, error: BaseException, line: AccessLine, started: int
    ) -> None:
        """Count and tell a request that has failed, or was given up, and began at so many nanoseconds."""
        if isinstance(error, (ClosedError, InstanceLostError)):
            self.changes.notify()
        if getattr(getattr(error, "error", error), "abandoned", False):
            line.times = None  # a backend still runs the request, so its times are not complete
        model.counts.note_failed(time.perf_counter_ns() - started)
        self._log_failure(model, error, line)

    def _log_failure(self, model: Model, error: BaseException, line: AccessLine) -> None:
        """Log a request, or one of its items, that failed in the pipeline or by its result, and show it on the live page."""

        def about() -> dict[str, Any]:
            return {
                "model": model.name,
                "version": model.version,
                "route": line.route,
                "request_id": line.request_id,
                "trace_id": line.trace_id,
                "client": line.client,
                "key": line.key,
            }

        self.failures.note(error, about)
        if self.live is not None and isinstance(error, Exception):
            why = refusal(error, debug=self.debug_errors)
            told = {"code": why.code, "node": why.node, "text": why.text}
            self.live.note_failure({**about(), **told})

    @staticmethod
    def retry_after_s(model: Model | None, error: BaseException | None = None) -> int:
        """Return the seconds after which the queue should have room: the waiting requests, divided by the recent rate.

        The result lies between 1 and 30. It is 1 if too few requests were answered recently to measure the rate. An error
        may know better.
        """
        if (after_s := getattr(error, "retry_after_s", None)) is not None:
            return int(after_s)
        rate = None if model is None else model.counts.rate_s()
        if model is None or rate is None:
            return 1
        return max(1, min(30, math.ceil(model.waiting() / rate)))


def _not_loaded(model: Model) -> UnavailableError:
    return UnavailableError(f"model {model.name!r} is {'being' if model.loading else 'not'} loaded")


def _full(model: Model) -> OverloadedError | None:
    """Give the error for one more request of a model whose queue is full; None if the queue has room."""
    most = model.queue_size
    if model.inside < most or (waiting := model.waiting()) < most:
        return None
    text = f"the queue of model {model.name!r} is full"
    return OverloadedError(text, queue_size=most, waiting=waiting)
