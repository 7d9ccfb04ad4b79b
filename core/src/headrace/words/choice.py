"""Containers that choose one of their children when the pipeline is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from headrace._backend import Backend
from headrace._options import Options as _Options

if TYPE_CHECKING:
    from headrace._backend import Outcomes
    from headrace._context import InitContext
    from headrace.keys import Request
    from headrace.words._ranges import Range, Ranged

__all__ = ["Fallback", "ModelLoader"]


class Chosen(Backend):
    """Base of the containers that stand for one child once they are built."""

    _reentrant = True

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the child that was chosen, with its range."""
        (self.child,) = context.children
        self.min, self.max = self.child.min, self.child.max
        self.rerun = self.child.rerun  # type: ignore[misc]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the child that was chosen."""
        return self.child(batch)

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)


class ModelLoader(Chosen):
    """Choose the child by the suffix of the option ``model``: ``ModelLoader[(.onnx)A,(.trt,.plan)B]``.

    The first child with a suffix that ends the name is taken, whether in capitals or not.
    Options of the children that were not chosen count as known.

    Reads:
        What the chosen child reads.
    Writes:
        What the chosen child writes.
    Batch:
        The range of the chosen child.

    Raises:
        What the chosen child raises.
    Source:
        own
    """

    class Options(_Options):
        """Options of ModelLoader."""

        model: str = Field(description="The model; its suffix chooses the child.")

    takes = (1, None)
    prefixes = ("*",)

    @classmethod
    def combine_ranges(cls, children: list[Ranged]) -> Range:
        """Give the range of the child that was chosen."""
        return children[0].range


class Fallback(Chosen):
    """Use the first child that can be built here: ``Fallback[TensorrtTensor,OnnxTensor]``.

    A name that is not installed or not allowed, a missing library, and any error of ``init`` or
    ``warm_up`` mean: the next one. Wrong options do not. What was chosen, and why not the others,
    is in ``describe()`` and logged.

    Reads:
        What the chosen child reads.
    Writes:
        What the chosen child writes.
    Batch:
        The range of the chosen child.

    Raises:
        What the chosen child raises; SetupError with every reason when none can be built.
    Source:
        own
    """

    takes = (1, None)
    chosen: str
    reasons: dict[str, str]

    def describe(self) -> dict[str, Any]:
        """Give the child that was chosen, and why not the others."""
        return {"chosen": self.chosen, "not_chosen": dict(self.reasons)}

    @classmethod
    def combine_ranges(cls, children: list[Ranged]) -> Range:
        """Give the range that some child takes: which one will be built, the classes cannot tell."""
        most = [child.range[1] for child in children]
        bounded = [high for high in most if high is not None]
        least = min(child.range[0] for child in children)
        return least, max(bounded) if len(bounded) == len(most) else None
