"""Identity, and Call, which calls a function that the configuration names."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from headrace._language.contract.backend import Backend, InitContext
from headrace._language.contract.options import Options as _Options
from headrace._language.plan.word import Use, Word
from headrace._language.registry.backends import FunctionBackend, mismatch_of, no_data
from headrace._language.registry.imports import HOW_TO_ALLOW, module_of
from headrace.errors import SetupError, among

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from headrace._language.building.elements import ElementBuilder
    from headrace._language.building.parts import BuildSite
    from headrace._language.plan.element import Element
    from headrace._language.registry.registry import Files
    from headrace._run.contract.checked import Located
    from headrace.keys import Request

__all__ = ["Call", "Identity"]


class Call(FunctionBackend, Word):
    """Call a function, a class or any other importable callable.

    ``Call(PIL.ImageOps:grayscale)`` gives ``grayscale(data)`` as ``result``. With ``batched=true``
    the function is given the list of all ``data`` of a batch and returns a list of as many results.
    An error fails its request alone, or, with ``batched=true``, the whole batch.

    The function must not change its arguments, and several instances may call it at the same time.
    Before anything is built, Headrace looks for its module, without importing it. If there is no
    such module, ``Call(ctc:decode)`` means the file ``ctc.py`` under ``import``. ``Call`` is
    refused if the configuration may not import code.

    Reads:
        data: Anything, the first argument of the function.
    Writes:
        result: The value of the function.
    Batch:
        1 or more. Items are independent unless ``batched``.

    Raises:
        InputError: ``data`` is missing.
        BackendError: The function raised. Its error is the cause.
        ContractError: A function for batches returned another number of results.
    Source:
        own
    Example:
        ``{"data": "fish &amp; chips"}`` gives ``"FISH & CHIPS"``::

            backend = "S[Call(html:unescape),Upper]"

        ``{"data": "fish and chips"}`` gives ``"fish."``::

            backend = "Call(textwrap:shorten)"
            kwargs = {width = 8, placeholder = "."}
    """

    class Options(_Options):
        """Options of Call.

        Attributes:
            function: What to call, as `package.module:name`.
            batched: Whether it is called once per batch, with a list (yes or no).
            kwargs: Further arguments by name: a table, or in an expression a text with a JSON
                object, as in `kwargs='{"cutoff": 2}'`.
        """

        positional = ("function",)

        function: str
        batched: bool = False
        kwargs: dict[str, Any] = Field({})

        @field_validator("function")
        @classmethod
        def _of_module(cls, value: str) -> str:
            module, _, name = value.partition(":")
            if not all(part.isidentifier() for path in (module, name) for part in path.split(".")):
                raise ValueError("a function is named as package.module:name")
            return value

        @field_validator("kwargs", mode="before")
        @classmethod
        def _of_json(cls, value: Any) -> Any:
            if not isinstance(value, str):
                return value
            try:
                return json.loads(value)
            except ValueError as error:
                raise ValueError(f"this is no JSON object: {error}") from None

    _files: Files = ()

    @classmethod
    def _check(cls, use: Use) -> None:
        """Check that the function can be imported, and may be; report it if not."""
        options: Any = use.element.options
        name = use.element.name
        function = options.function
        if (why := use.planning.refused) is not None:
            refusal = f"{name} imports {function!r}, and running its code is not allowed: {why}"
            use.add("import_refused", refusal, hint=HOW_TO_ALLOW)
        elif module_of(module := function.partition(":")[0], use.planning.files) is not None:
            return
        elif not use.scope.late and (missing := _missing_module(module)) is not None:
            message = f"{name} needs the module {missing!r}, which cannot be found"
            ways = f"Install what brings {missing!r}, or name {missing}.py under import."
            use.add("missing_dependency", message, hint=None if "." in missing else ways)

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        self._files = building.build.plan.files

    def init(self, options: Any, context: InitContext) -> None:
        """Import the function."""
        module, _, name = options.function.partition(":")
        try:
            function: Any = importlib.import_module(module_of(module, self._files) or module)
        except SystemExit as error:
            raise SetupError(f"importing {module!r} ended the program: {error}") from error
        for part in name.split("."):
            try:
                function = getattr(function, part)
            except AttributeError:
                hint = among(part, [public for public in dir(function) if public[:1] != "_"], "")
                message = f"{options.function!r}: {module} has no {name!r}"
                raise SetupError(message, hint=hint or None) from None
        if not callable(function):
            raise SetupError(f"{options.function!r} is a {type(function).__name__}, not callable")
        if mismatch := mismatch_of(function, options.kwargs):
            raise SetupError(f"{options.function!r} {mismatch}")
        self.batched, self.named = options.batched, f"It calls {options.function}."
        self.function = partial(function, **options.kwargs) if options.kwargs else function

    def _locate(self, error: Located) -> Located:
        """Say of an error in a call which function was called."""
        if self._state == "ready":
            error.hint = f"{error.hint} {self.named}" if error.hint else self.named
        return super()._locate(error)


# Looking for the module of a function, without importing it or a package that it stands in.


def _missing_module(module: str) -> str | None:
    """Return the first part of a dotted name that is no module; None when all are."""
    path: Any = None
    for name in accumulate(module.split("."), "{}.{}".format):
        if name in sys.modules:
            path = getattr(sys.modules[name], "__path__", None)
            continue
        # A path of None says that the name before the last dot is no package.
        spec = None if "." in name and path is None else _spec(name, path)
        if spec is None:
            return name
        path = spec.submodule_search_locations
    return None


def _spec(name: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        with suppress(ImportError, ValueError, AttributeError):  # finders may be the user's
            if (spec := finder.find_spec(name, path)) is not None:
                return spec
    return None


class Identity(Backend):
    """Return ``data`` as ``result``, the same object.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more. Items are independent.

    Raises:
        InputError: ``data`` is missing.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"abc"``::

            backend = "Identity"
    """

    rerun = True
    reads = ("data",)

    def forward(self, batch: list[Request]) -> None:
        """Set ``result`` to ``data`` in each request."""
        try:
            for request in batch:
                request["result"] = request["data"]
        except KeyError:
            raise no_data("anything") from None
