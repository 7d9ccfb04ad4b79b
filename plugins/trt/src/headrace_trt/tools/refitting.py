"""New weights for a plan, without building it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_trt.timing import keep_apart, write_atomically
from headrace_trt.tools.opening import open_engine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["refit_plan"]


def refit_plan(
    plan: Path,
    weights: Path,
    target: Path,
    *,
    library: str = "auto",
    device: str | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Write a plan with the weights of a model; needs the device that the plan is for.

    A running node takes it by ``pipe.reload(node, {"model": TARGET})``, or without any file by
    ``pipe.reload(node, {"weights": MODEL})`` where it runs LoadTensorrtEngine.

    Args:
        plan: A plan that was built with ``refit``.
        weights: An ONNX model with the same graph.
        target: Where the new plan goes.
        library: Which TensorRT.
        device: The device.
        trust: Whether the plan may hold code that runs on the host.

    Returns:
        ``plan``, ``weights``, ``target`` and ``bytes``.

    Raises:
        SetupError: The plan cannot be loaded, was built without ``refit``, the model does not fit, or
            ``target`` is one of them.
    """
    keep_apart(target, {"the plan": plan, "the model": weights})
    engine, _ = open_engine(plan, library=library, device=device, trust=trust, weights=weights)
    content = bytes(memoryview(engine.engine.serialize()))
    engine.close()
    write_atomically(target, content)
    return {
        "plan": str(plan),
        "weights": str(weights),
        "target": str(target),
        "bytes": len(content),
    }
