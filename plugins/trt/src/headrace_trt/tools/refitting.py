"""Puts new weights into a plan without building it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace_trt.building.timing import keep_apart, write_atomically
from headrace_trt.tools.opening import opened

__all__ = ["refit_plan"]


def refit_plan(
    plan: Path | str, weights: Path | str, target: Path | str, **options: Any
) -> dict[str, Any]:
    """Write a plan with the weights of a model, on the kind of device for which the plan was built.

    A pipeline whose ``model`` is the new plan has the new weights. With ``weights`` LoadTensorrtEngine needs no new file.

    Args:
        plan: A plan that was built with ``refit``.
        weights: An ONNX model with the same graph.
        target: The file for the new plan.
        options: How the plan is loaded, as for `opened`.

    Returns:
        ``plan``, ``weights``, ``target`` and ``bytes``.

    Raises:
        SetupError: The plan cannot be loaded, was built without ``refit``, the model does not fit, or
            ``target`` is the file of the plan or of the model.
    """
    plan, weights, target = Path(plan), Path(weights), Path(target)
    keep_apart(target, {"the plan": plan, "the model": weights})
    with opened(plan, **{**options, "weights": str(weights).replace("${", "$${")}) as (engine, _):
        content = bytes(memoryview(engine.engine.serialize()))
    write_atomically(target, content)
    return {
        "plan": str(plan),
        "weights": str(weights),
        "target": str(target),
        "bytes": len(content),
    }
