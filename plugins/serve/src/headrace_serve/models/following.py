"""Follows models that change by themselves: who holds them swaps, loads, builds and unloads them."""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError
from headrace_serve.errors import NotBuiltError
from headrace_serve.models.manager import Later

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import Pipeline
    from headrace_models import Change
    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.models.model import Model

__all__ = ["Following"]

logger = logging.getLogger("headrace.serve")

_GONE = ("draining", "unloaded", "failed")


class Served(Protocol):
    """The part of `Service` that changes with the models."""

    models: Catalogue

    def call(self, change: Callable[[], None]) -> None:
        """Make a change between two steps of the event loop."""

    def put(self, model: Model, replaces: str = "") -> None:
        """Serve a model from now on."""

    def withdraw(self, name: str, version: str, reason: str | None) -> None:
        """Send a version no requests from now on; None: there is no such version any more."""


class Following:
    """Has a service serve what those hold that it follows: `headrace_models.Models`, and managers with ``subscribe``."""

    def __init__(self, service: Served) -> None:
        self._service = service
        self._stops: dict[int, tuple[Any, Callable[[], None]]] = {}
        self._building: set[tuple[str, str]] = set()

    def follow(self, *sources: Any) -> None:
        """Hear of the changes of these from now on, and of no others."""
        wanted = {id(one): one for one in sources if hasattr(one, "subscribe")}
        for known in {*self._stops} - {*wanted}:
            self._stops.pop(known)[1]()
        for number in {*wanted} - {*self._stops}:
            self._stops[number] = (wanted[number], wanted[number].subscribe(self._changed))

    @property
    def sources(self) -> list[Any]:
        """Those of them that know states and aliases."""
        all_ = [one for one, _ in list(self._stops.values())]
        return [one for one in all_ if hasattr(one, "status") and hasattr(one, "resolve")]

    def look(self) -> None:
        """Serve what has changed between the building of the catalogue and `follow`."""
        for source, _ in list(self._stops.values()):
            for model in list(self._service.models):
                if model.version in source.versions().get(model.name, ()):
                    pipe = source.pipeline(model.name, model.version)
                    self._put(model.name, model.version, pipe)

    def _changed(self, change: Change) -> None:
        """Take a change, in the thread that makes it and that waits for this."""
        name, version = change.name, change.version
        if change.state == "ready" and change.pipeline is not None:
            self._put(name, version, change.pipeline, change.replaces)
        elif change.state in _GONE and not self._takes_requests(name, version):
            versions = (one.status().get(name, {}).get("versions", {}) for one in self.sources)
            known = not self.sources or any(version in one for one in versions)
            reason = change.reason if known else None
            self._service.call(lambda: self._service.withdraw(name, version, reason))

    def _takes_requests(self, name: str, version: str) -> bool:
        """Return whether a version does so although one of its pipelines does not any more, as in an update."""
        sources = [one for one, _ in list(self._stops.values())]
        return any(version in one.versions().get(name, ()) for one in sources)

    def _put(self, name: str, version: str, pipe: Pipeline, replaces: str = "") -> None:
        now = self._service.models.get(name, version)
        if now is not None and now.pipe is pipe:
            return  # who made the change has put it in its place already
        try:
            model = self._service.models.held.made(name, version, pipe)
        except Exception as error:
            logger.exception("model %r cannot be served", f"{name}:{version}")
            reason = f"it cannot be served: {type(error).__name__}"
            self._service.call(lambda: self._service.withdraw(name, version, reason))
        else:
            self._service.call(lambda: self._service.put(model, replaces))

    def build(self, name: str, version: str) -> NotBuiltError:
        """Have a model built in a thread of its own, unless its last build has just failed; return what clients are told."""
        catalogue = self._service.models
        given = catalogue.lazy[name, version].config
        source = given.manager if isinstance(given, Later) else catalogue.held.models
        known = source.status().get(name, {}).get("versions", {}).get(version, {})
        wait_s = known.get("retry_after_s") or 0.0
        if known.get("state") == "failed" and wait_s > 0:
            kind = known["reason"].partition(":")[0]
            return NotBuiltError(
                name, version, f"could not be built ({kind})", math.ceil(min(wait_s, 60.0))
            )
        if (name, version) not in self._building:
            self._building.add((name, version))
            title = f"headrace-serve-build-{name}:{version}"
            work = (source, name, version)
            threading.Thread(target=self._build, args=work, name=title, daemon=True).start()
        return NotBuiltError(name, version)

    def _build(self, source: Any, name: str, version: str) -> None:
        try:
            self._put(name, version, source.pipeline(name, version))
        except HeadraceError as error:
            logger.warning("model %r could not be built: %s", f"{name}:{version}", error)
        finally:
            self._building.discard((name, version))
