"""What plugins rely on within one minor version, word for word: it only grows."""

import headrace_tensors
from headrace_tensors import LOST_DEVICE, BatchAxisOptions

NAMES = """
BatchAxisOptions CONTENTS Crop DATATYPES DeviceArray DeviceStream EngineAdapter Item LOST_DEVICE LostDevice Padding Port RowRunner RowSizes RowVerdict STRING Signature Steps TensorOptions TorchView UnbatchedOptions __version__
array_of_numbers batch_axis_hint batch_length bf16_bits bf16_values check_axes check_equal_axes check_followed check_padding check_rows choose_keys compare_rows concatenate counted_rows
cropped cut_groups enter export_capsule find_crops gather group_items host_array invented_inputs is_lost is_plain join_elements joined lost_device marks_of named_results
numpy_dtype order_behind order_behind_torch pad_values padded padded_shape padded_shapes padding_fits prepare_padding prove_crops read_capsule read_elements read_item read_warm_up
refuse_masked refuse_other_axes refuse_ragged refuse_two_batches refuse_unknown rows_apart runs_of_lengths sizes_to_compare split_outputs split_raw text_of varint_of view_of_torch wait_for_callers warm_up_rows
warning_of_padding with_rows
"""

DEFAULTS = {
    "inputs": {},
    "outputs": None,
    "ragged": "group",
    "pad_value": 0.0,
    "pad_multiple": 1,
    "crop": None,
    "warm_up_input": None,
    "unbatched": (),
    "batch_axis": {},
}

LOST = {
    "cudaErrorDevicesUnavailable": 46,
    "cudaErrorECCUncorrectable": 214,
    "cudaErrorNvlinkUncorrectable": 220,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchTimeout": 702,
    "cudaErrorContextIsDestroyed": 709,
    "cudaErrorAssert": 710,
    "cudaErrorHardwareStackError": 714,
    "cudaErrorIllegalInstruction": 715,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorInvalidAddressSpace": 717,
    "cudaErrorInvalidPc": 718,
    "cudaErrorLaunchFailure": 719,
    "cudaErrorUnknown": 999,
}


def test_the_public_names():
    assert set(headrace_tensors.__all__) == set(NAMES.split())


def test_the_options_with_their_defaults():
    fields = BatchAxisOptions.model_fields
    assert {name: one.default for name, one in fields.items()} == DEFAULTS
    assert all(one.description for one in fields.values())


def test_the_errors_of_a_lost_device():
    assert {one.name: one.number for one in LOST_DEVICE} == LOST
    assert all(one.text == one.text.lower() != "" for one in LOST_DEVICE)


def test_the_members_of_the_stream_that_plugins_share():
    members = {name for name in vars(headrace_tensors.DeviceStream) if not name.startswith("_")}
    assert members == {"handle", "close"}
