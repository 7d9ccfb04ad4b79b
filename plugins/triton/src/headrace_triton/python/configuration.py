"""The configuration of a model, completed."""

from __future__ import annotations

from typing import Any

from headrace_triton.schema import DATATYPES

__all__ = ["completed"]


def completed(config: Any) -> dict[str, Any]:
    """Return a configuration with the fields that Triton prints in any case.

    Raises:
        ValueError: It is no object, it has no name, or an input or output has none, or no datatype that is known.
    """
    if not isinstance(config, dict):
        raise ValueError("the configuration of a model is an object")  # noqa: TRY004 - pydantic reports it
    complete = {"max_batch_size": 0, "input": [], "output": [], **config}
    if not isinstance(complete.get("name"), str):
        raise ValueError("the configuration of a model has a name")  # noqa: TRY004 - pydantic reports it
    for side in ("input", "output"):
        complete[side] = [{"dims": [], "optional": False, **port} for port in complete[side]]
        for port in complete[side]:
            if not port.get("name") or port.get("data_type") not in DATATYPES:
                raise ValueError(f"an {side} has a name and a data_type, got {port}")
            port["dims"] = [*map(int, port["dims"])]  # JSON may have them as text
    return complete
