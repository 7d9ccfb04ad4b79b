"""A program that uses Headrace, as type checkers see it; `test_typing` runs them on it.

Each ``ignore`` is an error that they must find: one that is not needed is an error itself.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pydantic
from typing_extensions import assert_type

import headrace
import headrace_cv
import headrace_flow
import headrace_models
import headrace_observe
import headrace_ort
import headrace_process
import headrace_ray
import headrace_remote
import headrace_serve
import headrace_tensors
import headrace_text
import headrace_torch
import headrace_trt
import headrace_vision
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


headrace.register("Three", 3)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
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

# A package that imports its names when they are used has those alone.
headrace_cv.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_flow.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_models.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_observe.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_ort.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_process.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_ray.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_remote.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_serve.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_tensors.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_text.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_torch.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_trt.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
headrace_vision.no_name()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
