"""Call: a function named in the configuration."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from headrace._function import FunctionBackend, is_async
from headrace._options import Options as _Options
from headrace.errors import SetupError

if TYPE_CHECKING:
    from headrace._context import InitContext

__all__ = ["Call"]


class Call(FunctionBackend):
    """Call a function, a class or anything else that can be imported and called.

    ``Call(PIL.ImageOps:grayscale)`` gives ``grayscale(data)`` as ``result``. With ``batched=true`` the
    function is given the list of all ``data`` of a batch and returns a list of as many results. What
    it raises fails its request alone; where ``batched``, the whole batch.

    The function must not change what it is given, and several instances call it at a time. Before
    anything is built its module is looked for, without being imported, and the name in it where the
    source tells. Where a configuration may not import code, ``Call`` is refused.

    Reads:
        data: Anything that the function takes as its first argument.
    Writes:
        result: What the function returns.
    Batch:
        1 or more; items are independent unless ``batched``.

    Raises:
        InputError: ``data`` is missing.
        BackendError: The function raised; its error is the cause.
        ContractError: A function for batches returned another number of results.
    Source:
        own
    """

    class Options(_Options):
        """Options of Call."""

        positional = ("function",)

        function: str = Field(
            description="What to call, as `package.module:name`.",
        )
        batched: bool = Field(
            False, description="Whether it is called once per batch, with a list (yes or no)."
        )
        kwargs: dict[str, Any] = Field(
            {},
            description="Further arguments by name: a table, or in an expression a text with a JSON "
            "object, as in `kwargs='{\"cutoff\": 2}'`.",
        )

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

    def init(self, options: Any, context: InitContext) -> None:
        """Import the function."""
        module, _, name = options.function.partition(":")
        try:
            function: Any = importlib.import_module(module)
        except SystemExit as error:
            raise SetupError(f"importing {module!r} ended the program: {error}") from error
        for part in name.split("."):
            try:
                function = getattr(function, part)
            except AttributeError:
                raise SetupError(f"{options.function!r}: {module} has no {name!r}") from None
        if not callable(function):
            raise SetupError(f"{options.function!r} is a {type(function).__name__}, not callable")
        if is_async(function):
            raise SetupError(f"{options.function!r} is asynchronous, and a backend is not awaited")
        kwargs = options.kwargs
        self.batched = options.batched
        self.function = (lambda data: function(data, **kwargs)) if kwargs else function
