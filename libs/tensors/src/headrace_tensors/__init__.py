"""What the engines of Headrace share: ports, requests as tensors, rows of batches.

Nothing is imported until it is used: ``import headrace_tensors`` loads neither numpy nor pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_tensors.comparing import RowVerdict, compare_rows, sizes_to_compare
    from headrace_tensors.device_arrays import DeviceArray
    from headrace_tensors.dlpack import export_capsule, read_capsule
    from headrace_tensors.entering import enter, marks_of, order_behind, wait_for_callers
    from headrace_tensors.grouping import cut_groups, group_items, refuse_ragged
    from headrace_tensors.host_arrays import (
        array_of_numbers,
        host_array,
        is_plain,
        numpy_dtype,
        refuse_masked,
    )
    from headrace_tensors.joining import concatenate, gather, joined, rows_apart
    from headrace_tensors.lengths import prove_crops, runs_of_lengths
    from headrace_tensors.lost import LOST_DEVICE, LostDevice, is_lost, lost_device
    from headrace_tensors.options import BatchAxisOptions, RowSizes, TensorOptions, UnbatchedOptions
    from headrace_tensors.padding import (
        Crop,
        Steps,
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
        refuse_two_batches,
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
    from headrace_tensors.torch_views import TorchView, order_behind_torch, view_of_torch
    from headrace_tensors.warming import (
        check_followed,
        invented_inputs,
        read_warm_up,
        warm_up_rows,
    )

__version__ = "0.1.0"

__all__ = [
    "LOST_DEVICE",
    "STRING",
    "BatchAxisOptions",
    "Crop",
    "DeviceArray",
    "Item",
    "LostDevice",
    "Port",
    "RowSizes",
    "RowVerdict",
    "Signature",
    "Steps",
    "TensorOptions",
    "TorchView",
    "UnbatchedOptions",
    "__version__",
    "array_of_numbers",
    "batch_length",
    "check_axes",
    "check_equal_axes",
    "check_followed",
    "check_padding",
    "check_rows",
    "choose_keys",
    "compare_rows",
    "concatenate",
    "counted_rows",
    "cropped",
    "cut_groups",
    "enter",
    "export_capsule",
    "find_crops",
    "gather",
    "group_items",
    "host_array",
    "invented_inputs",
    "is_lost",
    "is_plain",
    "joined",
    "lost_device",
    "marks_of",
    "nearest",
    "numpy_dtype",
    "order_behind",
    "order_behind_torch",
    "pad_values",
    "padded",
    "padded_shape",
    "padded_shapes",
    "padding_fits",
    "prove_crops",
    "read_capsule",
    "read_item",
    "read_warm_up",
    "refuse_masked",
    "refuse_other_axes",
    "refuse_ragged",
    "refuse_two_batches",
    "refuse_unknown",
    "rows_apart",
    "runs_of_lengths",
    "sizes_to_compare",
    "split_outputs",
    "text_of",
    "view_of_torch",
    "wait_for_callers",
    "warm_up_rows",
    "warning_of_padding",
    "with_rows",
]

_HOME = {
    "DeviceArray": "device_arrays",
    "export_capsule": "dlpack",
    "read_capsule": "dlpack",
    "BatchAxisOptions": "options",
    "RowSizes": "options",
    "Crop": "padding",
    "Item": "reading",
    "LOST_DEVICE": "lost",
    "LostDevice": "lost",
    "Port": "ports",
    "RowVerdict": "comparing",
    "STRING": "ports",
    "Signature": "ports",
    "Steps": "padding",
    "TensorOptions": "options",
    "TorchView": "torch_views",
    "UnbatchedOptions": "options",
    "array_of_numbers": "host_arrays",
    "batch_length": "ports",
    "check_axes": "reading",
    "check_equal_axes": "reading",
    "check_followed": "warming",
    "check_padding": "padding",
    "check_rows": "results",
    "choose_keys": "ports",
    "compare_rows": "comparing",
    "concatenate": "joining",
    "counted_rows": "ports",
    "cropped": "results",
    "cut_groups": "grouping",
    "enter": "entering",
    "find_crops": "padding",
    "gather": "joining",
    "group_items": "grouping",
    "host_array": "host_arrays",
    "invented_inputs": "warming",
    "is_lost": "lost",
    "is_plain": "host_arrays",
    "joined": "joining",
    "lost_device": "lost",
    "marks_of": "entering",
    "nearest": "ports",
    "numpy_dtype": "host_arrays",
    "order_behind": "entering",
    "order_behind_torch": "torch_views",
    "pad_values": "padding",
    "padded": "padding",
    "padded_shape": "padding",
    "padded_shapes": "padding",
    "padding_fits": "padding",
    "prove_crops": "lengths",
    "read_item": "reading",
    "read_warm_up": "warming",
    "refuse_masked": "host_arrays",
    "refuse_other_axes": "ports",
    "refuse_ragged": "grouping",
    "refuse_two_batches": "ports",
    "refuse_unknown": "ports",
    "rows_apart": "joining",
    "runs_of_lengths": "lengths",
    "sizes_to_compare": "comparing",
    "split_outputs": "results",
    "text_of": "reading",
    "view_of_torch": "torch_views",
    "wait_for_callers": "entering",
    "warm_up_rows": "warming",
    "warning_of_padding": "padding",
    "with_rows": "reading",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
