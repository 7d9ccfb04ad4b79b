"""The rules about requests as tensors, compared with slow loops of numpy and with cases counted by hand."""

import gc
import logging
import sys
import threading

import numpy as np
import pytest

from headrace.errors import InputError, InstanceLostError, SetupError
from headrace_tensors import (
    BatchAxisOptions,
    Crop,
    Item,
    Port,
    Signature,
    check_padding,
    choose_keys,
    find_crops,
    group_items,
    host_array,
    invented_inputs,
    is_lost,
    lost_device,
    pad_values,
    read_item,
    read_warm_up,
    refuse_other_axes,
    split_outputs,
    warm_up_rows,
    warning_of_padding,
)

pytestmark = pytest.mark.first("engines share the rules of tensors")

LOGGER = logging.getLogger("headrace.test")
IDS = Port("ids", "int64", (None, None), True, names=("batch", "length"))
MASK = Port("mask", "int64", (None, None), True, names=("batch", "length"))
X = Port("x", "float32", (None, 2), True, names=("batch", None))


def read(signature, request, keys=None):
    names = {port.name: port.name for port in signature.inputs}
    return read_item(request, signature, keys or names, host_array)


def test_an_optional_input_may_be_missing_and_its_presence_divides_a_batch():
    scale = Port("scale", "float32", (), False, optional=True)
    signature = Signature((X, scale))
    assert choose_keys(signature, {}) == {"x": "data", "scale": "scale"}
    assert choose_keys(signature, {}, reserved=["scale"]) == {"x": "data"}
    x = np.ones(2, np.float32)
    items = [read(signature, {"x": x}), read(signature, {"x": x, "scale": 7.0})]
    items += [read(signature, {"x": x}), read(signature, {"x": x, "scale": 7.0})]
    assert group_items(items, signature.inputs) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("length", "groups"), [(4, [[0, 1], [2]]), (1 << 15, [[0], [1], [2]])], ids=["small", "large"]
)
def test_equal_small_whole_inputs_share_a_run(length, groups):
    bias = Port("bias", "float32", (None,), False)
    items = [
        Item({"x": np.ones((1, 2), np.float32), "bias": np.full(length, k, np.float32)}, 1, True)
        for k in (1, 1, 2)
    ]
    assert group_items(items, (X, bias)) == groups
    assert not Signature((X, bias), (X,)).one_at_a_time


def test_crop_names_an_input_where_the_axes_have_no_names():
    given = Port("a", "float32", (None, 3, None), True)
    taken = Port("y", "float32", (None, 7, None), True)
    signature = Signature((given,), (taken,))
    assert find_crops(signature) == {}
    assert find_crops(signature, {"y": "a"})["y"] == (Crop(2, "a", 1),)
    with pytest.raises(SetupError, match="Did you mean 'a'"):
        find_crops(signature, {"y": "aa"})
    fixed = Signature((given,), (Port("y", "float32", (None, 7), True),))
    with pytest.raises(SetupError, match="has no axis for it"):
        find_crops(fixed, {"y": "a"})


def test_one_number_for_several_ragged_inputs_is_a_warning():
    assert "pad_value = {ids = 1.0}" in warning_of_padding(1.0, (IDS, MASK))
    assert warning_of_padding(0.0, (IDS, MASK)) is None
    assert warning_of_padding({"ids": 1}, (IDS, MASK)) is None
    assert warning_of_padding(1.0, (IDS, X)) is None


def test_a_padding_value_must_fit_the_input_that_it_pads():
    half = Port("h", "float16", (None, None), True)
    ports = (half, IDS)
    check_padding(ports, pad_values({"ids": 70000}, ports))
    with pytest.raises(SetupError, match="'h' is float16"):
        check_padding(ports, pad_values(70000, ports))
    with pytest.raises(SetupError, match="Did you mean 'ids'"):
        pad_values({"idss": 1}, ports)


@pytest.mark.parametrize(
    ("names", "shape", "hint"),
    [
        (("num_selected", None), (None, 3), "`unbatched`"),
        (("length", None), (None, 3), "`unbatched`"),
        ((None, "batch"), (4, None), "batch_axis = {out = 1}"),
        (("batch", None), (None, 3), None),
        (("unk__7", None), (None, 3), None),
        (("output_dynamic_axes_1", None), (None, 3), None),
        (("Gemmoutput_dim_0", None), (None, 3), None),
        ((None, None), (None, 3), None),
    ],
)
def test_the_first_axis_of_an_output_bears_the_name_of_the_batch(names, shape, hint):
    out = Port("out", "int64", shape, shape[0] is None, names=names)
    if hint is None:
        refuse_other_axes((IDS,), (out,))
        return
    with pytest.raises(SetupError, match="output out") as caught:
        refuse_other_axes((IDS,), (out,))
    assert hint in caught.value.hint
    assert ("batch_axis" in hint) == ("batch_axis" in caught.value.hint)
    refuse_other_axes((IDS,), (out,), told=["out"])


def test_an_output_with_the_names_of_two_batch_axes_is_refused_where_requests_share_a_run():
    a, b = (Port(name, "float32", (None, 4), True, names=(name, None)) for name in "ab")
    out = Port("y", "float32", (None, None), True, names=("a", "b"))
    refuse_other_axes((a, b), (out,))
    with pytest.raises(SetupError, match=r"output y .* two batch axes") as caught:
        refuse_other_axes((a, b), (out,), told=["y"], shared=True)
    assert "max = 1" in caught.value.hint


def test_outputs_that_do_not_follow_the_rows_are_refused_by_a_run():
    signature = Signature((X,), (Port("y", "float32", (None,), True),))
    seen = []

    def run(output):
        def run_rows(feeds, rows):
            seen.append(feeds["x"].copy())
            assert len(feeds["x"]) == rows
            return [output(feeds["x"]).shape]

        return run_rows

    warm_up_rows(run(lambda x: x.sum(1)), signature, LOGGER)
    assert [len(one) for one in seen] == [1, 2, 2]
    assert not np.array_equal(seen[1], seen[2])
    for wrong in (lambda x: x.reshape(-1), lambda x: x[x > 0.5], lambda x: x.sum(), lambda x: x.T):
        with pytest.raises(SetupError, match="output 'y'") as caught:
            warm_up_rows(run(wrong), signature, LOGGER)
        assert "`unbatched`" in caught.value.hint
    with pytest.raises(SetupError) as caught:
        warm_up_rows(run(lambda x: np.stack([x.sum(1)] * 5)), signature, LOGGER)
    assert "batch_axis = {y = 1}" in caught.value.hint


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no interpreter lock"
)
@pytest.mark.parametrize("width", [10, 1000, 16_000])
def test_each_request_gets_memory_of_its_own_with_the_interpreter_lock_held(width):
    """A second thread, which waits for the lock, gets it from numpy's copies of more than 500 elements."""
    port, count = Port("y", "float32", (None, width), True), 500
    output = np.arange(count, dtype=np.float32)[:, None] * np.ones(width, np.float32)
    items = [Item({}, 1, sample=bool(k % 2)) for k in range(count)]
    begun, got_in, interval = threading.Lock(), [], sys.getswitchinterval()
    begun.acquire()

    def other():
        with begun:
            got_in.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        gc.disable()  # what it would end could give the lock up
        sys.setswitchinterval(1000)  # nobody has to give it up
        begun.release()
        results = split_outputs([output], items, Signature((), (port,)))
        kept = not got_in
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        thread.join()
    assert kept
    for k, (result,) in enumerate(results):
        assert result.shape == ((width,) if k % 2 else (1, width))
        assert np.all(result == k)
        assert not np.shares_memory(result, output)


FLOATS = Port("y", "float32", (None, 2), True)


def quantized(x):
    """Round to 255 steps up to the greatest value of the whole batch."""
    step = x.max() / np.float32(255)
    return np.round(x / step) * step


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (quantized, "by up to"),
        (lambda x: (x > x.mean()).astype(np.int64), "of 2 values"),
        (lambda x: x - x.mean(1, keepdims=True), None),
        (lambda x: x * (1 + np.float32(5e-3) * len(x)), None),  # noise that the network enlarges
        (lambda x: x.astype(np.float16) * np.float16(1 + 1e-2 * len(x)), None),
        (lambda x: x / np.zeros_like(x) * 0, None),
    ],
)
def test_results_that_depend_on_the_other_rows_by_more_than_float_noise_are_a_warning(
    caplog, model, said
):
    def run(feeds, rows):
        with np.errstate(all="ignore"):
            return [model(feeds["x"])]

    signature = Signature((X,), (FLOATS,))
    warm_up_rows(run, signature, LOGGER, node="detect")
    assert ("node 'detect': output 'y'" in caplog.text) is (said is not None)
    assert said is None or (said in caplog.text and "max = 1" in caplog.text)
    caplog.clear()
    warm_up_rows(run, signature, LOGGER)
    assert not caplog.text, "the requests of the node never share a run"


@pytest.mark.parametrize(("rows", "low"), [(4, 1), (None, 3)])
def test_rows_are_compared_where_the_batch_is_fixed_or_has_a_least_number_too(caplog, rows, low):
    seen = []

    def run(feeds, count):
        seen.append(feeds["x"].copy())
        return [quantized(feeds["x"])]

    signature = Signature((X,), (FLOATS,), rows=rows, low_rows=low)
    warm_up_rows(run, signature, LOGGER, node="main")
    assert {len(one) for one in seen} == ({rows} if rows else {low, low + 1})
    assert "depends on its batch" in caplog.text


@pytest.mark.parametrize("words", [16, 2])
def test_tokens_in_company_are_others_where_the_model_has_them(caplog, words):
    """Both rows of zeros and ones have the same greatest value."""
    table = np.arange(words, dtype=np.float32) + 0.3
    ids = Port("ids", "int64", (None, 6), True, names=("batch", None))

    def run(feeds, rows):
        return [quantized(table[feeds["ids"]])]

    outputs = (Port("y", "float32", (None, 6), True),)
    warm_up_rows(run, Signature((ids,), outputs), LOGGER, node="main")
    assert ("depends on its batch" in caplog.text) is (words == 16)


def test_an_output_of_another_shape_in_company_is_a_warning(caplog):
    signature = Signature((X,), (Port("y", "float32", (None, None), True),))

    def run(feeds, rows):
        return [feeds["x"].repeat(rows, axis=1)]

    warm_up_rows(run, signature, LOGGER, node="main")
    assert "float32 [2], and float32 [4]" in caplog.text


def test_an_output_that_was_taken_for_whole_and_follows_the_rows_is_refused():
    out = Port("y", "float32", (4, None), False)
    signature = Signature((X,), (out,))

    def run(feeds, rows):
        return [(4, rows)]

    with pytest.raises(SetupError, match="output 'y'") as caught:
        warm_up_rows(run, signature, LOGGER)
    assert "batch_axis = {y = 1}" in caught.value.hint
    warm_up_rows(run, signature, LOGGER, told=["y"])


def test_a_run_that_raises_on_invented_values_is_a_warning_but_not_on_real_ones(caplog):
    signature = Signature((X,), (X,))

    def run(feeds, rows):
        raise ZeroDivisionError("integer division by zero")

    warm_up_rows(run, signature, LOGGER)
    assert "integer division by zero" in caplog.text
    assert "warm_up_input" in caplog.text
    real = Item({"x": np.ones((1, 2), np.float32)}, 1, True)
    with pytest.raises(ZeroDivisionError):
        warm_up_rows(run, signature, LOGGER, real=real)

    def lost(feeds, rows):
        raise InstanceLostError("gone")

    with pytest.raises(InstanceLostError):
        warm_up_rows(lost, signature, LOGGER)


def test_real_inputs_of_the_warm_up_come_from_a_file(tmp_path):
    signature = Signature((X, IDS))
    np.savez(tmp_path / "in.npz", x=np.float32([[1, 2]]), ids=np.int64([[3, 4, 5]]))
    seen = []

    def run(feeds, rows):
        seen.append({name: array.tolist() for name, array in feeds.items()})
        return []

    item = read_warm_up(tmp_path / "in.npz", signature)
    warm_up_rows(run, signature, LOGGER, real=item)
    assert seen[0] == {"x": [[1, 2]], "ids": [[3, 4, 5]]}
    assert seen[1] == {"x": [[1, 2]] * 2, "ids": [[3, 4, 5]] * 2}
    np.save(tmp_path / "x.npy", np.float32([1, 2]))
    assert read_warm_up(tmp_path / "x.npy", Signature((X,))).sample
    for wrong in (np.float32([1, 2, 3]), np.float64([1, 2])):
        np.save(tmp_path / "x.npy", wrong)
        with pytest.raises(SetupError, match="does not fit"):
            read_warm_up(tmp_path / "x.npy", Signature((X,)))
    with pytest.raises(SetupError, match="has the inputs x, ids"):
        read_warm_up(tmp_path / "x.npy", signature)


def test_invented_inputs_have_equal_lengths_for_axes_of_one_name():
    square = Port("s", "float32", (None, None), True, names=("batch", "batch"))
    made = invented_inputs((IDS, MASK, square), 2, seed=3)
    assert made["ids"].shape == made["mask"].shape
    assert made["s"].shape == (2, 2)
    assert set(np.unique(made["ids"])) <= {0, 1}
    again = invented_inputs((IDS, MASK, square), 2, seed=3)
    assert all(np.array_equal(made[name], again[name]) for name in made)
    assert invented_inputs((IDS,), 2, seed=3, free_axes=False) is None
    assert invented_inputs((Port("t", "str", (None,), True),), 1, seed=0) is None


def test_an_axis_of_length_0_is_fixed():
    like = Port("like", "float64", (0,), False)
    item = read(Signature((X, like)), {"x": [1.0, 2.0], "like": np.zeros(0)})
    assert item.tensors["like"].shape == (0,)
    with pytest.raises(InputError, match="wrong shape"):
        read(Signature((X, like)), {"x": [1.0, 2.0], "like": np.zeros(1)})


@pytest.mark.parametrize(
    ("value", "said"),
    [("text", "a table of numbers by input"), ({"a": True}, "a number"), (None, "a number")],
)
def test_a_pad_value_is_a_number_or_a_table(value, said):
    with pytest.raises(ValueError, match=said):
        BatchAxisOptions(pad_value=value)


class EngineOptions(BatchAxisOptions):
    """All options that meet others."""

    output_device: str = "cpu"
    cuda_graph: bool = False


class ManyGraphsOptions(EngineOptions):
    """Options of an engine that records a graph for each shape."""

    cuda_graph_limit: int = 16


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cuda_graph": True, "ragged": "pad"}, "cuda_graph needs one shape"),
        ({"unbatched": ("b", "a"), "batch_axis": {"a": 0}}, "'a' stands in `unbatched` and in"),
        ({"unbatched": "all", "batch_axis": {"a": 0}}, "'a' stands in `unbatched` and in"),
        ({"batch_axis": {"a": 1}, "output_device": "device"}, "arrays on the CPU only"),
        ({"batch_axis": {"a": 1}, "cuda_graph": True}, "arrays on the CPU only"),
    ],
    ids=str,
)
def test_options_that_go_alone_are_refused_together(given, said):
    for name, value in given.items():
        assert getattr(EngineOptions(**{name: value}), name) == value
    with pytest.raises(ValueError, match=said):
        EngineOptions(**given)


def test_an_engine_with_many_graphs_may_pad():
    assert ManyGraphsOptions(cuda_graph=True, ragged="pad").cuda_graph
    assert EngineOptions(batch_axis={"a": 0}, output_device="device").batch_axis == {"a": 0}


def test_unbatched_is_a_list_or_all():
    assert BatchAxisOptions(unbatched="all").unbatched == "all"
    assert BatchAxisOptions(unbatched=["a"]).unbatched == ("a",)
    with pytest.raises(ValueError, match=r"write \['scores'\]"):
        BatchAxisOptions(unbatched="scores")
    with pytest.raises(ValueError, match="'a' is listed twice"):
        BatchAxisOptions(unbatched=["a", "a"])


@pytest.mark.parametrize(
    "text",
    [
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "the launch timed out and was terminated",
    ],
)
def test_what_libraries_say_of_a_lost_device_is_recognised(text):
    assert isinstance(lost_device(RuntimeError(text)), InstanceLostError)
    assert lost_device(InstanceLostError(text)) is None


def test_other_errors_leave_the_device():
    assert lost_device(RuntimeError("CUDA failure 2: out of memory")) is None
    assert not is_lost(name="cudaErrorMemoryAllocation", number=2)
    assert is_lost(number=714)
    assert is_lost(name="cudaErrorInvalidPc")
