"""Metrics of a ``model.py``: numbers in the process of the server, which shows them under ``/metrics``."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["COUNTER", "GAUGE", "HISTOGRAM", "Change", "Metric", "MetricFamily", "change"]

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

_NAME: Final = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


class Change(NamedTuple):
    """What a model does with a number.

    Attributes:
        family: The name of its family.
        kind, text: The kind of the family, `COUNTER`, `GAUGE` or `HISTOGRAM`, and what it is. The first text stays.
        labels: The labels of the number, by their names in order.
        buckets: The upper bounds of a histogram, ascending.
        verb: ``increment``, ``set``, ``observe`` or ``value``, which changes nothing.
        value: What is added, what the number is from now on, or what is counted.
    """

    family: str
    kind: str
    text: str
    labels: tuple[tuple[str, str], ...] | None
    buckets: tuple[float, ...] = ()
    verb: str = "value"
    value: float = 0.0


_VERBS: Final = {
    COUNTER: ("increment", "value"),
    GAUGE: ("increment", "set", "value"),
    HISTOGRAM: ("observe",),
}


class MetricFamily:
    """Numbers of one name. All models that name it share it.

    Args:
        name: The name. Where OpenMetrics is asked for, samples of a counter end with ``_total``.
        description: What it is.
        kind: `COUNTER`, `GAUGE` or `HISTOGRAM`.

    Raises:
        TritonModelException: Another family of the name is of another kind, or the name or kind is none.
    """

    COUNTER, GAUGE, HISTOGRAM = COUNTER, GAUGE, HISTOGRAM
    send: Callable[[Change], Any] = lambda _: None

    def __init__(self, name: str, description: str, kind: str) -> None:
        if kind not in _VERBS or not _NAME.fullmatch(name):
            metric = f"a metric {name!r} of the kind {kind!r}"
            raise _wrong(f"{metric}: a name of letters, digits, _ and :, and one of {[*_VERBS]}")
        self._change = Change(name, kind, description, None)
        self.send(self._change)

    def Metric(  # noqa: N802 - models know it by this name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Return the number with these labels.

        Args:
            labels: The labels.
            buckets: The upper bounds of a histogram, ascending. Only that has some.

        Raises:
            TritonModelException: A label has another name than Prometheus allows, or the buckets are wrong.
        """
        change, bounds = self._change, tuple(map(float, buckets or ()))
        if wrong := [label for label in labels or () if not _LABEL.fullmatch(label)]:
            raise _wrong(f"{wrong[0]!r} is no name of a label: letters, digits and _")
        if (buckets is not None) is not (change.kind == HISTOGRAM):
            needs = "needs `buckets`" if buckets is None else "has no `buckets`"
            raise _wrong(f"the {change.kind} {change.family!r} {needs}")
        if any(bound >= other for bound, other in pairwise(bounds)):
            raise _wrong(f"buckets of {change.family!r} ascend, got {[*bounds]}")
        pairs = tuple(sorted((labels or {}).items()))
        metric = Metric(change._replace(labels=pairs, buckets=bounds))
        MetricFamily.send(metric.change)
        return metric


class Metric:
    """One number.

    Attributes:
        change: What each change of it has in common.
    """

    def __init__(self, change: Change) -> None:
        self.change = change

    def increment(self, value: float) -> None:
        """Add to it.

        Raises:
            TritonModelException: It is a histogram, or a counter and the value is below 0.
        """
        if self.change.kind == COUNTER and value < 0:
            raise _wrong(f"the counter {self.change.family!r} never falls")
        self._send("increment", value)

    def set(self, value: float) -> None:
        """Set it.

        Raises:
            TritonModelException: It is no gauge.
        """
        self._send("set", value)

    def observe(self, value: float) -> None:
        """Count a value in its bucket.

        Raises:
            TritonModelException: It is no histogram.
        """
        self._send("observe", value)

    def value(self) -> float:
        """Return it.

        Raises:
            TritonModelException: It is a histogram.
        """
        return self._send("value", 0.0)

    def _send(self, verb: str, value: float) -> float:
        change = self.change
        if verb not in _VERBS[change.kind]:
            has = ", ".join(_VERBS[change.kind])
            raise _wrong(f"the {change.kind} {change.family!r} has no {verb!r}, only {has}")
        return float(MetricFamily.send(change._replace(verb=verb, value=float(value))) or 0.0)


def _wrong(problem: str) -> Exception:
    # It needs numpy, and the server does not.
    from headrace_triton.python.tensors import TritonModelException

    return TritonModelException(problem)


# In the process of the server.


class _Kind(str):
    """A kind of metric that prometheus-client does not take for its own: it would append ``_total`` to the name."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


class _Number:
    """One number, or one histogram.

    Attributes:
        value: The number, or the sum of what was observed.
        counts: How many values fell into each bucket of a histogram, the last one without a bound.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.value, self._bounds = 0.0, bounds
        self.counts = [0] * (len(bounds) + 1)

    def change(self, verb: str, value: float) -> None:
        self.value = value if verb == "set" else self.value + value
        if verb == "observe":
            self.counts[bisect_left(self._bounds, value)] += 1

    def samples(self, name: str, kind: str) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield name, further labels and value of each sample."""
        if kind != HISTOGRAM:
            yield name, {}, self.value
            return
        bounds = [*map(str, self._bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(self.counts), strict=True):
            yield f"{name}_bucket", {"le": bound}, count
        yield f"{name}_count", {}, sum(self.counts)
        yield f"{name}_sum", {}, self.value


class _Families:
    """All numbers of models, as a collector of prometheus-client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[str, str]] = {}
        self._numbers: dict[str, dict[Any, _Number]] = {}

    def change(self, change: Change) -> float:
        """Change a number; return it.

        Raises:
            ValueError: Its family is of another kind.
        """
        with self._lock:
            if not self._kinds and find_spec("prometheus_client"):
                import_module("prometheus_client").REGISTRY.register(self)
            kind, _ = self._kinds.setdefault(change.family, (change.kind, change.text))
            if kind != change.kind:
                raise ValueError(f"the metrics {change.family!r} are a {kind}, not a {change.kind}")
            numbers = self._numbers.setdefault(change.family, {})
            if change.labels is None:
                return 0.0
            number = numbers.setdefault(change.labels, _Number(change.buckets))
            number.change(change.verb, change.value)
            return number.value

    def describe(self) -> list[Any]:
        """Return nothing: the families are not known before."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families."""
        from prometheus_client.metrics_core import Metric as Family

        with self._lock:
            samples = [
                (name, *self._kinds[name], labels, sample)
                for name, rows in self._numbers.items()
                for labels, number in rows.items()
                for sample in number.samples(name, self._kinds[name][0])
            ]
        families: dict[str, Any] = {}
        for name, kind, text, labels, (title, more, value) in samples:
            whole = kind == COUNTER and not name.endswith("_total")
            if name not in families:
                families[name] = Family(name if whole or kind != COUNTER else name[:-6], text, kind)
                families[name].type = _Kind(kind) if whole else kind
            families[name].add_sample(title, {**dict(labels), **more}, value)
        yield from families.values()


change: Final = _Families().change
"""Change a number in this process, and return it. ValueError: its family is of another kind."""
