"""Loads and unloads models at the request of clients; only models that were named when the server started."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import ConfigError, InputError, OverloadedError
from headrace_serve.client_input import loads
from headrace_serve.errors import (
    NotAllowedError,
    UnavailableError,
    UnknownModelError,
    unknown_parameter,
)
from headrace_serve.models.catalogue import build_models
from headrace_serve.models.entries import read_entries, repositories
from headrace_serve.threads import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.monitoring.counters import Counters
    from headrace_serve.monitoring.health_changes import HealthChanges

__all__ = ["Repository"]

logger = logging.getLogger("headrace.serve")

_MOST_WAITING = 16
_FAILED = "failed to load: "
"""What clients of Triton look for in the refusal of a load."""


class Served(Protocol):
    """The part of `Service` that the repository needs."""

    models: Catalogue
    changes: HealthChanges
    counters: Counters
    given: Any
    allow_import: bool
    draining: bool


class Repository:
    """Loads and unloads models of a service, one after the other; used by its event loop."""

    def __init__(self, service: Served) -> None:
        self._service = service
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Read the configurations of a model again, build them, and serve the new pipelines.

        If one cannot be built, the old pipelines stay.

        Args:
            name: The model. All of its versions are loaded.
            parameters: The parameters of the request. ``config`` is for a model of a repository that a plugin reads, and says
                what that allows.

        Raises:
            NotAllowedError: The request brings another configuration, or files, which are code.
            InputError: The request has another parameter.
            UnknownModelError: The model was not named when the server started.
            UnavailableError: The server is about to shut down, a reload has removed the model meanwhile, or it is being loaded
                for the first time.
            OverloadedError: Too many requests wait for their turn.
            ConfigError, SetupError, PluginError: As `headrace.pipe` raises them.
        """
        for parameter in parameters:
            if parameter.startswith("file:"):
                raise _refused(parameter)
            if parameter != "config":
                raise unknown_parameter(parameter, "the request", [])
        fresh = partial(_fresh, self._service, name, parameters.get("config"))
        await self._in_turn(name, "load", self._load(name, fresh))

    async def unload(self, name: str, parameters: Iterable[str]) -> None:
        """Refuse requests for a model from now on, let its running requests end, and close its pipelines.

        Args:
            name: The model. All of its versions are unloaded.
            parameters: The names of the parameters of the request. ``unload_dependents`` is allowed, because no model
                depends on another.

        Raises:
            InputError: The request has another parameter.
            UnknownModelError: There is no such model.
            OverloadedError: Too many requests wait for their turn.
        """
        for parameter in parameters:
            if parameter != "unload_dependents":
                raise unknown_parameter(parameter, "the request", ["unload_dependents"])
        await self._in_turn(name, "unload", self._unload(name))

    async def exchange(self, name: str, action: Any) -> None:
        """End the exchange of a model before its verdict.

        Args:
            name: The model.
            action: ``stop``, and the old one stays, or ``take``, and the new one takes its place.

        Raises:
            InputError: The action is none of them, or no exchange goes on.
            UnknownModelError: There is no such model.
        """
        if action not in ("stop", "take"):
            raise InputError("action", expected="stop or take", got=repr(action)[:40])
        held = self._service.models.held.models
        if name not in held:
            raise self._unknown(name)
        try:
            await call_in_thread(lambda: held.end_exchange(name, take=action == "take"))
        except ConfigError as error:
            raise InputError(error.problems[0].message) from None

    async def end(self, timeout: float) -> None:
        """Wait until the loads and unloads that have begun are done, at most ``timeout`` seconds; give up the others."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=timeout)
            for task in left:
                task.cancel()

    async def _in_turn(self, name: str, kind: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` after earlier loads and unloads, and to its end even if the client goes away."""
        if self._waiting >= _MOST_WAITING:
            work.close()
            text = "other models are being loaded"
            raise OverloadedError(text, queue_size=_MOST_WAITING, waiting=self._waiting)

        if self._service.models.is_loading(name):
            work.close()
            raise UnavailableError(f"model {name!r} is being loaded")

        async def run() -> None:
            try:
                async with self._turn:
                    with self._service.counters.loading(kind):
                        await work
            finally:
                self._waiting -= 1

        self._waiting += 1  # before its task runs, so that requests of one moment count each other
        task = self._keep(run())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise UnavailableError("the server is shutting down") from None
            raise

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _unknown(self, name: str, doing: str = "") -> UnknownModelError:
        return UnknownModelError(name, served=self._service.models.names, doing=doing)

    async def _given(self, name: str, fresh: Callable[[], Any]) -> Any:
        """Return what is to be served under a name.

        Raises:
            UnknownModelError: Nothing is.
        """
        given = await call_in_thread(fresh)
        if given is self._service.given and not self._service.models.has(name):
            raise self._unknown(name, _FAILED)
        return given

    async def _load(self, name: str, fresh: Callable[[], Any]) -> None:
        service = self._service
        known = service.models.has(name)
        before = [model for model in service.models if model.name == name]
        for model in before:
            model.loading = True
        service.changes.notify()
        try:
            given = await self._given(name, fresh)
            how: Any = {"only": name, "allow_import": service.allow_import}
            new = await call_in_thread(lambda: build_models(given, service.models, **how))
        except UnknownModelError:
            raise
        except Exception as error:
            logger.exception("model %r cannot be loaded", name)
            for model in before:
                if model.unloaded:
                    model.reason = f"loading failed: {type(error).__name__}"
            raise
        finally:
            for model in before:
                model.loading = False
            service.changes.notify()
        if service.draining or (known and not service.models.has(name)):
            await call_in_thread(new.drop)
            raise UnavailableError(f"model {name!r} is not served any more")
        replaced = [model for model in service.models if model.name == name]
        service.models = service.models.replaced(name, new)
        new.switch(replaced)
        service.changes.notify()

    async def _unload(self, name: str) -> None:
        if not self._service.models.has(name):
            raise self._unknown(name)
        models = [model for model in self._service.models if model.name == name]
        if all(model.unloaded and not (model.failed or model.absent) for model in models):
            return
        for model in models:
            model.unloaded, model.failed, model.reason = True, False, "unloading"
            model.absent = False
            model.leave()
        self._service.changes.notify()
        held = self._service.models.held.models
        if name in held:
            await call_in_thread(held.unload, name)
        for model in models:
            model.reason = "unloaded"
        self._service.changes.notify()


def _refused(parameter: str) -> NotAllowedError:
    text = f"parameter {parameter[:80]!r}: configurations and files of requests are refused"
    return NotAllowedError(f"{_FAILED}{text}, because they are code")


def _fresh(service: Served, name: str, config: Any) -> Any:
    """Return what is to be served under a name: of a repository that a plugin reads, as its folder says by now.

    Raises:
        NotAllowedError: ``config``, which a request has brought, changes more than it may.
        InputError: It is no object of JSON, or holds values that there are not.
    """
    entries = service.models.held.entries
    again = repositories(entries)
    if not again and name not in {n for n, _ in entries}:  # its folder was empty at the start
        again = repositories(read_entries(service.given, may_be_none=True)[0])
    if config is not None and not again:
        raise _refused("config")
    try:
        override = None if config is None else loads(str(config).encode())
        if config is not None and not isinstance(override, dict):
            raise InputError(expected="an object", got=type(override).__name__)  # noqa: TRY301
        models = [model for each in again for model in each(name, override).items()]
        if not models and config is not None:
            raise _refused("config")
        return dict(models) or service.given
    except ConfigError as error:
        if config is None:
            raise
        raise NotAllowedError(_FAILED + error.problems[0].message) from None
    except InputError as error:
        raise InputError(f"{_FAILED}the parameter config: {error}") from None
