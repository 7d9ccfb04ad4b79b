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
    from headrace_tensors.entering import (
        DeviceStream,
        enter,
        marks_of,
        order_behind,
        wait_for_callers,
    )
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
        Padding,
        Steps,
        check_padding,
        find_crops,
        pad_values,
        padded,
        padded_shape,
        padded_shapes,
        padding_fits,
        prepare_padding,
        warning_of_padding,
    )
    from headrace_tensors.ports import (
        STRING,
        Port,
        Signature,
        batch_axis_hint,
        batch_length,
        choose_keys,
        counted_rows,
        refuse_other_axes,
        refuse_two_batches,
        refuse_unknown,
    )
    from headrace_tensors.protocol import (
        CONTENTS,
        DATATYPES,
        bf16_bits,
        bf16_values,
        join_elements,
        read_elements,
        split_raw,
        varint_of,
    )
    from headrace_tensors.reading import (
        Item,
        check_axes,
        check_equal_axes,
        read_item,
        text_of,
        with_rows,
    )
    from headrace_tensors.results import check_rows, cropped, named_results, split_outputs
    from headrace_tensors.running import EngineAdapter, RowRunner
    from headrace_tensors.torch_views import TorchView, order_behind_torch, view_of_torch
    from headrace_tensors.warming import (
        check_followed,
        invented_inputs,
        read_warm_up,
        warm_up_rows,
    )

__version__ = "0.1.0"

__all__ = [
    "CONTENTS",
    "DATATYPES",
    "LOST_DEVICE",
    "STRING",
    "BatchAxisOptions",
    "Crop",
    "DeviceArray",
    "DeviceStream",
    "EngineAdapter",
    "Item",
    "LostDevice",
    "Padding",
    "Port",
    "RowRunner",
    "RowSizes",
    "RowVerdict",
    "Signature",
    "Steps",
    "TensorOptions",
    "TorchView",
    "UnbatchedOptions",
    "__version__",
    "array_of_numbers",
    "batch_axis_hint",
    "batch_length",
    "bf16_bits",
    "bf16_values",
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
    "join_elements",
    "joined",
    "lost_device",
    "marks_of",
    "named_results",
    "numpy_dtype",
    "order_behind",
    "order_behind_torch",
    "pad_values",
    "padded",
    "padded_shape",
    "padded_shapes",
    "padding_fits",
    "prepare_padding",
    "prove_crops",
    "read_capsule",
    "read_elements",
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
    "split_raw",
    "text_of",
    "varint_of",
    "view_of_torch",
    "wait_for_callers",
    "warm_up_rows",
    "warning_of_padding",
    "with_rows",
]

_HOME = {
    "comparing": "RowVerdict compare_rows sizes_to_compare",
    "device_arrays": "DeviceArray",
    "dlpack": "export_capsule read_capsule",
    "entering": "DeviceStream enter marks_of order_behind wait_for_callers",
    "grouping": "cut_groups group_items refuse_ragged",
    "host_arrays": "array_of_numbers host_array is_plain numpy_dtype refuse_masked",
    "joining": "concatenate gather joined rows_apart",
    "lengths": "prove_crops runs_of_lengths",
    "lost": "LOST_DEVICE LostDevice is_lost lost_device",
    "options": "BatchAxisOptions RowSizes TensorOptions UnbatchedOptions",
    "padding": "Crop Padding Steps check_padding find_crops pad_values padded padded_shape "
    "padded_shapes padding_fits prepare_padding warning_of_padding",
    "ports": "Port STRING Signature batch_axis_hint batch_length choose_keys counted_rows "
    "refuse_other_axes refuse_two_batches refuse_unknown",
    "protocol": "CONTENTS DATATYPES bf16_bits bf16_values join_elements read_elements split_raw "
    "varint_of",
    "reading": "Item check_axes check_equal_axes read_item text_of with_rows",
    "results": "check_rows cropped named_results split_outputs",
    "running": "EngineAdapter RowRunner",
    "torch_views": "TorchView order_behind_torch view_of_torch",
    "warming": "check_followed invented_inputs read_warm_up warm_up_rows",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
