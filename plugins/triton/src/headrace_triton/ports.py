"""The inputs and outputs of a configuration, as backends describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace_triton.schema import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DTYPES", "RESPONSE_PARAMETERS", "optional_names", "ports_of"]

DTYPES: Final = {
    "BOOL": "bool",
    "BYTES": "bytes",
    "BF16": "bfloat16",
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{name: name.lower() for name in DATATYPES.values() if "INT" in name},
}
"""The name of the dtype for each datatype of the protocol."""

RESPONSE_PARAMETERS: Final = "response_parameters"
"""The key of a request under which the parameters of its response stand."""


def ports_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``inputs``, ``optional_inputs`` and ``outputs`` for ``describe()``, each port under the key of its name.

    Args:
        config: A configuration as Triton prints it.
    """
    optional = optional_names(config)
    inputs = {port["name"]: _port(config, port) for port in config["input"]}
    return {
        "inputs": {name: port for name, port in inputs.items() if name not in optional},
        "optional_inputs": {name: port for name, port in inputs.items() if name in optional},
        "outputs": {port["name"]: _port(config, port) for port in config["output"]},
    }


def optional_names(config: Mapping[str, Any]) -> set[str]:
    """Return the names of the inputs that a request may lack."""
    return {port["name"] for port in config["input"] if port["optional"]}


def _port(config: Mapping[str, Any], port: Mapping[str, Any]) -> dict[str, Any]:
    batched = config["max_batch_size"] > 0
    dims = [None if n < 0 else n for n in port["dims"]]
    dtype = DTYPES[DATATYPES[port["data_type"]]]
    shape = [None, *dims] if batched else dims
    return {"key": port["name"], "dtype": dtype, "shape": shape, "batched": batched}
