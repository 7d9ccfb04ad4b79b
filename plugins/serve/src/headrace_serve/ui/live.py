"""What the live page is told: figures of each node, the latest batches and errors, and how a load test goes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import headrace
from headrace.errors import ClosedError
from headrace.hookspecs import attached
from headrace.plugins import usable_cpus
from headrace_serve.monitoring.observe_probes import slowest_of
from headrace_serve.process import is_crowded
from headrace_serve.threads import Pool
from headrace_serve.ui.graph import nodes_of
from headrace_serve.ui.limit import Sample, limit_of, running_of
from headrace_serve.ui.load import LoadTest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace_serve.models.model import Model

__all__ = ["LivePage", "RecentBatches"]

_UNWATCHED_S: Final = 5.0
"""So long after the last question a browser counts as gone."""
_MOST_BATCHES: Final = 400
"""So many batches of a model are heard of after each question. A probe costs up to 20 microseconds a batch, so these are less than
one percent of a second. More of them a second could not be told apart on the page.
"""
_MOST_FAILURES: Final = 50
_LIMIT_S: Final = 5.0
"""What limits a pipeline is told from so many last seconds."""
_SLOWEST = Pool("slowest", 1)
_APART_S: Final = 0.5
"""Several browsers ask more often than figures change: samples are so far apart."""


class RecentBatches:
    """A probe that keeps batches of a pipeline, until it has enough of them.

    Args:
        enough: Called once, in the thread of a batch, when so many are kept.
    """

    def __init__(self, enough: Callable[[], object]) -> None:
        self._kept: deque[tuple[Any, ...]] = deque(maxlen=2 * _MOST_BATCHES)
        self._number = itertools.count(1)
        self._until = _MOST_BATCHES
        self._enough = enough

    def batch_done(
        self, node: str, instance: int, size: int, started: float, ended: float, errors: list[Any]
    ) -> None:
        """Keep one batch."""
        failed, number = size - errors.count(None), next(self._number)
        self._kept.append((number, node, instance, size, started, ended, failed))
        if number == self._until:
            self._enough()

    def go_on(self) -> None:
        """Take as many batches more."""
        kept = self._kept.copy()
        self._until = (kept[-1][0] if kept else 0) + _MOST_BATCHES

    def since(self, number: int) -> list[tuple[Any, ...]]:
        """Return the kept batches after the one of that number: (number, node, instance, size, started, ended, failed)."""
        return [batch for batch in self._kept.copy() if batch[0] > number]


class _Watched:
    """A pipeline whose batches are heard of, from a question to the moment when there are enough of them.

    Attributes:
        batches: Those that were heard of.
        missed: Whether there were enough of them before the last question, so that later ones were not heard of.
    """

    def __init__(self, model: Model) -> None:
        self._nodes = nodes_of(headrace.explain(model.pipe.config))
        self._samples: deque[Sample] = deque()
        self._pipe, self._attached = model.pipe, ExitStack()
        loop = asyncio.get_running_loop()
        self.batches = RecentBatches(lambda: loop.call_soon_threadsafe(self.stop))
        self.missed = False
        self._hears: bool | None = None
        self._model = model
        self._sought: asyncio.Future[Any] | None = None
        self._slowest = slowest_of(model, 0)

    def go_on(self) -> None:
        """Hear of the next batches."""
        self.missed = self._hears is False
        self.batches.go_on()
        if not self._hears:
            with suppress(ClosedError):
                self._attached.enter_context(attached(self._pipe, self.batches))
                self._hears = True

    def limit(self, stats: dict[str, Any], now_s: float) -> dict[str, Any]:
        """Return which node is the limit, and why, once there are figures of several moments."""
        samples = self._samples
        if not samples or now_s - samples[-1].at_s >= _APART_S:
            samples.append(Sample(now_s, stats["nodes"], time.process_time()))
        while now_s - samples[0].at_s > _LIMIT_S and len(samples) > 1:
            samples.popleft()
        crowded = is_crowded()
        return limit_of(samples, self._nodes, usable_cpus(), crowded=crowded)._asdict()

    def running(self) -> list[tuple[str, int, float]]:
        """Return node, instance and begin of each batch that runs, and ran when the page asked before."""
        return running_of(self._samples)

    def slowest(self) -> list[dict[str, Any]] | None:
        """Return the slowest of the last requests as they were at the last question; None where nothing remembers them."""
        if self._slowest is None or (self._sought is not None and not self._sought.done()):
            return self._slowest
        if self._sought is not None and self._sought.exception() is None:
            self._slowest = self._sought.result()
        self._sought = asyncio.ensure_future(_SLOWEST.run(slowest_of, self._model, 10))
        return self._slowest

    def stop(self) -> None:
        """Hear of no more."""
        self._hears = False
        self._attached.close()


class LivePage:
    """The state behind the live page of one server. Used by its event loop.

    Attributes:
        load: The load test that the page can run.

    Args:
        clock: Gives seconds, on the clock of ``time.monotonic()``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.load = LoadTest(clock)
        self._clock = clock
        self._failures: deque[dict[str, Any]] = deque(maxlen=_MOST_FAILURES)
        self._number = itertools.count(1)
        self._watched: dict[Any, _Watched] = {}
        self._models: object = None
        self._revision = 0
        self._asked_s = float("-inf")
        self._expiry: asyncio.TimerHandle | None = None

    def revision(self, models: object) -> int:
        """Return a number that is another one each time the served models are."""
        if models is not self._models:
            self._models, self._revision = models, self._revision + 1
        return self._revision

    def note_failure(self, about: dict[str, Any]) -> None:
        """Keep a failed request: its model, version, code, node, text and ids."""
        self._failures.append({"number": next(self._number), "at": self._clock(), **about})

    def state(self, models: Iterable[Model], since: dict[str, int]) -> dict[str, Any]:
        """Return what the page shows, and watch the pipelines for the next seconds.

        Args:
            models: The models that are served.
            since: The numbers of the last ``batches``, ``failures`` and ``load`` that the page has. Only later ones
                are returned.
        """
        served, now_s = list(models), self._clock()
        self._watch(served)
        shown = []
        for model in served:
            watched, key = self._watched[model], f"{model.name}:{model.version}"
            stats = model.pipe.stats()
            shown.append(
                {
                    "id": key,
                    "ready": model.ready,
                    "stats": stats,
                    "limit": watched.limit(stats, now_s),
                    "running": watched.running(),
                    "slowest": watched.slowest(),
                    "batches": watched.batches.since(since.get(f"batches.{key}", 0)),
                    "missed": watched.missed,
                }
            )
        last = since.get("failures", 0)
        return {
            "now": self._clock(),
            "models": shown,
            "failures": [failure for failure in self._failures if failure["number"] > last],
            "load": self.load.state(since.get("load", 0)),
        }

    def _watch(self, models: list[Model]) -> None:
        self._asked_s = self._clock()
        for gone in set(self._watched).difference(models):
            self._watched.pop(gone).stop()
        for model in models:
            if model not in self._watched:
                self._watched[model] = _Watched(model)
            self._watched[model].go_on()
        if self._expiry is None:
            self._expire_later()

    def _expire_later(self) -> None:
        left = self._asked_s + _UNWATCHED_S - self._clock()
        self._expiry = asyncio.get_running_loop().call_later(max(0.0, left), self.expire)

    def expire(self) -> None:
        """Stop watching, and the load test, if no browser has asked for some seconds; else look again later."""
        self._expiry = None
        if self._clock() - self._asked_s < _UNWATCHED_S:
            self._expire_later()
        else:
            self.close()

    def close(self) -> None:
        """Stop watching, and the load test."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.load.stop()
        watched, self._watched = self._watched, {}
        for watch in watched.values():
            watch.stop()

    async def end(self) -> None:
        """Stop all of it, and wait until nothing of it runs."""
        await self.load.end()
        self.close()
