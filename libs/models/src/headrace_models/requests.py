"""Requests to models by name: which version serves one, and how it keeps that version's pipeline open."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import TimeoutError as NotDoneError  # not the builtin in Python 3.10
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from headrace.errors import ClosedError, DeadlineExceededError, HeadraceError
from headrace.futures import RelayFuture
from headrace_models.errors import UnknownModelError
from headrace_models.sources import split
from headrace_models.version import again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from headrace import Pipeline
    from headrace_models.builds import Build
    from headrace_models.model import Model
    from headrace_models.shares import Shares
    from headrace_models.version import Place, Version

__all__ = ["NamedModel", "Requests"]


class Requests:
    """The part of `headrace_models.Models` that serves requests.

    Attributes:
        _models: The models by name.
        _places: What each of these names means now.
        _shares: The aliases.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._models: dict[str, Model] = {}
        self._places: dict[str, Place] = {}
        self._shares: dict[str, Shares] = {}
        self._closed = False

    def __call__(
        self,
        name: str,
        data: Any,
        *,
        timeout: float | None = None,
        priority: int = 0,
        key: str | bytes | None = None,
    ) -> Any:
        """Run one request of a model, or a list of them, and wait.

        Args:
            name: ``"detect"``, ``"detect:3"`` or an alias.
            data: See `headrace.Pipeline.__call__`.
            timeout: Seconds from now, those included for which the request waits until its model is built.
            priority: See `headrace.Pipeline.__call__`.
            key: For an alias with shares: requests with the same key are served by the same model. None: drawn.

        Returns:
            ``data``, each request with its ``result``.

        Raises:
            UnknownModelError: There is no such model.
            UnloadedError: It is unloaded.
            ClosedError: The models are closed.
            ConfigError, SetupError, PluginError: It is built by requests, and could not be built.
            RequestError, RequestsFailed: As `headrace.Pipeline.__call__` raises them.
        """
        version = self._lease(name, key)
        if version is None:
            version, timeout = self._built(name, key, timeout)
        try:
            return version.pipe(data, timeout=timeout, priority=priority)
        finally:
            version.leases.give_back()

    def submit(
        self,
        name: str,
        data: Any,
        *,
        timeout: float | None = None,
        priority: int = 0,
        key: str | bytes | None = None,
    ) -> Any:
        """Let a request run and return at once, as `headrace.Pipeline.submit` does.

        Args:
            name: See `__call__`, as for the others.
            data: A request, or a list of requests.
            timeout: Seconds from now.
            priority: A greater one goes first.
            key: What decides by the shares of an alias.

        Returns:
            A future of the dict, or a list of futures, one per item.

        Raises:
            UnknownModelError, UnloadedError, ClosedError: As `__call__` does.
            ConfigError, SetupError, PluginError: The model could not be built a short while ago. If it is yet to be
                built, the futures have the error of the build.
        """
        version = self._lease(name, key)
        if version is None:
            return self._submit_later(name, data, timeout, priority, key)
        try:
            return version.pipe.submit(data, timeout=timeout, priority=priority)
        finally:
            version.leases.give_back()  # what is in the pipeline by now ends before it is closed

    async def call_async(
        self,
        name: str,
        data: Any,
        *,
        timeout: float | None = None,
        priority: int = 0,
        key: str | bytes | None = None,
    ) -> Any:
        """Run one request, or a list of them, without blocking the event loop.

        Args:
            name: See `__call__`, as for the others.
            data: A request, or a list of requests.
            timeout: Seconds from now.
            priority: A greater one goes first.
            key: What decides by the shares of an alias.

        Returns:
            ``data``, as `__call__` does.

        Raises:
            HeadraceError: As `__call__` does.
            asyncio.CancelledError: See `headrace.Pipeline.call_async`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (version := self._lease(name, key)) is None:
            await self.wait_async(name, timeout=_left(until), key=key)
        try:
            return await version.pipe.call_async(data, timeout=_left(until), priority=priority)
        finally:
            version.leases.give_back()

    async def wait_async(
        self, name: str, *, timeout: float | None = None, key: str | bytes | None = None
    ) -> None:
        """Wait until a model is built that a request builds, in its queue, without blocking the event loop.

        It may have left for another one by then. One that takes requests is not waited for.

        Args:
            name: See `__call__`.
            timeout: Seconds from now.
            key: See `__call__`.

        Raises:
            HeadraceError: As `__call__` does.
        """
        building = self._building(name, key)
        if building is not None:
            waiting = asyncio.shield(asyncio.wrap_future(building))
            try:
                with building.queued():
                    _raise_again(await asyncio.wait_for(waiting, timeout))
            except asyncio.TimeoutError:
                raise _too_late(name) from None

    def _lease(self, name: str, key: str | bytes | None = None) -> Version | None:
        """Lease the version that a name means; None if it has no pipeline, or had none a moment ago."""
        place = self._places.get(name)
        if place is None:
            place = self._place(name, key)
        version = place.version
        while not version.leases.take():
            if place.version is version:
                return None
            version = place.version  # it was replaced just now
        version.last_use = self._clock()
        return version

    def _place(self, name: str, key: str | bytes | None) -> Place:
        """Find what is not the plain name of a model: a version, or an alias."""
        shares = self._shares.get(name)
        if shares is not None:
            name = shares.name(key)
        short, number = split(name)
        model = self._models.get(short)
        place = (
            None if model is None else model.place if number is None else model.places.get(number)
        )
        if place is None:
            if self._closed:
                raise ClosedError("the models are closed")
            known = [*self._models, *self._shares]
            if model is not None:
                known = [f"{short}:{key}" for key in model.places]
            raise UnknownModelError(name, known)
        return place

    def _building(self, name: str, key: str | bytes | None) -> Build | None:
        """Return the build for which a request waits, None if it is to look again; see `Model.wanted`."""
        place = self._places.get(name) or self._place(name, key)
        version = place.version
        model = self._models.get(version.name)
        return None if model is None else model.wanted(place, version)

    def _built(
        self, name: str, key: str | bytes | None, timeout: float | None
    ) -> tuple[Version, float | None]:
        """Wait until the model is built; return the leased version, and the seconds that are left."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            building = self._building(name, key)
            if building is not None:
                try:
                    with building.queued():
                        _raise_again(building.result(_left(until)))
                except NotDoneError:
                    raise _too_late(name) from None
            version = self._lease(name, key)
            if version is not None:
                return version, _left(until)

    def _submit_later(
        self, name: str, data: Any, timeout: float | None, priority: int, key: str | bytes | None
    ) -> Any:
        """Submit a request once its model is built, in the thread that has built it."""
        until = None if timeout is None else time.monotonic() + timeout
        building = self._building(name, key)
        if building is None:
            return self.submit(name, data, timeout=timeout, priority=priority, key=key)
        many = isinstance(data, list)
        futures = [RelayFuture() for _ in (data if many else [data])]
        waiting = ExitStack()
        waiting.enter_context(building.queued(len(futures)))

        def go_on(done: Future[BaseException | None]) -> None:
            waiting.close()
            try:
                _raise_again(done.result())
                left = _left(until)
                if left == 0:
                    raise _too_late(name)  # noqa: TRY301 - an outcome like the others
                given = self.submit(name, data, timeout=left, priority=priority, key=key)
            except BaseException as error:  # noqa: BLE001 - it is the outcome of the request
                for future in futures:
                    future.finish(again(error) if isinstance(error, HeadraceError) else error)
                return
            for running, future in zip(given if many else [given], futures, strict=True):
                future.follow(running)

        building.add_done_callback(go_on)
        return futures if many else futures[0]

    def __getitem__(self, name: str) -> NamedModel:
        """Return a model, a version or an alias, to be called without its name.

        Raises:
            UnknownModelError: There is none.
        """
        self._places.get(name) or self._place(name, None)
        return NamedModel(self, name)

    def resolve(self, name: str, *, key: str | bytes | None = None) -> str:
        """Return the version for a request now, with its name: ``"detect:3"``.

        Args:
            name: ``"detect"``, ``"detect:3"`` or an alias.
            key: Decides by the shares of an alias. None: drawn.

        Raises:
            UnknownModelError: There is no such model.
            ClosedError: The models are closed.
        """
        place = self._places.get(name) or self._place(name, key)
        return place.version.title

    def wake(self, name: str) -> None:
        """Have a model built that a request builds, without waiting for it. One that takes requests stays as it is.

        Args:
            name: See `__call__`.

        Raises:
            UnknownModelError, UnloadedError, ClosedError: As `__call__` does.
            ConfigError, SetupError, PluginError: It could not be built a short while ago, and is not tried again yet.
        """
        self._building(name, None)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        short, number = split(name)
        model = self._models.get(short)
        return name in self._shares or (model is not None and number in (None, *model.places))

    def __iter__(self) -> Iterator[str]:
        return iter([*self._models, *self._shares])

    def __len__(self) -> int:
        return len(self._models) + len(self._shares)

    @contextmanager
    def lease(
        self, name: str, *, key: str | bytes | None = None, timeout: float | None = None
    ) -> Iterator[Pipeline]:
        """Keep a pipeline from being closed while the block runs, for several calls of the same version.

        Args:
            name: See `__call__`.
            key: See `__call__`.
            timeout: Seconds to wait where a request builds the model.

        Yields:
            The pipeline.

        Raises:
            HeadraceError: As `__call__` does.
        """
        with self.lease_version(name, key=key, timeout=timeout) as version:
            yield version.pipe

    @contextmanager
    def lease_version(
        self, name: str, *, key: str | bytes | None = None, timeout: float | None = None
    ) -> Iterator[Version]:
        """Lease a version, for a server that sends its pipeline requests itself, and is told of changes by `subscribe`.

        It notes the time of each request in ``last_use``. Once it is told that the version is ``draining`` it may take a
        further lease for requests that have yet to reach the pipeline. Arguments and errors are those of `lease`.
        """
        version = self._lease(name, key)
        if version is None:
            version, _ = self._built(name, key, timeout)
        try:
            yield version
        finally:
            version.leases.give_back()


class NamedModel:
    """A model, a version or an alias of `Models`, called without its name. It holds no pipeline.

    Attributes:
        name: Its name.
    """

    def __init__(self, models: Requests, name: str) -> None:
        self._models = models
        self.name = name

    def __call__(self, data: Any, **settings: Any) -> Any:
        """Run a request as `Models.__call__` does."""
        return self._models(self.name, data, **settings)

    def submit(self, data: Any, **settings: Any) -> Any:
        """Submit a request as `Models.submit` does."""
        return self._models.submit(self.name, data, **settings)

    async def call_async(self, data: Any, **settings: Any) -> Any:
        """Run a request as `Models.call_async` does."""
        return await self._models.call_async(self.name, data, **settings)

    def __repr__(self) -> str:
        return f"<NamedModel {self.name}>"


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _too_late(name: str) -> DeadlineExceededError:
    return DeadlineExceededError(f"model {name!r} was not built in time")


def _raise_again(error: BaseException | None) -> None:
    """Raise a copy of an error, so that each thread that has waited raises its own."""
    if isinstance(error, HeadraceError):
        raise again(error)
    if error is not None:
        raise error
