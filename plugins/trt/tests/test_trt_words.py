"""The words on a device of host memory: what is gathered, run, split, kept and given back."""

import gc
import threading

import numpy as np
import pytest
from onnx import TensorProto as T

import headrace
from headrace.errors import BackendError, InputError, RequestsFailed, SetupError
from headrace_trt import DeviceArray

GATHERED = (
    "IoC[LoadTensorrtEngine,TensorrtInferTensor;CatSplit[TensorrtCat,S[Reflect[pre_processor,"
    "Identity],TensorrtInferTensor,Reflect[post_processor,Identity]],TensorrtSplit]]"
)

onnxruntime = pytest.importorskip("onnxruntime")
ALONE = "IoC[LoadTensorrtEngine,TensorrtInferTensor;TensorrtInferTensor]"
PLAIN = (
    "IoC[LoadTensorrtEngine,TensorrtInferTensor;"
    "CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
)
SHORT = "TensorrtInferTensor[LoadTensorrtEngine]"
BOTH = pytest.mark.parametrize("backend", [SHORT, GATHERED], ids=["alone", "gathered"])


@pytest.fixture
def linear(save):
    """``y = relu(x W)`` with ``x float32 [n, 3]``; gives the path and the function."""
    weights = np.float32([[1, -1], [0.5, 2], [0.25, 0.75]])
    path = save(
        [("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
        [("x", T.FLOAT, ["n", 3])],
        [("y", T.FLOAT, ["n", 2])],
        [("w", weights)],
    )
    return path, lambda x: np.maximum(np.asarray(x, np.float32) @ weights, 0)


@pytest.fixture
def image(save):
    """A convolution with dynamic height and width; gives the path and the function."""
    kernel = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32)
    path = save(
        [("Conv", ["x", "w"], ["y"], {"pads": [1, 1, 1, 1]})],
        [("x", T.FLOAT, ["n", 3, "h", "w"])],
        [("y", T.FLOAT, ["n", 2, "h", "w"])],
        [("w", kernel)],
    )
    session = onnxruntime.InferenceSession(str(path))
    return path, lambda x: session.run(None, {"x": x[None]})[0][0]


def samples(count, width=3):
    return list(np.random.default_rng(1).standard_normal((count, width)).astype(np.float32))


@BOTH
def test_a_batch_of_samples_rows_and_wrong_ones(device, plan, pipe, linear, backend):
    model, expected = linear
    p = pipe(backend=backend, model=str(plan(model, {"x": ((1, 3), (4, 3), (8, 3))})), max=8)
    one, two = samples(2)
    rows = np.stack([two, one, two])
    requests = [
        {"data": one},
        {"data": np.float64(one)},
        {"data": rows, "request_size": 3},
        {"data": one[:2]},
        {"data": two.tolist()},
        {"nothing": 1, "data": "text"},
    ]
    with pytest.raises(RequestsFailed) as caught:
        p(requests)
    errors = caught.value.errors
    assert [type(e) for e in errors] == [
        type(None), InputError, type(None), InputError, type(None), InputError,
    ]  # fmt: skip
    assert "float32 [3] (one sample) or float32 [1..8, 3]" in str(errors[1])
    assert errors[3].key == "data"
    assert np.allclose(requests[0]["result"], expected(one))
    assert requests[0]["result"].shape == (2,)
    assert np.allclose(requests[2]["result"], expected(rows))
    assert np.allclose(requests[4]["result"], expected(two))


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
@pytest.mark.parametrize("ragged", ["refuse", "pad", "group"])
def test_ragged_batches(device, plan, pipe, image, backend, ragged):
    model, expected = image
    made = plan(model, {"x": ((1, 3, 4, 4), (2, 3, 6, 6), (8, 3, 9, 9))})
    p = pipe(backend=backend, model=str(made), max=8, ragged=ragged, pad_multiple=2, pad_value=0.5)
    random = np.random.default_rng(3)
    sizes = [(4, 6), (5, 5), (4, 6), (9, 9)]
    images = [random.standard_normal((3, *size)).astype(np.float32) for size in sizes]
    requests = [{"data": image} for image in images]
    if ragged == "refuse":
        with pytest.raises(RequestsFailed) as caught:
            p(requests)
        assert [e is None for e in caught.value.errors] == [True, False, True, False]
        assert "ragged" in str(caught.value.errors[1])
    else:
        p(requests)
    for request, image in zip(requests, images, strict=True):
        if "result" not in request:
            continue
        wanted = image
        if ragged == "pad":  # 9 is the largest the profile takes, so 10 becomes 9
            wanted = np.full((3, 9, 9), 0.5, np.float32)
            wanted[:, : image.shape[1], : image.shape[2]] = image
        assert np.allclose(request["result"], expected(wanted), atol=1e-4)


@BOTH
def test_an_array_on_the_device_is_never_padded(device, plan, pipe, image, backend):
    from fake_device import OnDevice

    model, expected = image
    made = plan(model, {"x": ((1, 3, 4, 4), (2, 3, 6, 6), (8, 3, 9, 9))})
    p = pipe(backend=backend, model=str(made), max=8, ragged="pad", pad_value=0.5)
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
def test_several_inputs_and_outputs_by_name(device, plan, pipe, save, backend):
    model = save(
        [("Add", ["a", "b"], ["s"], {}), ("Mul", ["a", "k"], ["m"], {})],
        [("a", T.FLOAT, ["n", 2]), ("b", T.FLOAT, ["n", 2]), ("k", T.FLOAT, [])],
        [("s", T.FLOAT, ["n", 2]), ("m", T.FLOAT, ["n", 2])],
    )
    made = plan(model, {"a": ((1, 2), (4, 2), (8, 2)), "b": ((1, 2), (4, 2), (8, 2))})
    p = pipe(backend=backend, model=str(made), max=8, inputs={"b": "other"})
    assert sorted(p.describe()["nodes"]["main"]["range"]) == [1, 8]
    a, b = np.float32([1, 2]), np.float32([3, 4])
    requests = [{"data": None, "a": a * i, "other": b, "k": i % 2 + 1} for i in range(5)]
    for i, request in enumerate(p(requests)):
        assert request["result"]["s"].tolist() == (a * i + b).tolist()
        assert request["result"]["m"].tolist() == (a * i * (i % 2 + 1)).tolist()
    with pytest.raises(InputError) as caught:
        p({"data": None, "a": a, "k": 1})
    assert caught.value.key == "other"
    only = pipe(backend=backend, model=str(made), max=8, inputs={"b": "other"}, outputs=["m"])
    assert only({"data": None, "a": a, "other": b, "k": 3})["result"].tolist() == [3, 6]


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
def test_an_output_without_batch_axis_takes_one_request_at_a_time(
    device, plan, pipe, save, backend
):
    model = save(
        [("Identity", ["x"], ["y"], {}), ("ReduceSum", ["x"], ["s"], {"keepdims": 1})],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2]), ("s", T.FLOAT, [1, 1])],
    )
    made = plan(model, {"x": ((1, 2), (4, 2), (8, 2))})
    p = pipe(backend=backend, model=str(made), max=8)
    results = [r["result"] for r in p([{"data": np.float32([i, 1])} for i in range(4)])]
    assert [r["s"].tolist() for r in results] == [[[i + 1]] for i in range(4)]
    assert [r["y"].tolist() for r in results] == [[i, 1] for i in range(4)]


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
def test_arrays_on_the_device_are_taken_where_they_are(device, plan, pipe, linear, backend):
    from fake_device import OnDevice

    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, output_device="cuda")
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
    p = pipe(backend=backend, model=str(made), max=8, output_device="cuda")
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


@BOTH
def test_cuda_graphs_are_recorded_once_per_shape_and_give_equal_answers(
    device, plan, pipe, linear, backend
):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8, cuda_graph=True, cuda_graph_limit=2)
    (engine,) = device.engines
    for size in (2, 3, 2, 5, 3, 8, 2):
        inputs = np.stack(samples(size))
        result = p({"data": inputs, "request_size": size})["result"]
        assert np.allclose(result, expected(inputs))
    before, launches = len(engine.contexts), device.launches
    inputs = np.stack(samples(2))
    assert np.allclose(p({"data": inputs, "request_size": 2})["result"], expected(inputs))
    assert len(engine.contexts) == before
    assert device.launches == launches + 1
    p.close()
    assert device.memory == {}


@BOTH
def test_instances_that_share_scratch_memory_run_in_turn(device, plan, pipe, linear, backend):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=2, instance_num=3, context_memory="shared")
    contexts = device.engines[0].contexts
    assert {context.strategy for context in contexts} == {"USER_MANAGED"}
    assert len({context.memory for context in contexts}) == 1
    inputs = samples(12)
    for request, sample in zip(p([{"data": s} for s in inputs]), inputs, strict=True):
        assert np.allclose(request["result"], expected(sample))
    p.close()
    assert device.memory == {}


@BOTH
def test_out_of_memory_fails_the_batch_and_the_instance_goes_on(device, plan, pipe, image, backend):
    model, _ = image
    made = plan(model, {"x": ((1, 3, 4, 4), (1, 3, 4, 4), (4, 3, 9, 9))})
    p = pipe(backend=backend, model=str(made), max=4)
    device.fail_next = 2
    with pytest.raises(BackendError, match="made to fail"):
        p({"data": np.zeros((3, 5, 5), np.float32)})
    assert p({"data": np.zeros((3, 5, 5), np.float32)})["result"].shape == (2, 5, 5)
    assert p.ready


@BOTH
def test_a_lost_device_takes_the_instance_out_of_service(device, plan, pipe, linear, backend):
    model, _ = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8)
    device.fail_next = 700
    with pytest.raises(headrace.errors.InstanceLostError, match="CUDA context"):
        p({"data": samples(1)[0]})
    assert not p.ready
    p.reload("main", {"output_device": "cuda"})
    assert p.ready
    assert p({"data": samples(1)[0]})["result"].shape == (2,)


def test_ten_reloads_leave_no_memory_behind(device, plan, pipe, linear):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=GATHERED, model=str(made), max=8, instance_num=2)
    sample = samples(1)[0]
    p({"data": sample})
    before = len(device.memory)
    for turn in range(10):
        p.reload("main", {"cuda_graph": turn % 2 == 0})
        assert np.allclose(p({"data": sample})["result"], expected(sample))
    p({"data": sample})
    p.reload("main", {"cuda_graph": False})
    p({"data": sample})
    assert len(device.memory) <= before


def test_what_stands_between_gathering_and_splitting_sees_the_batch(device, plan, pipe, linear):
    model, expected = linear
    seen = []

    @headrace.register("TrtTestHalf", replace=True)
    class Half(headrace.Backend):
        max = None

        def forward(self, batch):
            for request in batch:
                seen.append((type(request["data"]).__name__, request["request_size"]))
                data = request["data"]
                data = data.get() if hasattr(data, "get") else data
                request["result"] = data / 2

    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    options = {"pre_processor": "TrtTestHalf", "post_processor": "TrtTestHalf"}
    p = pipe(backend=GATHERED, model=str(made), max=8, **options)
    inputs = samples(4)
    for request, sample in zip(p([{"data": s} for s in inputs]), inputs, strict=True):
        assert np.allclose(request["result"], expected(sample / 2) / 2)
    assert seen[0][0] == "DeviceArray"
    assert seen[1][0] == "ndarray"
    assert sum(size for kind, size in seen if kind == "ndarray") == 4


def test_what_the_model_takes_is_known_behind_it(device, plan, pipe, linear):
    model, _ = linear
    seen = []

    @headrace.register("TrtTestInputs", replace=True)
    class Inputs(headrace.Backend):
        max = None

        def init(self, options, context):
            seen.append(context.scope.get("inputs"))

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    pipe(backend=GATHERED, model=str(made), max=8, pre_processor="TrtTestInputs")
    assert seen == [{"x": {"dtype": "float32", "shape": [None, 3]}}]


def test_words_in_the_wrong_place_say_where_they_belong(device, plan, pipe, linear):
    made = str(plan(linear[0], {"x": ((1, 3), (4, 3), (8, 3))}))
    with pytest.raises(SetupError, match="no engine before it") as caught:
        pipe(backend="TensorrtInferTensor")
    assert "IoC[Onnx2Tensorrt" in caught.value.hint
    with pytest.raises(SetupError, match="belongs behind"):
        pipe(backend="TensorrtCat")
    p = pipe(backend="LoadTensorrtEngine", model=made)
    with pytest.raises(BackendError, match="cannot be called"):
        p({"data": 1})
    twice = f"S[{ALONE},IoC[TensorrtInferTensor,Identity;Identity]]"
    with pytest.raises(SetupError, match="no engine before it"):
        pipe(backend=twice, model=made)
    both = "S[TensorrtInferTensor[LoadTensorrtEngine],TensorrtInferTensor[LoadTensorrtEngine({})]]"
    pipe(backend=both.format("trust_engine=true"), model=made)
    with pytest.raises(SetupError, match="Identity brings no engine"):
        pipe(backend="TensorrtInferTensor[Identity]")
    with pytest.raises(SetupError, match="cuda:3"):
        pipe(backend=ALONE, model=made, device="cuda:3")
    with pytest.raises(SetupError, match="no device of TensorRT"):
        pipe(backend=ALONE, model=made, device="cpu")


def test_two_engines_in_one_node_do_not_meet(device, plan, pipe, linear, save):
    model, expected = linear
    one = plan(model, {"x": ((1, 3), (4, 3), (8, 3))}, name="one.plan")
    other = save(
        [("Neg", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])],
        name="neg.onnx",
    )  # fmt: skip
    two = plan(other, {"x": ((1, 2), (4, 2), (8, 2))}, name="two.plan")
    word = 'IoC[LoadTensorrtEngine("{}"),TensorrtInferTensor;TensorrtInferTensor]'
    p = pipe(backend=f"S[{word.format(one)},{word.format(two)}]", max=8)
    sample = samples(1)[0]
    assert np.allclose(p({"data": sample})["result"], -expected(sample))
    assert len(device.engines) == 2
