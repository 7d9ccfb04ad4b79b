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

OPTIONS = {
    "inputs": (
        {},
        (
            "Key of the request per input name; default: `data` for the only input that a request must bring, "
            "else the input's name."
        ),
    ),
    "outputs": (None, "Names of the outputs to give; default: all."),
    "ragged": (
        "group",
        (
            "Samples of different shapes in one batch: run those of one shape together, pad all to the largest, "
            "or refuse those unlike the first."
        ),
    ),
    "pad_value": (
        0.0,
        (
            "What ragged = pad fills with, at the end of axes (in units of the data): one number for all inputs, "
            "or a table by input ({input_ids = 1}), where others get 0."
        ),
    ),
    "pad_multiple": (
        1,
        (
            "With ragged = pad: lengths of dynamic axes are rounded up to a multiple of this number of elements, "
            "at most to the greatest that the model declares."
        ),
    ),
    "crop": (
        None,
        (
            "With ragged = pad: where the warm-up can prove nothing, outputs that are cut to the length that the "
            "request brought, as input by output ({output = 'input'}); {} cuts nothing."
        ),
    ),
    "warm_up_input": (
        None,
        (
            "A .npz file of arrays by input (a .npy file for the only one), one sample or rows, with which the "
            "warm-up runs in place of random numbers."
        ),
    ),
    "unbatched": (
        (),
        (
            "Names of inputs and outputs whose first axis is not the batch axis, or 'all'. Requests with equal "
            "small inputs share a run; with such an output they are run one at a time."
        ),
    ),
    "batch_axis": (
        {},
        (
            "Which axis is the batch axis, counted from 0, per input or output where it is not the first (the "
            "state of a recurrent model), or where its name tells otherwise."
        ),
    ),
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


def test_the_options_with_their_defaults_and_texts():
    fields = BatchAxisOptions.model_fields
    assert {name: (one.default, one.description) for name, one in fields.items()} == OPTIONS


def test_the_errors_of_a_lost_device():
    assert {one.name: one.number for one in LOST_DEVICE} == LOST
    assert all(one.text == one.text.lower() != "" for one in LOST_DEVICE)


def test_the_members_of_the_stream_that_plugins_share():
    members = {name for name in vars(headrace_tensors.DeviceStream) if not name.startswith("_")}
    assert members == {"handle", "close"}
