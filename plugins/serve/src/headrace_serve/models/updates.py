"""Follows models that change by themselves: who holds them swaps, loads, builds and unloads them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import ClosedError, DeadlineExceededError, HeadraceError, OverloadedError
from headrace_serve.errors import NotBuiltError
from headrace_serve.models.manager import Later, leased

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import Pipeline
    from headrace_models import Change
    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.models.model import Model

__all__ = ["LoadCounts", "ModelUpdates", "is_deleted"]

logger = logging.getLogger("headrace.serve")


class Served(Protocol):
    """The part of `Service` that changes with the models."""

    models: Catalogue

    def named(
        self, name: str, version: str = "", key: Callable[[], str] | None = None
    ) -> tuple[str, str]:
        """Return name and version of a model as they are, of an alias those that its shares choose."""

    def find(self, name: str, version: str = "") -> Model | None:
        """Return a model that takes requests. None: it has yet to come."""

    def call(self, change: Callable[[], None]) -> None:
        """Make a change between two steps of the event loop."""

    def put(self, model: Model) -> None:
        """Serve a model from now on."""

    def withdraw(
        self, name: str, version: str, reason: str | None, *, absent: bool = False
    ) -> None:
        """Send a version no requests from now on; None: there is no such version any more."""


class LoadCounts:
    """Counts which models have come, and have left for others.

    Attributes:
        loaded: How often each model has come.
        evicted: How often each has left for another one.
        took_s: The seconds that all builds of each have taken, with the wait for room.
    """

    def __init__(self) -> None:
        self.loaded, self.evicted = Counter[str](), Counter[str]()
        self.took_s: defaultdict[str, float] = defaultdict(float)
        self._since_s: dict[tuple[str, str], float] = {}

    def note(self, change: Change) -> None:
        """Count a change."""
        place = (change.name, change.version)
        if change.state == "loading":
            self._since_s[place] = time.monotonic()
        elif change.state == "draining":
            self.evicted[change.name] += change.reason.startswith("evicted")
        elif (since_s := self._since_s.pop(place, None)) is not None and change.state == "ready":
            self.loaded[change.name] += 1
            self.took_s[change.name] += time.monotonic() - since_s


class ModelUpdates:
    """Has a service serve what those hold that it follows: `headrace_models.Models`, and managers like it.

    Attributes:
        sources: Those that it follows.
        load_counts: What has come and gone since.
    """

    def __init__(self, service: Served) -> None:
        self._service = service
        self._stops: list[Callable[[], None]] = []
        self._unready: dict[str, str] = {}
        self._refused: set[tuple[str, str]] = set()
        self.sources: list[Any] = []
        self.load_counts = LoadCounts()

    def follow(self, *sources: Any) -> None:
        """Hear of the changes of these from now on, and of no others."""
        stops = self._stops
        self.sources = [source for source in sources if hasattr(source, "subscribe")]
        self._stops = [source.subscribe(partial(self._changed, source)) for source in self.sources]
        for stop in stops:
            stop()

    def chosen(
        self, models: Catalogue, name: str, key: Callable[[], str] | None
    ) -> tuple[str, str]:
        """Return name and version of the model that the shares of an alias choose; the name without one where it is none.

        Args:
            models: The served models.
            name: The alias.
            key: Gives the text by which the shares choose, ``""`` for none. None or none: it is drawn.
        """
        for source in self.sources:
            if name in source:
                alias = name
                chosen = source.resolve(alias, key=(key() if key is not None else "") or None)
                name, _, number = chosen.partition(":")
                if number not in models.versions(name) and not is_deleted(source, name, number):
                    # An alias of this version waits for it while it is built: another one is not what it names.
                    shares = source.status().get(alias, {}).get("shares", {})
                    return name, number if chosen in shares else ""
                return name, number
        return name, ""

    def aliases(self) -> dict[str, dict[str, float]]:
        """Return the shares of each alias."""
        return {name: about["shares"] for name, about in self._told() if about.get("shares")}

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """Return how the exchange of each model goes, or how its last one has ended."""
        return {name: told for name, about in self._told() if (told := about.get("exchange"))}

    def _told(self) -> list[tuple[str, dict[str, Any]]]:
        return [item for source in self.sources for item in source.status().items()]

    def look(self) -> None:
        """Serve what has changed between the building of the catalogue and `follow`."""
        for source in self.sources:
            for name in source.versions():
                self._sync(source, name)

    def _changed(self, source: Any, change: Change) -> None:
        """Take a change, in the thread that makes it and that waits for this."""
        has_failed = change.state == "failed" or (change.state == "ready" and not change.replaces)
        if change.reason and has_failed:  # ready: its update has failed, or its exchange
            logger.warning("model %r: %s", f"{change.name}:{change.version}", change.reason)
        self.load_counts.note(change)
        if change.state != "loading":
            self._sync(source, change.name, change.replaces)
            self._tell_ready()

    def _tell_ready(self) -> None:
        """Log each model without which the server is not ready, and why, once for each reason."""
        before, self._unready = self._unready, self._service.models.unready
        for name, reason in self._unready.items():
            if before.get(name) != reason:
                logger.warning("not ready: model %r has no version that serves: %s", name, reason)

    def _sync(self, source: Any, name: str, replaced: str = "") -> None:
        """Serve the versions of a model that take requests, and no others; one that was replaced or deleted is forgotten."""
        known = source.status().get(name, {}).get("versions", {})
        numbers = source.versions().get(name, ())
        for version in numbers:
            if known.get(version, {}).get("state") == "ready":
                with (  # it has just left, of which the next change tells
                    contextlib.suppress(HeadraceError),
                    leased(source, name, version) as (pipe, use),
                ):
                    self._put(name, version, pipe, use)
        for model in [each for each in self._service.models if each.name == name]:
            about = known.get(model.version, {})
            gone = not about or model.version == replaced or about.get("deleted", False)
            failed = not gone and about["state"] == "failed"
            absent = failed or (model.version in numbers and about.get("state") != "ready")
            if absent or model.version not in numbers:
                model.failed, model.code = failed, about.get("code")
                reason = None if gone and not absent else about["reason"]
                self._withdraw(name, model.version, reason, absent=absent)

    def _put(self, name: str, version: str, pipe: Pipeline, use: Any) -> None:
        now = self._service.models.get(name, version)
        if now is not None and _original(now.pipe) is _original(pipe) and not now.unloaded:
            now.pipe = pipe  # who made the change has put it in its place already, or an exchange begins or ends
            now.use = use or now.use
            return
        try:
            model = self._service.models.held.made(name, version, pipe)
            model.use = use or model.use
        except Exception as error:
            logger.exception("model %r cannot be served", f"{name}:{version}")
            self._refused.add((name, version))
            if now is not None:
                now.failed = True
            self._withdraw(name, version, f"it cannot be served: {type(error).__name__}")
        else:
            self._refused.discard((name, version))
            self._service.call(lambda: self._service.put(model))

    def _withdraw(
        self, name: str, version: str, reason: str | None, *, absent: bool = False
    ) -> None:
        self._service.call(lambda: self._service.withdraw(name, version, reason, absent=absent))

    async def wait(
        self,
        name: str,
        version: str = "",
        key: Callable[[], str] | None = None,
        until_s: float | None = None,
    ) -> Model:
        """Wait in the queue of a model until it has come, and return it.

        Args:
            name: As `Service.named` takes it, and the next two.
            version: See there.
            key: See there.
            until_s: When to give up, by `time.monotonic`. None: never.

        Raises:
            OverloadedError: It cannot come for want of memory, or its queue is full.
            NotBuiltError: It could not be built.
            HeadraceError: As `Service.find` raises it, and where the time is over or the models are closed.
        """
        service, pause_s = self._service, 0.0
        while True:
            name, version = service.named(name, version, key)
            model = service.find(name, version)
            if model is not None:
                return model
            number = service.models.chosen(name, version)
            if (name, number) in self._refused:
                raise NotBuiltError(name, number, "cannot be served")
            await self._wait(self._source_of(name, number), name, number, until_s)
            await asyncio.sleep(
                pause_s
            )  # it may be built, and be put here in one of this loop's next turns
            pause_s = 0.001

    async def _wait(self, source: Any, name: str, version: str, until_s: float | None) -> None:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        try:
            await source.wait_async(f"{name}:{version}", timeout=left_s)
        except (DeadlineExceededError, ClosedError):
            raise
        except HeadraceError as error:
            after_s = math.ceil(_status(source, name, version).get("retry_after_s") or 1)
            if isinstance(error, OverloadedError):
                error.retry_after_s = after_s  # type: ignore[attr-defined]
                raise
            why = f"could not be built ({type(error).__name__})"
            raise NotBuiltError(name, version, why, after_s) from None

    def memory_of(self, name: str, version: str) -> dict[str, Any]:
        """Return whether a model is here, and what it takes, where models have a budget of memory. Else nothing."""
        about = _status(self._source_of(name, version), name, version)
        if not about.get("memory"):
            return {}
        state = {"ready": "present", "loading": "coming"}.get(about["state"], "absent")
        memory = {"bytes": about["memory"], "origin": about["memory_origin"]}
        return {"state": state, "memory": memory}

    def last_failure(self, name: str, version: str) -> str:
        """Return why a lazy model that was asked for could not be built, or served; ``""`` if none has failed."""
        if (name, version) in self._refused:
            return "it cannot be served"
        known = _status(self._source_of(name, version), name, version)
        return str(known["reason"]) if known.get("state") == "failed" else ""

    def _source_of(self, name: str, version: str) -> Any:
        """Return what builds a model at a request."""
        catalogue = self._service.models
        entry = catalogue.lazy.get((name, version))
        if entry is not None and isinstance(entry.config, Later):
            return entry.config.manager
        mine = [source for source in self.sources if _status(source, name, version)]
        return mine[0] if mine else catalogue.held.models


def _original(pipe: Any) -> Any:
    return getattr(pipe, "original", pipe)


def is_deleted(source: Any, name: str, version: str) -> bool:
    """Return whether a version is there no more because its file is gone."""
    return bool(_status(source, name, version).get("deleted", False))


def _status(source: Any, name: str, version: str) -> dict[str, Any]:
    status: dict[str, Any] = source.status().get(name, {}).get("versions", {}).get(version, {})
    return status
