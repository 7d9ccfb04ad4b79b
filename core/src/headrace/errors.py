"""Every error of Headrace, as a tree by who must act.

::

    HeadraceError
    ├── ConfigError (ValueError)             the author of the configuration or expression
    ├── PluginError                          the author or installer of a plugin
    │   ├── PluginLoadError                    it is installed and cannot be imported
    │   └── MissingDependencyError (ImportError)  a library or a plugin is not installed
    ├── SetupError                           a backend could not be built: model, device, memory
    ├── RequestError                         one request failed; the pipeline lives on
    │   ├── InputError (ValueError)            the sender: this request is wrong
    │   ├── BackendError                       a backend raised; the original is ``__cause__``
    │   │   ├── ContractError                    a backend broke the backend contract
    │   │   ├── InstanceLostError                an instance can serve no more
    │   │   ├── NoMemoryError                    host or device have no memory left for a batch
    │   │   └── NoResultError                    a backend wrote no ``result``
    │   ├── BatchRangeError                    the weight fits no instance
    │   ├── LimitError                         an answer or a loop went past its limit
    │   ├── OverloadedError                    the queue is full
    │   └── DeadlineExceededError (TimeoutError)
    ├── RequestsFailed                       some items of a list failed
    └── ClosedError (RuntimeError)           the pipeline was closed

Every class has a stable ``code``, by which ``stats()`` counts. The text is made in the class from
its attributes: what happened, where, and what to do. Every error can be pickled. A cancelled
request raises ``concurrent.futures.CancelledError`` or ``asyncio.CancelledError``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace._pickling import portable, rebuild, twin_of
from headrace._problem import Problem
from headrace._texts import error_text, nearest, shorten

__all__ = [
    "BackendError",
    "BatchRangeError",
    "ClosedError",
    "ConfigError",
    "ContractError",
    "DeadlineExceededError",
    "HeadraceError",
    "InputError",
    "InstanceLostError",
    "LimitError",
    "MissingDependencyError",
    "NoMemoryError",
    "NoResultError",
    "OverloadedError",
    "PluginError",
    "PluginLoadError",
    "Problem",
    "RequestError",
    "RequestsFailed",
    "SetupError",
    "among",
    "code_of",
    "is_out_of_memory",
    "nearest",
]


class HeadraceError(Exception):
    """Root of all errors that Headrace raises on purpose."""

    code: ClassVar[str] = "error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle class, args and attributes.

        A value that cannot be pickled is replaced by its text.

        A class that is found by no name, since a function has made it, is replaced by its base. Its
        code stays.
        """
        state = {key: portable(value) for key, value in self.__dict__.items()}
        cls = next(base for base in type(self).__mro__ if portable(base) is base)
        if cls is not type(self):
            state["code"] = code_of(self)
        if self.__cause__ is not None:
            state["__cause__"] = portable(self.__cause__)
        return rebuild, (cls, tuple(portable(arg) for arg in self.args), state)

    __copy__ = twin_of

    def __bool__(self) -> bool:
        return True  # a subclass with a __len__ must not count as no error in `if error`

    def __str__(self) -> str:
        return " ".join(str(arg) for arg in self.args)

    def __repr__(self) -> str:
        return super().__repr__() if self.args else f"{type(self).__name__}({str(self)!r})"


@dataclass(eq=False, repr=False)
class _ExplainedError(HeadraceError):
    """Base of the errors that say what went wrong, where, and what to do."""

    _places: ClassVar[tuple[str, ...]] = ()  # attributes that name a place; None where unknown

    what: str = ""
    hint: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__init__(self.what)

    def __str__(self) -> str:
        where = ((kind, getattr(self, kind)) for kind in self._places)
        place = ", ".join(f"{kind} {value!r}" for kind, value in where if value is not None)
        first, *more = self._what().split("\n", 1)  # of an error inside, with lines of its own
        text = "\n".join([f"{first} [{place}]" if place else first, *more])
        return f"{text}\n  {self.hint}" if self.hint else text

    def _what(self) -> str:
        return self.what or type(self).__name__


class ConfigError(HeadraceError, ValueError):
    """A configuration or an expression is wrong. Nothing was built.

    Attributes:
        problems: All problems, each with its place.
    """

    code = "config"

    def __init__(self, problems: Sequence[Problem] | Problem | str = ()) -> None:
        if isinstance(problems, str):
            problems = Problem("config", problems)
        several = [problems] if isinstance(problems, Problem) else problems
        self.problems: tuple[Problem, ...] = tuple(several)
        super().__init__()

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0].render()
        shown = "\n".join(f"{i}. {p.render()}" for i, p in enumerate(self.problems, 1))
        return f"{len(self.problems)} problems in the configuration\n{shown}"


@dataclass(eq=False, repr=False)
class PluginError(_ExplainedError):
    """A plugin cannot be used in the state in which it is installed.

    Attributes:
        what: What is wrong.
        distribution: The distribution that brings the plugin, or None.
        hint: What to do, or None.
    """

    code = "plugin"
    _places: ClassVar[tuple[str, ...]] = ("distribution",)

    distribution: str | None = field(default=None, kw_only=True)


class PluginLoadError(PluginError):
    """The module of a plugin cannot be imported; the reason is ``__cause__``."""

    code = "plugin_load"


@dataclass(eq=False, repr=False, kw_only=True)
class _PlacedError(_ExplainedError):
    """Base of the errors that name the node, backend and instance that failed."""

    _places: ClassVar[tuple[str, ...]] = ("node", "backend", "instance")

    node: str | None = None
    backend: str | None = None
    instance: int | None = None


@dataclass(eq=False, repr=False)
class MissingDependencyError(PluginError, _PlacedError, ImportError):
    """A library that a backend needs is not installed. ``hint`` has the install command.

    Attributes:
        what: What is missing.
        distribution: The distribution that brings the plugin, or None.
        node, backend, instance: Where it was needed, each None when unknown.
        hint: What to do, or None.
    """

    code = "missing_dependency"
    _places = (*PluginError._places, *_PlacedError._places)


class SetupError(_PlacedError):
    """A backend could not be initialised. The original error is ``__cause__``.

    Attributes:
        what: What went wrong.
        node, backend, instance: Where, each None when unknown.
        hint: What to do, or None.
    """

    code = "setup"


@dataclass(eq=False, repr=False, kw_only=True)
class RequestError(_PlacedError):
    """One request failed. The pipeline and the other requests go on.

    Attributes:
        what: What went wrong.
        node, backend, instance: Where, each None when unknown.
        hint: What to do, or None.
        abandoned: True when a backend still ran on the request as its caller was freed: that
            dict must not be used again.
    """

    code = "request"

    abandoned: bool = False

    def copy(self) -> RequestError:
        """Return a new error of the same class and content, so that no two requests share one."""
        return twin_of(self)


@dataclass(eq=False, repr=False, kw_only=True)
class InputError(RequestError, ValueError):
    """This request is wrong: a key is missing or a value has the wrong type, shape or content.

    Backends raise it, or return it for one item. Besides those of `RequestError`:

    Attributes:
        key: The key of the request that is wrong, or None.
        expected: What the key should hold, in words, or None.
        got: What it holds, in words, or None.
    """

    code = "input"
    _places = (*RequestError._places, "key")

    key: str | None = None
    expected: str | None = None
    got: str | None = None

    def __str__(self) -> str:
        return shorten(super().__str__())  # the sender's keys and values are of any length

    def _what(self) -> str:
        message = self.what or "the request is wrong"
        if self.expected is not None:
            message += f": expected {self.expected}"
        if self.got is not None:
            message += f"{',' if self.expected is not None else ':'} got {self.got}"
        return message


class BackendError(RequestError):
    """A backend raised; the original error is ``__cause__``."""

    code = "backend"


class ContractError(BackendError):
    """A backend broke the backend contract, or a pipeline was called in a way that must hang."""

    code = "contract"


class InstanceLostError(BackendError):
    """The instance can serve no more (its CUDA context is gone): it gets no further batch.

    A backend raises it in ``forward`` or at the end of a batch. Only another pipeline brings a new
    instance.
    """

    code = "instance_lost"


class NoMemoryError(BackendError):
    """The host or the device had no memory left for the batch.

    The instance takes further batches.
    """

    code = "memory"


class NoResultError(BackendError):
    """A backend ended without an error and without a ``result`` for this request."""

    code = "no_result"


@dataclass(eq=False, repr=False, kw_only=True)
class BatchRangeError(RequestError):
    """The weight of a request or of a batch is outside what any instance takes.

    Attributes:
        weight: The weight that was asked for. 0 when unknown.
        min, max: The range that is allowed. ``max`` None means unbounded.
    """

    code = "batch_range"

    weight: int = 0
    min: int = 1
    max: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class LimitError(RequestError):
    """A request went on past a limit.

    The parts of its answer that may wait, or the rounds of a loop.

    Attributes:
        limit: The limit that was reached. 0 when unknown.
    """

    code = "limit"

    limit: int = 0


@dataclass(eq=False, repr=False, kw_only=True)
class OverloadedError(RequestError):
    """The queue is full and its rule is to refuse.

    Attributes:
        queue_size: How many requests may wait. 0 when unknown.
        waiting: How many requests were waiting.
    """

    code = "overloaded"

    queue_size: int = 0
    waiting: int = 0


class DeadlineExceededError(RequestError, TimeoutError):
    """The time that the call or the node allows is over."""

    code = "deadline"


class RequestsFailed(HeadraceError):  # noqa: N818 - several requests, each with its own error
    """Some items of a list failed. The others have their results.

    Attributes:
        errors: One error, or None for success, per item of the list, in its order.
    """

    code = "requests_failed"

    def __init__(self, errors: Sequence[BaseException | None] = ()) -> None:
        self.errors: list[BaseException | None] = list(errors)
        super().__init__()

    def __str__(self) -> str:
        failed = [(i, e) for i, e in enumerate(self.errors) if e is not None]
        text = f"{len(failed)} of {len(self.errors)} requests failed"
        if failed:
            text += f"; the first is item {failed[0][0]}: {error_text(failed[0][1])}"
        return text


class ClosedError(HeadraceError, RuntimeError):
    """The pipeline is closed, is closing, or belongs to the parent of a forked process.

    Attributes:
        abandoned: True when a backend still ran on the request as its caller was freed.
        begun: Whether a backend had begun on the request. None where the error is about no request.
    """

    code = "closed"
    begun: bool | None = None

    # True for a copy that backends must pass on without wrapping it: see `_passing`.
    _passes = False

    def __init__(self, what: str = "the pipeline is closed", *, abandoned: bool = False) -> None:
        self.abandoned = abandoned
        super().__init__(what)

    def _passing(self, *, passes: bool = True) -> ClosedError:
        twin = ClosedError(self.args[0], abandoned=self.abandoned)
        twin.begun, twin._passes = self.begun, passes
        return twin


def code_of(error: BaseException) -> str:
    """Return the stable code of any error, as ``stats()`` counts it; it never raises."""
    if isinstance(error, HeadraceError):
        try:
            return str(error.code)
        except Exception:  # noqa: BLE001 - a subclass may have a property that raises
            return "backend"
    if type(error).__name__ == "CancelledError":
        return "cancelled"
    return "interrupt" if not isinstance(error, Exception) else "backend"


_NO_MEMORY = ("out of memory", "outofmemory", "allocate memory", "enough memory", "bad_alloc")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or a cause of it, says that host or device have no memory left.

    The text counts of a RuntimeError, as torch, JAX and CUDA raise it, and of errors of ONNX
    Runtime. Other texts may be a sender's.
    """
    for _ in range(5):  # causes may form a circle
        kind, text = type(error), error_text(error).lower()
        tells = issubclass(kind, RuntimeError) or str(kind.__module__).startswith("onnxruntime")
        says_so = tells and any(words in text for words in _NO_MEMORY)
        if says_so or issubclass(kind, (MemoryError, NoMemoryError)):
            return True
        error = None if error is None else object.__getattribute__(error, "__cause__")
    return False


def among(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Return the hint for a name that is not among the known names.

    The nearest one, else ``otherwise``, by default all of them.
    """
    every = f"There are: {', '.join(known) or 'none'}." if otherwise is None else otherwise
    return f"Did you mean {suggestion!r}?" if (suggestion := nearest(name, known)) else every
