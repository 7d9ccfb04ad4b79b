"""`RowRunner` around an engine that is a function of numpy: what it groups, fills up, pads, cuts, proves and refuses."""

from functools import partial

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import headrace
from headrace.errors import BackendError, InputError, SetupError
from headrace_tensors import (
    BatchAxisOptions,
    Port,
    RowRunner,
    Signature,
    choose_keys,
    concatenate,
    host_array,
    named_results,
    padded_shapes,
    read_item,
    split_outputs,
)

F32 = np.float32
ONES = np.ones(3, F32)


class Engine:
    """A function of arrays by name that gives a list of outputs, as an `EngineAdapter`. ``rows`` are those of its runs."""

    cut_axes = settle = None

    def __init__(self, function, signature):
        self.function, self.signature, self.rows = function, signature, []

    def outputs_of(self, feeds, rows):
        """Run inputs whose batch axis is in front."""
        ports = [one for one in self.signature.inputs if one.name in feeds]
        return self.call(
            {one.name: np.moveaxis(feeds[one.name], 0, one.axis) for one in ports}, rows
        )

    def call(self, feeds, rows):
        self.rows.append(rows)
        return self.function(**feeds)

    def run(self, items, padding):
        signature, (values, multiple, crops) = self.signature, padding
        rows = signature.filled(sum(item.rows for item in items))
        feeds = {}
        for port in signature.inputs:
            arrays = [one.tensors[port.name] for one in items if port.name in one.tensors]
            pads = {"pad_value": None if values is None else values[port.name]}
            if arrays and port.batched:
                feeds[port.name] = concatenate(
                    arrays, port, rows=rows, pad_multiple=multiple, **pads
                )
            elif arrays:
                feeds[port.name] = arrays[0]
        outputs = self.call(feeds, rows)
        padded = padded_shapes(items, signature, multiple) if crops else None
        apart = split_outputs(outputs, items, signature, rows=rows, crops=crops, padded=padded)
        return named_results(apart, signature.outputs)


def port(name, *shape, dtype="float32", axis=0, **more):
    """A port whose axes are lengths, names, or None; the first one is that of the batch, unless ``axis`` is another."""
    lengths = tuple(n if isinstance(n, int) else None for n in shape)
    names = tuple(None if isinstance(n, int) else n for n in shape)
    return Port(name, dtype, lengths, axis is not None, axis=axis or 0, names=names, **more)


class Options(BatchAxisOptions):
    """Those of an engine on the host."""

    output_device: str = "cpu"


X, Y = port("x", "n", 3), port("y", "n", 3)
RAGGED = port("x", "n", "t"), port("y", "n", "t")


class Runner:
    """A `RowRunner` that is warmed up, of the requests of a node with ``most`` rows a batch."""

    def __init__(self, function, inputs, outputs, *, most=8, about=(), **options):
        signature = Signature((*inputs,), (*outputs,), **dict(about))
        keys = choose_keys(signature, {})
        self.engine = Engine(function, signature)
        read = partial(read_item, signature=signature, keys=keys, read=host_array, takes_empty=True)
        context = headrace.InitContext(batch=headrace.InitContext.Batch(max=most))
        self.rows = RowRunner(self.engine, read, signature, keys, Options(**options), context)
        self.rows.warm_up(self.engine.outputs_of, bounded=True)
        self.engine.rows.clear()

    def outcomes(self, *requests):
        return self.rows.forward(requests) or [None] * len(requests)

    def results(self, *requests):
        batch = [dict(request) for request in requests]
        assert self.outcomes(*batch) == [None] * len(batch)
        return [request["result"] for request in batch]


def samples(*lengths):
    return [{"data": np.ones(length, F32)} for length in lengths]


def none_of(*shape, size=0):
    return {"data": np.zeros(shape, F32), "request_size": size}


def test_no_rows_give_no_rows_alone_and_among_others():
    weights = np.arange(12, dtype=F32).reshape(3, 4)
    runner = Runner(lambda x: [x @ weights], [X], [port("y", "n", 4)])
    none, sample = none_of(0, 3), {"data": ONES}
    more = {"data": np.arange(6, dtype=F32).reshape(2, 3), "request_size": 2}
    for batch in ([none], [none, none], [none, more, sample], [more, none], [more, none, more]):
        for request, result in zip(batch, runner.results(*batch), strict=True):
            np.testing.assert_array_equal(result, request["data"] @ weights)
            assert result.dtype == F32


@pytest.mark.parametrize("options", [{}, {"ragged": "pad"}])
def test_no_rows_share_a_batch_of_unequal_lengths(options):
    runner = Runner(lambda x: [x.sum(1, keepdims=True)], RAGGED[:1], [port("y", "n", 1)], **options)
    rows = [{"data": np.ones((1, length), F32), "request_size": 1} for length in (2, 7)]
    found = runner.results(rows[0], none_of(0, 5), rows[1])
    assert [one.tolist() for one in found] == [[[2]], [], [[7]]]
    assert found[1].shape == (0, 1)


def test_no_rows_of_texts_of_another_batch_axis_and_of_a_fixed_batch():
    texts = [port(name, "n", 2, dtype="str") for name in "xy"]
    none = {"data": np.zeros((0, 2), object), "request_size": 0}
    assert Runner(lambda x: [x], texts[:1], texts[1:]).results(none)[0].shape == (0, 2)
    across = [port(name, 3, "n", axis=1) for name in "xy"]
    some = {"data": np.ones((3, 2), F32), "request_size": 2}
    found = Runner(lambda x: [x], across[:1], across[1:]).results(some, none_of(3, 0))
    assert [one.shape for one in found] == [(3, 2), (3, 0)]
    fixed = Runner(lambda x: [-x], [port("x", 4, 3)], [port("y", 4, 3)], about={"rows": 4})
    rows = {"data": np.ones((2, 3), F32), "request_size": 2}
    assert [one.shape for one in fixed.results(none_of(0, 3), rows)] == [(0, 3), (2, 3)]
    assert fixed.engine.rows[-1] == 4


@pytest.mark.parametrize(
    ("shape", "size", "what"),
    [
        ((3, 4), 2, "request_size"),
        ((3, 4), 1, "request_size"),
        ((4,), 2, "request_size"),
        ((0, 4), 1, "request_size"),
        ((1, 4), 0, "request_size"),
        ((0, 5), 0, "wrong shape"),
        ((0, 4), -1, "request_size"),
    ],
    ids=str,
)
def test_rows_that_are_not_what_the_request_says_are_refused(shape, size, what):
    runner = Runner(lambda x: [x], [port("x", "n", 4)], [port("y", "n", 4)])
    good = {"data": np.ones(4, F32)}
    error, none = runner.outcomes(none_of(*shape, size=size), good)
    assert isinstance(error, InputError)
    assert what in f"{error.what} {error.key}"
    assert none is None
    (error,) = runner.outcomes(none_of(*shape, size=size))
    assert isinstance(error, InputError)


def test_inputs_of_one_request_are_there_and_have_the_axis_all_or_none():
    runner = Runner(
        lambda a, b: [a + b], [port("a", "n", 2), port("b", "n", 2)], [port("y", "n", 2)]
    )
    for more in ({"b": np.ones((1, 2), F32)}, {}):
        (error,) = runner.outcomes({"a": np.ones(2, F32), **more})
        assert error.key == "b"
    none = np.zeros((0, 2), F32)
    (error,) = runner.outcomes({"a": none, "b": np.ones((1, 2), F32), "request_size": 0})
    assert "the number of rows is not `request_size`" in str(error)


def test_each_result_has_memory_of_its_own():
    runner = Runner(lambda x: [x], [port("x", "n", 2)], [port("y", "n", 2)])
    batch = [{"data": np.full(2, k, F32)} for k in range(4)]
    found = runner.results(*batch)
    for array in found:
        owner = array if array.base is None else array.base
        assert getattr(owner, "nbytes", array.nbytes) == array.nbytes
        array += 100
    assert [one.tolist() for one in found] == [[100 + k] * 2 for k in range(4)]
    assert [one["data"].tolist() for one in batch] == [[k] * 2 for k in range(4)]


def test_requests_with_other_bytes_in_an_input_without_batch_axis_run_apart():
    by = port("by", axis=None)
    runner = Runner(lambda x, by: [x / by], [port("x", "n", 1), by], [port("y", "n", 1)])
    numbers = [2.0, 4.0, F32([1]), 2.0, F32(0), F32(-0.0), 2.0]
    batch = [{"x": np.ones(1, F32), "by": number} for number in numbers]
    with np.errstate(divide="ignore"):
        outcomes = runner.outcomes(*batch)
    assert [place for place, error in enumerate(outcomes) if error] == [2]
    assert outcomes[2].key == "by"
    found = [one["result"].tolist() for one in batch if "result" in one]
    assert found == [[0.5], [0.25], [0.5], [np.inf], [-np.inf], [0.5]]
    assert sorted(runner.engine.rows) == [1, 1, 1, 3]


@pytest.mark.parametrize("ragged", ["group", "refuse"])
def test_requests_are_cut_into_runs_of_as_many_rows_as_the_engine_takes(ragged):
    runner = Runner(lambda x: [-x], [X], [Y], about={"high_rows": 4}, ragged=ragged)
    rows = {"data": np.ones((3, 3), F32), "request_size": 3}
    found = runner.results(rows, rows, *[{"data": k * ONES} for k in range(6)])
    assert [one.tolist() for one in found[2:]] == [[-k] * 3 for k in range(6)]
    assert sum(runner.engine.rows) == 12
    assert max(runner.engine.rows) == 4


def test_a_run_of_one_row_refuses_no_shape_for_its_neighbours():
    """Each request is a run of its own, so that there is no first one whose shape the others must have."""
    runner = Runner(lambda x: [-x], RAGGED[:1], RAGGED[1:], about={"high_rows": 1}, ragged="refuse")
    assert [one.shape for one in runner.results(*samples(4, 5, 4, 6))] == [(4,), (5,), (4,), (6,)]
    whole = Runner(lambda x: [x.sum()], RAGGED[:1], [port("y", axis=None)], unbatched=["y"])
    assert [float(one) for one in whole.results(*samples(4, 5, 4))] == [4, 5, 4]
    assert whole.engine.rows == [1, 1, 1]


def test_an_output_without_the_rows_of_its_run_is_an_error_of_that_run():
    """A negative number in a row removes the row, which random numbers from 0 to 1 do not show."""
    runner = Runner(lambda x: [x[x.min(1) >= 0]], [port("x", "n", 2)], [port("y", "n", 2)])
    batch = [{"data": F32([k, -k])} for k in range(2)]
    with pytest.raises(BackendError, match=r"output 'y' is \[1, 2\] for a batch of 2 rows"):
        runner.outcomes(*batch)
    assert not any("result" in request for request in batch)


def test_a_whole_output_of_a_fixed_batch_is_computed_of_the_rows_of_one_request():
    outputs = [port("sum", axis=None), port("y", 3, 2)]
    runner = Runner(
        lambda x: [x.sum(), -x], [port("x", 3, 2)], outputs, about={"rows": 3}, unbatched=["sum"]
    )
    rows = np.arange(6, dtype=F32).reshape(3, 2)
    (result,) = runner.results({"data": rows, "request_size": 3})
    assert result["sum"] == 15
    np.testing.assert_array_equal(result["y"], -rows)
    for error in runner.outcomes(*({"data": row} for row in rows)):
        assert isinstance(error, InputError)
        assert error.what == "the model takes 3 rows at once"


def test_each_input_is_padded_with_its_own_value_and_outputs_are_cut_again():
    inputs = [port(name, "n", "t", dtype="int64") for name in ("ids", "mask")]
    lengths = (2, 4, 3)
    batch = [{"ids": np.full(n, 5), "mask": np.ones(n, np.int64)} for n in lengths]
    for crop, cut in ((None, lengths), ({}, (4, 4, 4))):
        seen = []
        runner = Runner(
            lambda ids, mask, seen=seen: seen.append((ids, mask)) or [ids[..., None]],
            inputs, [port("y", "n", "t", 1, dtype="int64")],
            ragged="pad", pad_value={"ids": 1}, crop=crop,
        )  # fmt: skip
        found = runner.results(*batch)
        assert [one[:, 0].tolist() for one in found] == [
            [5] * n + [1] * (length - n) for n, length in zip(lengths, cut, strict=True)
        ]
        for row, n in enumerate(lengths):
            assert seen[-1][0][row].tolist() == [5] * n + [1] * (4 - n)
            assert seen[-1][1][row].tolist() == [1] * n + [0] * (4 - n)


def test_inputs_that_differ_in_an_axis_of_one_name_are_not_padded_to_one_length():
    inputs = [port(name, "n", "w") for name in "ab"]
    for multiple in (1, 4):
        runner = Runner(
            lambda a, b: [a + b], inputs, [port("y", "n", "w")], ragged="pad", pad_multiple=multiple
        )
        sizes = [(3, 3), (3, 2), (2, 2)]
        batch = [{"a": np.ones(a, F32), "b": np.ones(b, F32)} for a, b in sizes]
        for requests, bad in ((batch, 1), ([dict(batch[1])], 0)):
            outcomes = runner.outcomes(*requests)
            assert [place for place, error in enumerate(outcomes) if error] == [bad]
            assert (outcomes[bad].key, outcomes[bad].expected) == ("b", "3, as in 'a'")


@pytest.mark.parametrize("names", [("image", "text"), (None, None)], ids=str)
def test_an_output_of_all_rows_against_all_is_refused_unless_one_side_is_shared(names):
    ports = [port("a", names[0], 4), port("b", names[1], 4)], [port("y", *names)]
    against = lambda a, b: [a @ b.T]  # noqa: E731
    with pytest.raises(SetupError, match=r"output '?y'? .* two batch axes") as caught:
        Runner(against, *ports)
    assert "max = 1" in caught.value.hint
    a, b = np.arange(4, dtype=F32), np.ones(4, F32)
    assert Runner(against, *ports, most=1).results({"a": a, "b": b})[0].tolist() == [6]
    shared = [ports[0][0], port("b", names[1], 4, axis=None)], ports[1]
    texts = np.stack([b, 2 * b, 3 * b])
    runner = Runner(against, *shared, unbatched=["b"])
    found = runner.results({"a": a, "b": texts}, {"a": 2 * a, "b": texts})
    assert [one.tolist() for one in found] == [[6, 12, 18], [12, 24, 36]]
    assert runner.engine.rows == [2]


# A batch axis that is not the first.


def test_samples_and_rows_around_a_batch_axis_that_is_not_the_first():
    """A state of two layers [2, n, 3] plus ``x`` in both, and the sums of both."""
    state = [port(name, 2, "n", 3, axis=1) for name in ("state", "next")]
    told = {"batch_axis": {"state": 1, "next": 1}}

    def step(x, state):
        return [(state + x).sum((0, 2)), state + x]

    runner = Runner(step, [X, state[0]], [port("y", "n"), state[1]], **told)
    xs, states = np.arange(6, dtype=F32).reshape(2, 3), np.arange(12, dtype=F32).reshape(2, 2, 3)
    alone = {"x": xs[0], "state": states[:, 0]}
    rows = {"x": xs, "state": states, "request_size": 2}
    for batch in ([alone, rows], [rows], [alone]):
        for request, found in zip(batch, runner.results(*batch), strict=True):
            wanted = request["state"] + request["x"]
            np.testing.assert_array_equal(found["next"], wanted)
            axes = (0, 2) if "request_size" in request else None
            np.testing.assert_array_equal(found["y"], wanted.sum(axes))
    (error,) = runner.outcomes({"x": ONES, "state": np.zeros((3, 2), F32)})
    assert error.key == "state"
    assert "float32 [2, 3] (one sample) or float32 [2, *, 3]" in str(error)


def test_padding_goes_around_a_batch_axis_that_is_not_the_first():
    x = port("x", "length", "n", 2, axis=1)
    batch = [{"data": np.full((length, 2), length, F32)} for length in (1, 3, 2)]
    for ragged, refused in (("pad", []), ("group", []), ("refuse", [1, 2])):
        runner = Runner(lambda x: [x.sum(0)], [x], [port("y", "n", 2)], ragged=ragged)
        requests = [dict(one) for one in batch]
        errors = runner.outcomes(*requests)
        assert [place for place, error in enumerate(errors) if error] == refused
        if not refused:
            assert [one["result"].tolist() for one in requests] == [[1, 1], [9, 9], [4, 4]]


# Padded samples, whose outputs are cut to what they are alone.


def convolution(kernel, stride, pads):
    def run(x):
        x = np.pad(x, ((0, 0), (pads, pads)))
        return [sliding_window_view(x, kernel, 1)[:, ::stride].sum(-1)]

    return run


def transposed(kernel, stride, pads):
    def run(x):
        steps = x.shape[1]
        out = np.zeros((len(x), (steps - 1) * stride + kernel), x.dtype)
        for step in range(steps):
            out[:, step * stride : step * stride + kernel] += x[:, step, None]
        return [out[:, pads : out.shape[1] - pads]]

    return run


LAYERS = {
    "4 of 4": convolution(4, 4, 0),
    "3 of 2": convolution(3, 2, 1),
    "10 of 5": convolution(10, 5, 0),
    "7 of 3": convolution(7, 3, 2),
    "transposed": transposed(4, 2, 1),
}


@pytest.mark.parametrize("axes", [("t", "frames"), (None, None), ("t", "t")], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_padded_sample_gets_as_many_frames_as_alone(layer, axes):
    ports = [port(name, "n", axis) for name, axis in zip("xy", axes, strict=True)]
    runner = Runner(LAYERS[layer], ports[:1], ports[1:], ragged="pad")
    requests = samples(*range(10, 22), 40, 63, 97, 200)
    for found, request in zip(runner.results(*requests), requests, strict=True):
        (alone,) = LAYERS[layer](request["data"][None])
        assert found.shape == alone[0].shape
    assert runner.engine.rows == [len(requests)]


def test_a_network_that_takes_multiples_alone_is_proven_at_multiples():
    """Pieces of 32, as the windows of an image network are."""
    ports = [port("x", "n", "t"), port("y", "n", "pieces")]
    pieces = lambda x: [x.reshape(len(x), -1, 32).max(2)]  # noqa: E731
    runner = Runner(pieces, ports[:1], ports[1:], ragged="pad", pad_multiple=32)
    assert [one.shape for one in runner.results(*samples(64, 160))] == [(2,), (5,)]
    assert runner.results(*samples(33, 64))[0].shape == (2,)


JOINED = {
    "twice": lambda x: [np.concatenate([x, x], 1)],
    "with its begin": lambda x: [np.concatenate([x, x[:, :1]], 1)],
    "in reverse": lambda x: [x[:, ::-1]],
    "behind a sum": lambda x: [np.concatenate([x, x.cumsum(1), x], 1)],
}


@pytest.mark.parametrize(
    ("dtype", "most"), [("float32", 4), ("float32", 2), ("float64", None), ("int64", 4)]
)
@pytest.mark.parametrize("name", JOINED)
def test_a_network_that_puts_padding_among_the_elements_of_a_row_is_refused(name, dtype, most):
    """Each gives a short row beside a longer one elements of its padding."""
    if (name, dtype) == ("with its begin", "int64"):
        pytest.skip("one whole number of 32 may be equal by chance")  # so it is not judged
    ports = [port("x", "n", "t", dtype=dtype)], [port("y", "n", "other", dtype=dtype)]
    with pytest.raises(SetupError, match=r"axis 1 of output 'y'.* padding beside a longer row"):
        Runner(JOINED[name], *ports, most=most, ragged="pad")
    assert Runner(JOINED[name], *ports, most=most, ragged="pad", crop={})


def square(x):
    """As many elements as the square of the longest row without its zeros."""
    longest = max(np.count_nonzero(row) for row in x)
    return [x.max(1, keepdims=True) + np.full((1, longest**2), 0.5, F32)]


@pytest.mark.parametrize(
    ("function", "axes", "says"),
    [
        # Height and width in one axis: rows of the padded picture lie between those of the sample.
        (lambda x: [x.reshape(len(x), -1)], ("h", "w"), "axis 1 of output 'y'.*two axes"),
        (square, ("t",), "axis 1 of output 'y'"),
    ],
    ids=["flattened picture", "square of the length"],
)
def test_an_output_that_follows_no_length_in_steps_is_refused_and_its_axis_named(
    function, axes, says
):
    ports = [port("x", "n", *axes)], [port("y", "n", "other")]
    with pytest.raises(SetupError, match=says) as caught:
        Runner(function, *ports, ragged="pad")
    assert "ragged = 'group'" in caught.value.hint
    Runner(function, *ports, ragged="pad", crop={})
    Runner(function, *ports, ragged="pad", most=1)


def test_lengths_that_the_model_refuses_are_no_proof_but_a_file_or_crop_is(tmp_path):
    """Pieces of 7: it takes neither 64, 65 nor any multiple of 32."""
    ports = [port("x", "n", "t")], [port("y", "n", "pieces")]
    pieces = lambda x: [x.reshape(len(x), -1, 7).max(2)]  # noqa: E731
    with pytest.raises(SetupError, match="cannot be proven") as caught:
        Runner(pieces, *ports, ragged="pad")
    assert "warm_up_input" in caught.value.hint
    np.save(tmp_path / "real.npy", np.ones(14, F32))
    for options in ({"warm_up_input": tmp_path / "real.npy"}, {"pad_multiple": 7}):
        found = Runner(pieces, *ports, ragged="pad", **options).results(*samples(7, 28))
        assert [one.shape for one in found] == [(1,), (4,)]
    told = Runner(pieces, *ports, ragged="pad", crop={"y": "x"})
    with pytest.raises(BackendError, match="does not follow input 'x'"):
        told.outcomes(*samples(7, 28))
