"""How a new model proves itself before it takes the place of the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.errors import ConfigError, Problem
from headrace_models.calling import ports_of
from headrace_models.exchange.judge import read_judge

if TYPE_CHECKING:
    from headrace import Pipeline

__all__ = ["Exchange"]


_Tolerance = Annotated[float, Field(ge=0)]


class Exchange(BaseModel):
    """How a new model proves itself before it takes the place of the old one.

    Attributes:
        share: The part of the requests that both run, above 0 and at most 1.
        requests: After so many requests that the old model answers there is a verdict. A failure comes sooner where more than
            ``errors`` of so many have failed.
        at_most_s: After so many seconds the old one stays, if there is no verdict yet.
        compare: ``shadow``: the client gets the old answer, and does not wait for the new one. ``canary``: it waits for both, and
            gets the new answer, or the old one where the new model fails.
        per_client: From three clients on, each has at most this part of ``requests``: further requests of it are not sampled.
            Those with the same ``context["client_digest"]``, and all without, are of one client.
        errors: The new model may fail this part of the requests that the old one answers, or refuses with `InputError`.
        slower: Its p50 and p99, of the same requests, may be so many times those of the old one.
        differ: This part of the rows may differ.
        rtol, atol: A number with a fraction differs if ``abs(new - old) > atol + rtol * abs(old)``. ``rtol`` may be a table by
            output. All other values differ unless they are equal.
        verdict: A function, or its ``"module:function"``. It gets the old and the new answer of a request, and returns whether
            they agree, or a distance, which is too great above 1. It takes the place of ``rtol`` and ``atol``.
        keep_inputs: Whether the inputs of the worst answers are kept beside them.

    Raises:
        ValidationError: A value is out of range. It is a ValueError.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    share: float = Field(0.05, gt=0, le=1)
    requests: int = Field(2000, ge=1)
    at_most_s: float = Field(3600.0, gt=0)
    compare: Literal["shadow", "canary"] = "shadow"
    per_client: float = Field(0.5, gt=0, le=1)
    errors: float = Field(0.0, ge=0, le=1)
    slower: float = Field(1.2, gt=0)
    differ: float = Field(0.01, ge=0, le=1)
    rtol: _Tolerance | dict[str, _Tolerance] = 1e-5
    atol: _Tolerance = 1e-6
    verdict: str | Callable[[Any, Any], Any] | None = None
    keep_inputs: bool = False

    def judge(self, *, allow_import: bool) -> Callable[[Any, Any], Any] | None:
        """Return the function that compares two answers, None if there is none.

        Raises:
            ConfigError: It cannot be imported.
        """
        if isinstance(self.verdict, str):
            return read_judge(self.verdict, allow_import=allow_import)
        return self.verdict

    def check_outputs(self, old: Pipeline, new: Pipeline) -> None:
        """Check that both have the same outputs, and those that ``rtol`` names, as far as they describe any.

        Raises:
            ConfigError: They have not.
        """
        ours, theirs = set(ports_of(old)[1]), set(ports_of(new)[1])
        if not (ours and theirs):
            return
        named = set(self.rtol) if isinstance(self.rtol, dict) else set()
        texts = [f"only one of the models has the output {name!r}" for name in ours ^ theirs]
        texts += [f"rtol names {name!r}, which is no output" for name in named - (ours | theirs)]
        hint = f"The old model has {', '.join(sorted(ours))}, the new {', '.join(sorted(theirs))}."
        if texts:
            raise ConfigError([Problem("exchange", text, hint=hint) for text in sorted(texts)])

    def rtol_of(self, output: str) -> float:
        """Return the relative tolerance of an output."""
        return self.rtol.get(output, 1e-5) if isinstance(self.rtol, dict) else self.rtol
