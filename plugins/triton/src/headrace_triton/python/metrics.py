"""Metrics of a ``model.py``: numbers in the process of the server, which shows them under ``/metrics``."""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["COUNTER", "GAUGE", "Change", "Metric", "MetricFamily", "change"]

COUNTER, GAUGE = "counter", "gauge"


class Change(NamedTuple):
    """What a model does with a number.

    Attributes:
        family: The name of its family.
        kind, text: The kind of the family, `COUNTER` or `GAUGE`, and what it is. The first text stays.
        labels: The labels of the number, by their names in order.
        value: What is added, or what the number is from now on. None: nothing changes.
        sets: Whether the number is ``value`` from now on.
    """

    family: str
    kind: str
    text: str
    labels: tuple[tuple[str, str], ...] | None
    value: float | None = None
    sets: bool = False


class MetricFamily:
    """Numbers of one name. All models that name it share it.

    Raises:
        TritonModelException: Another family of the name is of another kind.
    """

    send: Callable[[Change], Any] = lambda _: None

    def __init__(self, name: str, description: str, kind: str) -> None:
        self._change = Change(name, kind, description, None)
        self.send(self._change)

    def Metric(self, labels: Mapping[str, str] | None = None) -> Metric:  # noqa: N802 - models know it by this name
        """Return the number with these labels."""
        made = Metric(self._change._replace(labels=tuple(sorted((labels or {}).items()))))
        made.increment(0.0)
        return made


class Metric:
    """One number."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def increment(self, value: float) -> None:
        """Add to it.

        Raises:
            TritonModelException: It is a counter, and the value is below 0.
        """
        if self._change.kind == COUNTER and value < 0:
            raise _wrong(f"the counter {self._change.family!r} never falls")
        MetricFamily.send(self._change._replace(value=value))

    def set(self, value: float) -> None:
        """Set it.

        Raises:
            TritonModelException: It is a counter.
        """
        if self._change.kind == COUNTER:
            raise _wrong(f"the counter {self._change.family!r} is never set")
        MetricFamily.send(self._change._replace(value=value, sets=True))

    def value(self) -> float:
        """Return it."""
        return float(MetricFamily.send(self._change))


def _wrong(what: str) -> Exception:
    from headrace_triton.python.tensors import (
        TritonModelException,
    )  # it needs numpy, the server does not

    return TritonModelException(what)


# In the process of the server.


class _Kind(str):
    """A kind of metric that prometheus-client does not take for its own: it would append ``_total`` to the name."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


class _Families:
    """All numbers of models, as a collector of prometheus-client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[str, str]] = {}
        self._numbers: dict[str, dict[Any, float]] = {}

    def change(self, one: Change) -> float:
        """Change a number; return it.

        Raises:
            ValueError: Its family is of another kind.
        """
        with self._lock:
            if not self._kinds and find_spec("prometheus_client"):
                import_module("prometheus_client").REGISTRY.register(self)
            kind, _ = self._kinds.setdefault(one.family, (one.kind, one.text))
            if kind != one.kind:
                raise ValueError(f"the metrics {one.family!r} are a {kind}, not a {one.kind}")
            numbers = self._numbers.setdefault(one.family, {})
            if one.labels is not None and one.value is not None:
                before = 0.0 if one.sets else numbers.get(one.labels, 0.0)
                numbers[one.labels] = before + one.value
            return numbers.get(one.labels, 0.0)

    def describe(self) -> list[Any]:
        """Return nothing: the families are not known before."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families."""
        from prometheus_client.metrics_core import Metric as Family

        with self._lock:
            found = [(name, *self._kinds[name], {**rows}) for name, rows in self._numbers.items()]
        for name, kind, text, rows in found:
            family = Family(name, text, kind)
            family.type = _Kind(kind)
            for labels, value in rows.items():
                family.add_sample(name, dict(labels), value)
            yield family


change: Final = _Families().change
"""Change a number in this process, and return it. ValueError: its family is of another kind."""
