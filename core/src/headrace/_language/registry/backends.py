"""Making a backend of a class or a function, with errors that say why it cannot be one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping
from types import GeneratorType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headrace._language.contract.backend import Backend
from headrace._language.contract.groups import Bracket, Place
from headrace._language.contract.options import Options
from headrace._run.contract.checked import PENDING, Outcomes, range_problem
from headrace._run.steps.tracebacks import none_if_all_ok
from headrace._texts import repr_of
from headrace.errors import BackendError, ContractError, InputError, PluginError

if TYPE_CHECKING:
    from headrace._language.contract.backend import InitContext
    from headrace.keys import Request

_made: dict[Any, type[Backend]] = {}
"""By plain class, or function of an entry point, the backend that was made of it."""

_right: WeakSet[type[Any]] = WeakSet()
"""Backends that can run, so that a large configuration does not look at their signatures again."""


def as_backend(cls: Any) -> type[Backend]:
    """Return ``cls`` if it is a Backend, else a Backend made of a plain class with ``forward``."""
    if not isinstance(cls, type):
        if inspect.isroutine(cls):  # an entry point may name a function
            return _made.get(cls) or _made.setdefault(cls, of_function(cls, batched=False))
        hint = "A backend is a class with forward(self, batch), or a function of data."
        if hasattr(cls, "forward"):
            hint = f"Register the class {type(cls).__name__}, not an object with forward."
        raise PluginError(f"an object of {type(cls).__name__} is no backend", hint=hint)
    if cls in _right:
        return cls
    if cls in _made:
        return _made[cls]
    if reason := _cannot_run(cls):
        message = f"the class {cls.__module__}.{cls.__qualname__} is no backend: {reason}"
        raise PluginError(message, hint="See headrace.Backend for what a class may say.")
    if issubclass(cls, Backend):
        _right.add(cls)
        return cls
    body = {"__call__": Backend.__call__, "__doc__": cls.__doc__, "__module__": cls.__module__}
    try:
        kind = type(cls.__name__, (cls, Backend), {**body, "_made_of": cls})
    except TypeError as error:
        raise PluginError(f"{cls!r} is no backend: {error}") from error
    return _made.setdefault(cls, kind)


def source_of(cls: type[Backend]) -> Any:
    """Return the function or plain class of which a backend was made, else the backend."""
    return vars(cls).get("_made_of", cls)


def _cannot_run(cls: type[Any]) -> str | None:
    """Say why a class can run no batch. The conformance kit judges all else."""
    if inspect.isabstract(cls):
        return f"it is abstract: write {', '.join(sorted(cls.__abstractmethods__))}"
    kinds = {type(getattr(cls, part, getattr(Backend, part))) for part in ("bracket", "place")}
    if kinds != {Bracket, Place} or getattr(cls, "place", Backend.place).not_callable is not None:
        return None if kinds == {Bracket, Place} else "bracket and place are of headrace.words"
    forward = getattr(cls, "forward", None)
    if forward in (Backend.forward, None):
        policy = {"cut": "BatchPolicy", "choose": "DispatchPolicy"}
        base = next((policy[name] for name in policy if hasattr(cls, name)), None)
        derives = f", and a policy derives from headrace.policies.{base}" if base else ""
        return f"it has no method forward(self, batch){derives}"
    fault = None if callable(forward) else f"is no method, it is {repr_of(forward)}"
    if fault is None and _is_asynchronous(forward):
        fault = "is asynchronous, and a backend runs in a thread: write def forward"
    elif inspect.isgeneratorfunction(forward):
        fault = "has a yield: give parts by context.request.emit, and write no yield in forward"
    if fault is not None:
        return f"forward {fault}"
    for method, takes in (("forward", "self, batch"), ("init", "self, options, context")):
        function = inspect.getattr_static(cls, method, None)  # not bound to the class
        if inspect.isfunction(function) and _mismatch(function, *takes.split(", ")):
            return f"{method} takes other arguments: write def {method}({takes})"
    options = getattr(cls, "Options", Options)
    if isinstance(options, type) and issubclass(options, Options):
        return range_problem(getattr(cls, "min", 1), getattr(cls, "max", None))
    return "its Options is no subclass of headrace.Options"


def _is_asynchronous(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _mismatch(function: Any, *args: Any, **named: Any) -> str | None:
    """Say why a function cannot be called so. None where it can, or its signature is unknown."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **named)
    except (TypeError, ValueError) as error:  # a ValueError says that the signature is not known
        return str(error) if isinstance(error, TypeError) else None
    return None


# Backends that call a function.


class FunctionBackend(Backend):
    """Call a function on ``data``.

    Attributes:
        function: Makes ``result`` of ``data``. Where ``batched``, a list of a list.
        batched: Whether the function is called once per batch.
    """

    function: Callable[[Any], Any]
    batched: bool = False
    _alone = "Register the function without batched, so that it is called for one at a time."

    def init(self, options: Any, context: InitContext) -> None:
        """Keep the context, through which a generator gives its parts."""
        self.context = context

    def forward(self, batch: list[Request]) -> Outcomes:
        """Call the function once per item, whose error fails that item alone, or once per batch.

        Raises:
            ContractError: A function for batches gave another number of results, or a function gave
            PENDING.
        """
        outcomes: list[Exception | None] = [None if "data" in item else no_data() for item in batch]
        if self.batched:
            self._call_once([request for request in batch if "data" in request])
            return none_if_all_ok(outcomes)
        for place, request in enumerate(batch):
            if outcomes[place] is None:
                try:
                    result = self.function(request["data"])
                    if type(result) is GeneratorType:
                        result = self._exhaust(request, result)
                    request["result"] = _answer(result)
                except Exception as error:  # noqa: BLE001 - any error is the outcome of its item
                    outcomes[place] = error
        return none_if_all_ok(outcomes)

    def _exhaust(self, request: Request, parts: Generator[Any, None, Any]) -> Any:
        """Give what a generator yields as parts of the answer, and return what it returns."""
        handle = self.context.request.keep(request)
        try:
            while not self.context.request.unwanted(handle):
                self.context.request.emit(handle, next(parts), waits=True)
        except StopIteration as end:
            return end.value
        parts.close()
        raise BackendError("nobody waits for the answer any more")

    def _call_once(self, batch: list[Request]) -> None:
        if not batch:
            return
        results, rows = self.function([request["data"] for request in batch]), None
        if not isinstance(results, (str, bytes, bytearray, Mapping)):
            with contextlib.suppress(TypeError, LookupError):  # also the rows of an array
                rows = [results[index] for index in range(len(results))]
        if rows is None or len(rows) != len(batch):
            got = f"a {type(results).__name__}"
            got = got if rows is None else f"{len(rows)} results for {len(batch)} items"
            hint = (
                "A function for batches takes a list of data and returns a list of as many results."
            )
            raise ContractError(f"the function returned {got}", hint=hint)
        for request, result in zip(batch, map(_answer, rows), strict=True):
            request["result"] = result


def _answer(result: Any) -> Any:
    """Return what a function has given. PENDING is an outcome of `Backend.forward`."""
    if result is PENDING:
        hint = "A class with forward(batch) and context.request.keep may answer later."
        raise ContractError("the function returned PENDING", hint=hint)
    return result


def no_data(expected: str = "what the function takes") -> InputError:
    """Make the error of a request without ``data``."""
    return InputError("the request has no 'data'", key="data", expected=expected, got="nothing")


def mismatch_of(function: Any, further: Mapping[str, Any]) -> str | None:
    """Say why a function cannot be called with data and further arguments by name, if so."""
    called = (function, getattr(function, "__call__", None))  # noqa: B004 - of an object
    if any(map(_is_asynchronous, called)):
        return "is asynchronous, and a backend is not awaited"
    mismatch = _mismatch(function, None, **further)
    return mismatch and f"takes other arguments than it is given: {mismatch}"


def of_function(function: Callable[[Any], Any], *, batched: bool) -> type[Backend]:
    """Make a backend class of a function, named and documented as it is."""
    if not callable(function) or isinstance(function, Backend):
        return as_backend(function)  # it raises the error
    named = getattr(function, "__name__", type(function).__name__)
    if fault := mismatch_of(function, {}):
        raise PluginError(f"the function {named!r} {fault}", hint="It is called as function(data).")
    if batched and inspect.isgeneratorfunction(function):
        message = f"the function {named!r} is a generator, but it is registered as batched"
        raise PluginError(message, hint="Register it without batched, or return a list.")
    body = {
        "__doc__": inspect.getdoc(function),
        "__module__": getattr(function, "__module__", None) or "builtins",
        "__qualname__": getattr(function, "__qualname__", named),
        "function": staticmethod(function),
        "batched": batched,
        "reads": ("data",),
        "_made_of": function,
    }
    return type(named, (FunctionBackend,), body)
