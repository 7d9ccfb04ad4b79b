"""What the engines of Headrace share: ports, requests as tensors, rows of batches.

Nothing is imported until it is used: ``import headrace_tensors`` loads neither numpy nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_tensors import dlpack
    from headrace_tensors.grouping import cut_groups, group_items, refuse_ragged
    from headrace_tensors.host_arrays import array_of_numbers, host_array, is_plain, numpy_dtype
    from headrace_tensors.joining import concatenate, gather, joined, rows_apart
    from headrace_tensors.lost import LOST_DEVICE, LostDevice, is_lost, lost_device
    from headrace_tensors.options import BatchAxisOptions, TensorOptions, UnbatchedOptions
    from headrace_tensors.padding import (
        Crop,
        check_padding,
        find_crops,
        pad_values,
        padded,
        padded_shape,
        padded_shapes,
        padding_fits,
        warning_of_padding,
    )
    from headrace_tensors.ports import (
        STRING,
        Port,
        Signature,
        batch_length,
        choose_keys,
        counted_rows,
        nearest,
        refuse_other_axes,
        refuse_unknown,
    )
    from headrace_tensors.reading import (
        Item,
        check_axes,
        check_equal_axes,
        read_item,
        text_of,
        with_rows,
    )
    from headrace_tensors.results import check_rows, cropped, split_outputs
    from headrace_tensors.warming import (
        check_followed,
        invented_inputs,
        read_warm_up,
        warm_up_rows,
    )

__version__ = "0.1.0"

_NAMES = {
    "grouping": "cut_groups group_items refuse_ragged",
    "host_arrays": "array_of_numbers host_array is_plain numpy_dtype",
    "joining": "concatenate gather joined rows_apart",
    "lost": "LOST_DEVICE LostDevice is_lost lost_device",
    "options": "BatchAxisOptions TensorOptions UnbatchedOptions",
    "padding": "Crop check_padding find_crops pad_values padded padded_shape padded_shapes padding_fits "
    "warning_of_padding",
    "ports": "STRING Port Signature batch_length choose_keys counted_rows nearest refuse_other_axes refuse_unknown",
    "reading": "Item check_axes check_equal_axes read_item text_of with_rows",
    "results": "check_rows cropped split_outputs",
    "warming": "check_followed invented_inputs read_warm_up warm_up_rows",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", "dlpack", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    import importlib

    if name == "dlpack":
        return importlib.import_module("headrace_tensors.dlpack")
    if name not in _HOME:
        raise AttributeError(f"module 'headrace_tensors' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace_tensors.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
