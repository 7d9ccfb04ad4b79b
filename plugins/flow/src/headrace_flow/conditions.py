"""Conditions that compose: when a batch is due, and when that may next change by itself.

The shortest way to a batch policy::

    import headrace
    from headrace_flow.conditions import ConditionPolicy, Count, Idle, Waited

    @headrace.register
    class Patient(ConditionPolicy):
        condition = Count(8) | Waited(ms=5) | Idle()

    pipe = headrace.pipe({"backend": "Detect", "max": 16, "batch_policy": "Patient"})
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.policies import Cut, InstanceView, Queue, Sized

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Condition",
    "ConditionPolicy",
    "Count",
    "Enough",
    "FreeInstances",
    "Idle",
    "Verdict",
    "Waited",
    "Weight",
    "When",
]


@dataclass(frozen=True)
class Verdict:
    """The answer of a condition for this moment.

    Attributes:
        due: Whether a batch is due.
        until: Until when the answer holds, at least, if no request arrives and no batch starts or ends: a
            time in seconds on the clock of ``now``. None: until one of these happens.
        reason: Why a batch is due, which ``stats()`` counts: see `headrace.policies.Cut`.
    """

    due: bool
    until: float | None = None
    reason: str = field(default="", compare=False)


class Condition:
    """When a batch is due: ``Count(8) | Waited(ms=5) & ~Idle()``.

    ``a | b`` is due when one of them is, ``a & b`` when both are, ``~a`` when ``a`` is not. A
    condition holds no state and may be shared. Your own condition defines `verdict`. `When` makes a
    condition of a function.
    """

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Tell whether a batch is due, and when that may change by itself.

        Args:
            queue: The waiting requests, at least one.
            instance: A free instance.
            now: The time, in seconds.
        """
        raise TypeError(f"{type(self).__name__} has no verdict")

    def __or__(self, other: Condition) -> Condition:
        return _Both(self, "|", other) if isinstance(other, Condition) else NotImplemented

    def __and__(self, other: Condition) -> Condition:
        return _Both(self, "&", other) if isinstance(other, Condition) else NotImplemented

    def __invert__(self) -> Condition:
        return _Not(self)

    def __bool__(self) -> bool:
        raise TypeError("conditions are combined with | & ~, not with or, and, not")

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={value!r}" for key, value in vars(self).items())
        return f"{type(self).__name__}({values})"


class _Both(Condition):
    """Two conditions, of which one alone may decide: one that is due in ``a | b``, not due in ``a & b``."""

    def __init__(self, left: Condition, sign: str, right: Condition) -> None:
        self._parts = (left, right)
        self._sign = sign

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Combine the verdicts of both conditions."""
        decides = self._sign == "|"
        verdicts = [part.verdict(queue, instance, now) for part in self._parts]
        deciding = [v for v in verdicts if bool(v.due) is decides]
        # If a condition decides, the answer holds until the last deciding one may change. If none does, the
        # answer holds until the first of the two may change.
        ends = [math.inf if v.until is None else v.until for v in deciding or verdicts]
        until = max(ends) if deciding else min(ends)
        reason = next((v.reason for v in verdicts if v.due and v.reason), "")
        return Verdict(bool(deciding) is decides, None if until == math.inf else until, reason)

    def __repr__(self) -> str:
        left, right = self._parts
        return f"({left!r} {self._sign} {right!r})"


class _Not(Condition):
    """Due when another condition is not."""

    def __init__(self, inner: Condition) -> None:
        self._inner = inner

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Turn the verdict of the other condition round."""
        verdict = self._inner.verdict(queue, instance, now)
        return Verdict(not verdict.due, verdict.until)

    def __repr__(self) -> str:
        return f"~{self._inner!r}"


class Count(Condition):
    """At least ``n`` requests wait: ``Count(8)``.

    Args:
        n: A number of requests, at least 1.
    """

    def __init__(self, n: int) -> None:
        self.n: int = _whole(n, "n")

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Count the requests."""
        return Verdict(len(queue) >= self.n, reason="weight")


class Weight(Condition):
    """The requests that wait weigh at least ``weight`` together: ``Weight(64)``.

    Args:
        weight: A sum of ``request_size``, at least 1.
    """

    def __init__(self, weight: int) -> None:
        self.weight: int = _whole(weight, "weight")

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Compare the waiting weight."""
        return Verdict(queue.weight >= self.weight, reason="weight")


class Enough(Condition):
    """The waiting weight reaches the ``min`` of the instance: ``Idle() & Enough() | Waited(ms=5)``."""

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Compare the waiting weight with the ``min`` of the instance."""
        return Verdict(queue.weight >= instance.min, reason="weight")


class Waited(Condition):
    """The oldest request has waited ``ms`` milliseconds: ``Waited(ms=5)``.

    Args:
        ms: Milliseconds since its arrival at the node, at least 0.
    """

    def __init__(self, ms: float) -> None:
        if isinstance(ms, bool) or not isinstance(ms, (int, float)) or not 0 <= ms < math.inf:
            raise ValueError(f"ms is a number of milliseconds of at least 0, got {ms!r}")
        self.ms = ms

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Compare the arrival of the oldest request with the time."""
        over_at = getattr(queue, "oldest", queue[0].arrival) + self.ms / 1000
        return Verdict(True, reason="timer") if now >= over_at else Verdict(False, over_at)


class FreeInstances(Condition):
    """At least ``n`` instances of the node are free: ``FreeInstances(2) | Waited(ms=5)``.

    Args:
        n: A number of instances, at least 1. The instance that is offered counts.
    """

    def __init__(self, n: int) -> None:
        self.n: int = _whole(n, "n")

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Count the free instances."""
        return Verdict(getattr(queue, "free", 1) >= self.n, reason="idle")


class Idle(Condition):
    """No instance of the node runs a batch: ``Idle() | Count(8)``."""

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Ask whether an instance runs a batch."""
        return Verdict(not getattr(queue, "running", 0), reason="idle")


class When(Condition):
    """A function says so: ``When(lambda queue, instance, now: queue[0].priority > 0)``.

    Args:
        function: Called with the arguments of `Condition.verdict`. It says whether a batch is due: True or
            False, which hold until a request arrives or a batch starts or ends, or a `Verdict`, where time
            alone may change the answer. It must be pure and quick.
    """

    def __init__(self, function: Callable[[Any, Any, float], bool | Verdict]) -> None:
        if not callable(function):
            raise TypeError(f"When takes a function, got {function!r}")
        self.function = function

    def verdict(self, queue: Queue, instance: InstanceView, now: float) -> Verdict:
        """Ask the function."""
        value = self.function(queue, instance, now)
        return value if isinstance(value, Verdict) else Verdict(bool(value))


def _whole(value: int, name: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is an int of at least 1, got {value!r}")
    return value


class ConditionPolicy(Sized):
    """A batch policy that forms a batch when its condition is due.

    A subclass states the condition, or makes it of its options::

        class Patient(ConditionPolicy):
            condition = Count(8) | Waited(ms=5)

        class Tunable(ConditionPolicy):
            class Options(ConditionPolicy.Options):
                wait_ms: float = Field(5, ge=0)

            def make_condition(self, options):
                return Idle() | Waited(ms=options.wait_ms)

    The batch is the longest head of the queue that fits into the instance, within ``batch_sizes``
    and ``pad`` of the node, whatever the condition counts. A batch also runs when no other request
    fits into it, and when no more requests can come, because the queue is full or the pipeline
    closes. Otherwise a condition without `Waited` keeps requests until more come, until their
    deadline, or until close. A batch due below the instance's ``min`` is filled up or refused,
    depending on ``pad``: see `Enough`.

    Attributes:
        condition: When a batch is due.
        Options: ``batch_sizes`` and ``pad`` of the node. Options of a subclass get these as well.
    """

    condition: ClassVar[Condition | None] = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.Options
        if not issubclass(own, Sized.Options):
            body = {"__doc__": own.__doc__, "__module__": own.__module__}
            options: Any = type(own.__name__, (own, Sized.Options), body)
            cls.Options = options  # type: ignore[misc]

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        condition = self.make_condition(self.options)
        if not isinstance(condition, Condition):
            raise TypeError(f"{type(self).__name__}.condition is {condition!r} and no Condition")
        self._condition = condition

    def make_condition(self, options: Any) -> Condition | None:
        """Return the condition. Called once, when the policy is made. The default: `condition`."""
        return self.condition

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Form a batch. See `BatchPolicy.cut`."""
        take, weight, full = self.head(queue, instance)
        if take == 0:
            return Cut(0)
        reason = ""
        if not full and getattr(queue, "open", True):
            verdict = self._condition.verdict(queue, instance, now)
            if not verdict.due:
                return Cut(0, verdict.until)
            reason = verdict.reason
        return Cut(self.shorten(queue, take, weight) or take, reason=reason)
