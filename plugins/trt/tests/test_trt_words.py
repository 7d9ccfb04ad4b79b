"""The words on a device of host memory: what is gathered, run, split, kept and given back."""

import gc
import threading

import numpy as np
import pytest
from onnx import TensorProto as T
from trt_expressions import ALONE, BOTH, GATHERED, PLAIN, SHORT, samples

from headrace.errors import BatchRangeError, InputError, RequestsFailed, SetupError
from headrace_trt import DeviceArray

pytestmark = pytest.mark.first("run TensorRT engines: on a device of host memory")

pytest.importorskip("onnxruntime")


@BOTH
def test_results_own_their_memory_and_all_is_given_back(device, plan, pipe, linear, backend):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, instance_num=2)
    inputs = samples(64)
    kept = [p({"data": sample})["result"] for sample in inputs]
    lists = p([{"data": sample} for sample in inputs])
    for sample, result, request in zip(inputs, kept, lists, strict=True):
        assert np.allclose(result, expected(sample))
        assert np.allclose(request["result"], expected(sample))
        assert result.base is None or result.base.nbytes == result.nbytes
    p.close()
    assert device.memory == {}
    assert device.pinned == {}
    assert device.streams == {}


@BOTH
def test_one_engine_for_all_instances_a_context_for_each(device, plan, pipe, linear, backend):
    model, _ = linear
    made = plan(model, {"x": ((1, 3), (1, 3), (2, 3))}, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, instance_num=4)
    (engine,) = device.engines
    assert sorted(context.profile for context in engine.contexts) == [0, 0, 1, 1]
    assert p.describe()["nodes"]["main"]["range"] == [1, 8]
    assert [r["result"].shape for r in p([{"data": s} for s in samples(20)])] == [(2,)] * 20


@pytest.mark.parametrize("backend", [SHORT, PLAIN], ids=["alone", "gathered"])
def test_a_profile_of_one_size_beside_another(device, plan, pipe, linear, backend):
    """The library may tell the batch axis as the length that the first profile fixes it to."""
    model, expected = linear
    profiles = [{"x": ((1, 3), (1, 3), (1, 3))}, {"x": ((2, 3), (8, 3), (8, 3))}]
    made = plan(model, *profiles, narrowed=True)
    p = pipe(backend=backend, model=str(made), max=8, instance_num=2)
    assert p.describe()["nodes"]["main"]["range"] == [1, 8]
    rows = np.stack(samples(8))
    assert np.allclose(p({"data": rows, "request_size": 8})["result"], expected(rows))
    assert np.allclose(p({"data": rows[0]})["result"], expected(rows[0]))


def test_an_instance_with_a_profile_of_one_row_takes_what_the_expression_takes(
    device, plan, pipe, linear
):
    """In a sequence an element of one row does not count: the instance may get more."""
    model, expected = linear
    profiles = [{"x": ((1, 3), (1, 3), (1, 3))}, {"x": ((2, 3), (8, 3), (8, 3))}]
    made = plan(model, *profiles, narrowed=True)
    rows = np.stack(samples(8))
    in_sequence = "IoC[LoadTensorrtEngine,TensorrtInferTensor;S[Identity,TensorrtInferTensor]]"
    for backend in ("TensorrtTensor", in_sequence):
        p = pipe(backend=backend, model=str(made), max=8)
        contexts = device.engines[-1].contexts
        assert np.allclose(p({"data": rows[0]})["result"], expected(rows[0]))
        assert [context.profile for context in contexts] == [0]
        for _ in range(2):
            assert np.allclose(p({"data": rows, "request_size": 8})["result"], expected(rows))
        assert [context.profile for context in contexts] == [0, 1]
        found = p([{"data": row} for row in rows])
        assert np.allclose([answer["result"] for answer in found], expected(rows))
        assert np.allclose(p({"data": rows[1]})["result"], expected(rows[1]))
        p.close()
    p = pipe(backend=SHORT, model=str(made), max=8)
    with pytest.raises(BatchRangeError):
        p({"data": rows, "request_size": 8})
    p.close()
    assert device.memory == {}
    assert device.streams == {}


@BOTH
def test_many_threads_each_get_their_own_answer(device, plan, pipe, linear, backend):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, instance_num=2)
    wrong = []

    def client(seed):
        own = np.random.default_rng(seed).standard_normal((10, 3)).astype(np.float32)
        answers = [p({"data": sample})["result"] for sample in own]
        if not np.allclose(answers, expected(own)):
            wrong.append(seed)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@BOTH
def test_an_array_on_the_device_is_never_padded(device, plan, pipe, image, backend):
    from fake_device import OnDevice

    model, expected = image
    made = plan(model, {"x": ((1, 3, 4, 4), (2, 3, 6, 6), (8, 3, 9, 9))})
    p = pipe(backend=backend, model=str(made), max=8, ragged="pad", crop={}, pad_value=0.5)
    random = np.random.default_rng(3)
    small, large = (random.standard_normal((3, n, n)).astype(np.float32) for n in (5, 8))
    requests = [{"data": OnDevice(device, a)} for a in (small, large)] + [{"data": small}]
    with pytest.raises(RequestsFailed) as caught:
        p(requests)
    first, second, third = caught.value.errors
    assert (second, third) == (None, None)
    assert "not padded" in str(first)
    assert "[3, 5, 5] on the device" in str(first)
    padded = np.full((3, 8, 8), 0.5, np.float32)
    padded[:, :5, :5] = small
    assert np.allclose(requests[1]["result"], expected(large), atol=1e-4)
    assert np.allclose(requests[2]["result"], expected(padded), atol=1e-4)
    alone = p({"data": OnDevice(device, small)})["result"]
    assert np.allclose(alone, expected(small), atol=1e-4)


@BOTH
def test_shapes_outside_of_the_profile_fail_alone_and_say_the_range(
    device, plan, pipe, image, backend
):
    model, _ = image
    made = plan(model, {"x": ((1, 3, 4, 4), (2, 3, 6, 6), (8, 3, 9, 9))})
    p = pipe(backend=backend, model=str(made), max=8)
    good, bad = (
        {"data": np.zeros((3, 4, 4), np.float32)},
        {"data": np.zeros((3, 4, 10), np.float32)},
    )
    with pytest.raises(RequestsFailed) as caught:
        p([good, bad])
    assert "float32 [3, 4..9, 4..9]" in str(caught.value.errors[1])
    assert good["result"].shape == (2, 4, 4)


@BOTH
def test_engines_of_a_fixed_batch(device, plan, pipe, save, backend):
    for rows in (1, 3):
        model = save(
            [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, [rows, 2])], [("y", T.FLOAT, [rows, 2])],
            name=f"fixed{rows}.onnx",
        )  # fmt: skip
        made = plan(model, {}, name=f"fixed{rows}.plan")
        p = pipe(backend=backend, model=str(made), max=rows, pad=True)
        results = p([{"data": np.float32([i, -i])} for i in range(4)])
        assert [r["result"].tolist() for r in results] == [[i, 0] for i in range(4)]


@BOTH
def test_an_output_without_batch_axis_is_computed_of_no_copies(device, plan, pipe, save, backend):
    """A batch below the least of the profile is filled up with copies of a row, which count in such an output."""
    model = save(
        [("Identity", ["x"], ["y"], {}), ("ReduceSum", ["x"], ["s"], {"keepdims": 1})],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2]), ("s", T.FLOAT, [1, 1])],
    )
    two, three = {"x": ((1, 2), (1, 2), (2, 2))}, {"x": ((3, 2), (3, 2), (8, 2))}
    p = pipe(backend=backend, model=str(plan(model, three)), max=8, pad=True)
    rows = np.ones((3, 2), np.float32)
    assert p({"data": rows, "request_size": 3})["result"]["s"].tolist() == [[6]]
    with pytest.raises(InputError, match="takes at least 3 rows at once"):
        p({"data": rows[0]})
    p.close()
    both = str(plan(model, two, three, name="both.plan"))
    with pytest.raises(SetupError, match="profile 1 takes 3 rows or more"):
        pipe(backend=backend, model=both, max=8, instance_num=2, unbatched=["s"])
    p = pipe(backend=backend, model=both, max=8, instance_num=2, outputs=["y"])
    assert p.describe()["nodes"]["main"]["range"] == [1, 8]


@BOTH
def test_outputs_whose_size_the_data_decide(device, plan, pipe, save, backend):
    model = save(
        [("NonZero", ["x"], ["z"], {})], [("x", T.FLOAT, ["n", 4])], [("z", T.INT64, [2, "k"])]
    )
    made = plan(model, {"x": ((1, 4), (1, 4), (1, 4))}, data_dependent=["z"])
    p = pipe(backend=backend, model=str(made), max=1)
    for row in ([0, 1, 0, 2], [0, 0, 0, 0], [1, 2, 3, 4]):
        x = np.float32(row)
        assert p({"data": x})["result"].tolist() == [list(n) for n in np.nonzero(x[None])]
    with pytest.raises(SetupError, match="CUDA graph"):
        pipe(backend=backend, model=str(made), max=1, cuda_graph=True)


@BOTH
@pytest.mark.parametrize("to", ["cpu", "device"])
@pytest.mark.parametrize("outputs", [None, ["y"], ["z"]])
def test_outputs_that_the_engine_writes_on_the_host(device, plan, pipe, save, backend, to, outputs):
    """Nobody reads or frees that memory before the stream is waited for, wanted or not."""
    model = save(
        [("Neg", ["x"], ["y"], {}), ("Relu", ["x"], ["z"], {})],
        [("x", T.FLOAT, ["n", 4096])],
        [("y", T.FLOAT, ["n", 4096]), ("z", T.FLOAT, ["n", 4096])],
    )
    made = plan(model, {"x": ((1, 4096), (4, 4096), (4, 4096))}, on_host=["z"])
    more = {} if outputs is None else {"outputs": outputs}
    p = pipe(backend=backend, model=str(made), max=4, output_device=to, **more)
    xs = [np.full(4096, i - 2, np.float32) for i in range(4)]
    for x, answer in zip(xs, p([{"data": x} for x in xs]), strict=True):
        found = answer["result"]
        found = found if isinstance(found, dict) else {outputs[0]: found}
        values = {k: v if isinstance(v, np.ndarray) else v.get() for k, v in found.items()}
        expected = {"y": -x, "z": np.maximum(x, 0)}
        assert all(np.array_equal(value, expected[name]) for name, value in values.items())


@BOTH
def test_arrays_on_the_device_are_taken_where_they_are(device, plan, pipe, linear, backend):
    from fake_device import OnDevice

    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, output_device="device")
    one, two = samples(2)
    (context,) = device.engines[0].contexts
    foreign = OnDevice(device, np.stack([one, two]))
    result = p({"data": foreign, "request_size": 2})["result"]
    assert context.addresses["x"] == foreign.pointer
    assert isinstance(result, DeviceArray)
    assert result.pointer == context.addresses["y"]
    assert np.allclose(result.get(), expected(np.stack([one, two])))
    both = p([{"data": OnDevice(device, one)}, {"data": two}])
    assert np.allclose(both[0]["result"].get(), expected(one))
    assert np.allclose(both[1]["result"].get(), expected(two))
    assert both[0]["result"].shape == (2,)
    turned = OnDevice(device, np.stack([one, two]), strides=(4, 8))
    with pytest.raises(InputError, match="C order"):
        p({"data": turned, "request_size": 2})


@BOTH
def test_results_on_the_device_outlive_later_batches_and_the_pipeline(
    device, plan, pipe, linear, backend
):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, output_device="device")
    inputs = samples(6)
    kept = [p({"data": sample})["result"] for sample in inputs]
    assert len({array.pointer for array in kept}) == 6
    again = kept.pop().pointer
    gc.collect()
    reused = p({"data": inputs[0]})["result"]
    assert reused.pointer == again
    p.close()
    for array, sample in zip(kept, inputs, strict=False):
        assert np.allclose(array.get(), expected(sample))
    del kept, array, reused
    gc.collect()
    assert device.memory == {}


def test_row_sizes_fill_a_run_up_and_drop_the_results(device, plan, pipe, save):
    """The network multiplies by the number of its rows, so the answers tell it."""
    nodes = [
        ("Shape", ["x"], ["shape"], {"start": 0, "end": 1}),
        ("Cast", ["shape"], ["rows"], {"to": int(T.FLOAT)}),
        ("Mul", ["x", "rows"], ["y"], {}),
    ]
    model = save(nodes, [("x", T.FLOAT, ["n", 3])], [("y", T.FLOAT, ["n", 3])])
    made = str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))}))
    rows = np.stack(samples(7))
    for backend in (ALONE, GATHERED):
        for more in ({}, {"cuda_graph": True}):
            p = pipe(backend=backend, model=made, max=8, row_sizes=[8, 4, 9], **more)
            for count, ran in ((1, 4), (4, 4), (5, 8), (7, 8)):
                answer = p({"data": rows[:count], "request_size": count})["result"]
                assert np.allclose(answer, rows[:count] * ran)
    p = pipe(backend=GATHERED, model=made, min=5, max=5, batching_timeout=10_000, row_sizes=[1, 8])
    answers = p([{"data": row} for row in rows[:5]])
    assert np.allclose([one["result"] for one in answers], rows[:5] * 8)
    with pytest.raises(SetupError, match="1 to 8"):
        pipe(backend=GATHERED, model=made, row_sizes=[9])
