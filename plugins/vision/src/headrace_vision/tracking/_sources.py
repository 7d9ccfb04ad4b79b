"""State that each source has for itself, and the order of its frames."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.errors import InputError, SetupError
from headrace_vision.models._each import Each

if TYPE_CHECKING:
    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["MOST_SOURCES", "Alone", "PerSource"]

State = TypeVar("State")


MOST_SOURCES = 1024
"""Most sources with a state of their own, against a memory that grows with each new name."""


class Alone(Each):
    """A backend with state by source, of which a node has one instance: each of several would see only some frames."""

    @classmethod
    def most_instances(cls, options: Any) -> int | None:
        """Return 1, so that a node with more is refused before anything is built."""
        return 1

    def init(self, options: Any, context: InitContext) -> None:
        """Refuse to be one of several instances, each in a process of its own, as nobody refuses these before.

        Raises:
            SetupError: ``instance_num`` is above 1.
        """
        if context.instance_num > (self.most_instances(options) or context.instance_num):
            raise SetupError(
                f"{type(self).__name__} keeps state by source, and {context.instance_num} instances would share its frames",
                hint="Put it into a node of its own with instance_num = 1, or into ordered of a VideoRunner.",
            )
        super().init(options, context)


class PerSource(Generic[State]):
    """One state per source, made when the source is first seen. Checks that frames come in order.

    Beyond `MOST_SOURCES` the one that was used least recently is forgotten.

    Args:
        make: Makes a state.
    """

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self._states: OrderedDict[str, tuple[State, Any, Any]] = OrderedDict()

    def next(self, request: Request) -> tuple[State, float | None]:
        """Return the state of the source of a request, and the time of its frame in seconds, or None.

        Args:
            request: ``context`` has ``source``, ``frame`` and ``timestamp``, each optional.

        Raises:
            InputError: The frame is not later than the one before, or ``context`` is no mapping.
        """
        context = request.get("context") or {}
        if not isinstance(context, Mapping):
            got = type(context).__name__
            raise InputError("this is no context", key="context", expected="a mapping", got=got)
        source = str(context.get("source", ""))
        frame, timestamp = context.get("frame"), context.get("timestamp")
        for name, value in (("frame", frame), ("timestamp", timestamp)):
            if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
                want, got = f"a number as {name}", repr(value)
                raise InputError("this is no context", key="context", expected=want, got=got)
        known = self._states.pop(source, None)
        state, last_frame, last_time = known or (self._make(), None, None)
        try:
            _check_later(source, "frame", frame, last_frame)
            _check_later(source, "timestamp", timestamp, last_time)
        except InputError:
            if known is not None:
                self._states[source] = known
            raise
        # One without a time lets no time pass.
        self._states[source] = (state, frame, last_time if timestamp is None else timestamp)
        while len(self._states) > MOST_SOURCES:
            self._states.popitem(last=False)
        return state, timestamp


def _check_later(source: str, name: str, value: Any, last: Any) -> None:
    if value is not None and last is not None and value <= last:
        text = f"the frames of source {source!r} are out of order"
        expected = f"a {name} after {last}"
        hint = "Put this word into ordered of a VideoRunner, or behind nodes with instance_num = 1."
        raise InputError(text, key="context", expected=expected, got=str(value), hint=hint)
