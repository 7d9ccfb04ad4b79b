"""A function as a backend: what it returns for ``data`` is ``result``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace.errors import ContractError, InputError

if TYPE_CHECKING:
    from headrace._checked import Outcomes
    from headrace.keys import Request


class FunctionBackend(Backend):
    """Call a function on ``data``.

    Attributes:
        function: From ``data`` to ``result``; where ``batched``, from a list to a list.
        batched: Whether it is called once per batch.
    """

    function: Callable[[Any], Any]
    batched: bool = False

    def forward(self, batch: list[Request]) -> Outcomes:
        """Call the function per item, so that what it raises fails its item alone, or per batch.

        Raises:
            ContractError: A function for batches gave another number of results.
        """
        outcomes: list[Exception | None] = [
            None if "data" in request else _no_data() for request in batch
        ]
        if self.batched:
            self._call_once([request for request in batch if "data" in request])
            return outcomes if any(outcomes) else None
        for place, request in enumerate(batch):
            if outcomes[place] is None:
                try:
                    request["result"] = self.function(request["data"])
                except Exception as error:  # noqa: BLE001 - any error is the outcome of its item
                    outcomes[place] = error
        return outcomes if any(outcomes) else None

    def _call_once(self, batch: list[Request]) -> None:
        if not batch:
            return
        results = _listed(self.function([request["data"] for request in batch]))
        if len(results) != len(batch):
            raise _wrong_results(f"{len(results)} results for {len(batch)} items")
        for request, result in zip(batch, results, strict=True):
            request["result"] = result


def _listed(results: Any) -> list[Any]:
    """Give a list, or the rows of an array, as a list."""
    if not isinstance(results, (str, bytes, bytearray, Mapping)):
        with contextlib.suppress(TypeError, LookupError):
            return [results[index] for index in range(len(results))]
    raise _wrong_results(f"a {type(results).__name__}")


def _no_data() -> InputError:
    what = "the request has no 'data'"
    return InputError(what, key="data", expected="what the function takes", got="nothing")


def _wrong_results(got: str) -> ContractError:
    return ContractError(
        f"the function returned {got}",
        hint="A function for batches takes a list of data and returns a list of as many results.",
    )


def is_async(function: Any) -> bool:
    """Tell whether calling a function only gives a coroutine or an asynchronous generator."""
    return any(
        check(one)
        for check in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        for one in (function, getattr(function, "__call__", None))  # noqa: B004 - of an object
    )


def of_function(function: Callable[[Any], Any], *, batched: bool) -> type[FunctionBackend]:
    """Make a backend class of a function, named and documented as it is."""
    named = getattr(function, "__name__", type(function).__name__)
    body = {
        "__doc__": inspect.getdoc(function),
        "__module__": getattr(function, "__module__", None) or "builtins",
        "__qualname__": getattr(function, "__qualname__", named),
        "function": staticmethod(function),
        "batched": batched,
    }
    return type(named, (FunctionBackend,), body)
