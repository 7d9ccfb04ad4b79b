"""A program that uses Headrace, as type checkers see it; `test_typing` runs them on it.

Each ``ignore`` is an error that they must find: one that is not needed is an error itself.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pydantic
from typing_extensions import assert_type

import headrace
from headrace.futures import RequestFuture
from headrace.keys import Request  # noqa: TC001 - as a user writes it


class Scale(headrace.Backend):
    """A backend with options."""

    class Options(headrace.Options):
        """Its options."""

        positional = ("factor",)
        factor: float = pydantic.Field(2.0, description="The factor (no unit).")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the factor."""
        self.factor = options.factor
        assert_type(context.device, "str | None")

    def forward(self, batch: list[Request]) -> None:
        """Multiply."""
        for request in batch:
            request["result"] = request["data"] * self.factor


assert_type(headrace.register("Scale", Scale), type[Scale])


@headrace.register
class Plain:
    """A plain class."""

    def forward(self, batch: list[Request]) -> None:
        """Do nothing."""


@headrace.register("Increment")
def increment(data: int) -> int:
    """Add one."""
    return data + 1


@headrace.register("Order", batched=True)
def order(data: list[int]) -> list[int]:
    """Sort."""
    return sorted(data)


headrace.register("Three", 3)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
headrace.pip({})  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

assert_type(increment(1), int)
assert_type(order([2, 1]), list[int])
assert_type(Plain(), Plain)

with headrace.pipe({"backend": "Scale"}) as pipe:
    assert_type(pipe, headrace.Pipeline)
    assert_type(pipe({"data": 1}), dict[str, Any])
    assert_type(pipe([{"data": 1}], timeout=2.5, priority=1), list[dict[str, Any]])
    assert_type(pipe.submit({"data": 1}), RequestFuture)
    future: Future[dict[str, Any]] = pipe.submit({"data": 1})
    assert_type(future.result(), dict[str, Any])
    assert_type(pipe.submit({"data": 1}).result(), dict[str, Any])
    assert_type(pipe.submit([{"data": 1}])[0].result(timeout=1), dict[str, Any])
    assert_type(pipe.config, headrace.PipelineConfig)
    assert_type(pipe.ready, bool)
    assert_type(pipe.stats(), dict[str, Any])
    pipe({"data": 1}, timeout="soon")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def main() -> None:
    """Use it from a coroutine."""
    async with headrace.pipe("line.toml", allow_import=False) as pipe:
        assert_type(pipe, headrace.Pipeline)
        assert_type(await pipe.call_async({"data": 1}), dict[str, Any])
        assert_type(await pipe.call_async([{"data": 1}]), list[dict[str, Any]])


try:
    assert_type(headrace.explain({"backend": "Scale"}), dict[str, Any])
except headrace.errors.ConfigError as error:
    assert_type([problem.message for problem in error.problems], list[str])
except headrace.errors.RequestsFailed as error:
    assert_type(error.errors, "list[BaseException | None]")
