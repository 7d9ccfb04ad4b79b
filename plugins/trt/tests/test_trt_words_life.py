"""The words over time on a device of host memory: graphs, scratch memory, errors, neighbours."""

import contextlib
import gc
import threading

import numpy as np
import pytest
from onnx import TensorProto as T
from trt_expressions import ALONE, BOTH, GATHERED, SHORT, samples

import headrace
from headrace.errors import BackendError, InputError, SetupError

pytest.importorskip("onnxruntime")


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


def test_results_can_be_read_while_another_shape_is_recorded(device, plan, pipe, linear):
    """A reader's copy goes to the instance's stream; on a stream that records it would become part of the graph."""
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(
        backend="TensorrtTensor", model=str(made), max=8, cuda_graph=True, output_device="device"
    )
    rows = np.stack(samples(3))
    first = p({"data": rows[0]})["result"]
    begin, read = device.begin_capture, []

    def begin_and_read(stream):
        begin(stream)
        reader = threading.Thread(target=lambda: read.append(first.get().copy()))
        reader.start()
        reader.join()

    device.begin_capture = begin_and_read
    for _ in range(2):
        found = p({"data": rows, "request_size": 3})["result"].get()
        assert np.allclose(found, expected(rows))
    assert len(read) == 1
    assert np.allclose(read[0], expected(rows[0]))


def test_an_instance_keeps_its_stream_until_no_reader_uses_it(device, plan, pipe, linear):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend="TensorrtTensor", model=str(made), output_device="device")
    (one,) = samples(1)
    result = p({"data": one})["result"]
    stream = result._kind.stream
    alive = []

    class Lock(contextlib.AbstractContextManager):
        """Notes at entry and exit whether the stream is there."""

        def __enter__(self):
            alive.append(stream.handle in device.streams)

        def __exit__(self, *_):
            alive.append(stream.handle in device.streams)

    stream.lock = Lock()
    assert np.allclose(result.get(), expected(one))
    assert alive == [True, True]
    p.close()
    assert alive == [True, True, True, False]
    assert np.allclose(result.get(), expected(one))


@pytest.mark.parametrize("graph", [False, True])
@BOTH
def test_values_that_decide_shapes_are_part_of_the_shape(device, plan, pipe, save, backend, graph):
    model = save(
        [("Expand", ["x", "size"], ["y"], {})],
        [("x", T.FLOAT, ["n", 1]), ("size", T.INT64, [2])],
        [("y", T.FLOAT, ["n", "k"])],
    )
    profile = {"x": ((1, 1), (1, 1), (1, 1)), "size": ((1, 1), (1, 4), (1, 8))}
    made = plan(model, profile, on_host=["size"])
    p = pipe(backend=backend, model=str(made), cuda_graph=graph)
    for turn, width in enumerate((8, 3, 8, 5, 3)):
        request = {"x": np.float32([[turn]]), "size": np.int64([1, width])}
        assert p(request)["result"].tolist() == [[turn] * width]
    for size in ([1, 9], [1, 0]):
        with pytest.raises(InputError, match="outside of the range") as caught:
            p({"x": np.float32([[1]]), "size": size})
        assert caught.value.key == "size"
    if graph:
        launches = device.launches
        p({"x": np.float32([[1]]), "size": np.int64([1, 5])})
        assert device.launches == launches + 1  # recorded before


def test_requests_of_one_instance_that_need_two_contexts_share_its_scratch_memory(
    device, plan, pipe, linear
):
    model, expected = linear
    narrow, wide = {"x": ((1, 3), (1, 3), (1, 3))}, {"x": ((1, 3), (8, 3), (8, 3))}
    made = plan(model, narrow, wide)
    p = pipe(
        backend=f"S[Identity,{SHORT}]",
        model=str(made),
        max=8,
        batching_timeout=10_000,
        batch_sizes=[4],
        context_memory="shared",
        output_device="device",
    )
    rows = np.stack(samples(4))
    one, three = {"data": rows[0]}, {"data": rows[1:], "request_size": 3}
    p([one, three], timeout=60)
    assert np.allclose(one["result"].get(), expected(rows[0]))
    assert np.allclose(three["result"].get(), expected(rows[1:]))


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
def test_no_memory_for_an_output_whose_size_the_data_decide(
    device, plan, pipe, save, backend, tmp_path
):
    np.save(tmp_path / "zeros.npy", np.zeros(400, np.float32))  # of which the warm-up keeps nothing
    ports = [("x", T.FLOAT, ["n", 400])], [("z", T.INT64, [2, "k"])]
    model = save([("NonZero", ["x"], ["z"], {})], *ports)
    made = plan(model, {"x": ((1, 400), (1, 400), (1, 400))}, data_dependent=["z"])
    zeros = str(tmp_path / "zeros.npy")
    p = pipe(backend=backend, model=str(made), max=1, warm_up_input=zeros)
    whole = device.most_bytes
    device.most_bytes -= device.memory_bytes()[0]
    with pytest.raises(BackendError, match="out of memory") as caught:
        p({"data": np.ones(400, np.float32)})
    assert "Lower `max`" in caught.value.hint
    device.most_bytes = whole
    assert p({"data": np.ones(400, np.float32)})["result"].shape == (2, 400)


@BOTH
def test_a_lost_device_takes_the_instance_out_of_service(device, plan, pipe, linear, backend):
    model, _ = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    p = pipe(backend=backend, model=str(made), max=8)
    device.fail_next = 700
    with pytest.raises(headrace.errors.InstanceLostError, match="CUDA context"):
        p({"data": samples(1)[0]})
    assert not p.ready
    p.close()
    again = pipe(backend=backend, model=str(made), max=8)
    assert again({"data": samples(1)[0]})["result"].shape == (2,)


def test_ten_pipelines_one_after_another_leave_no_memory_behind(device, plan, pipe, linear):
    model, expected = linear
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    config = {"backend": GATHERED, "model": str(made), "max": 8, "instance_num": 2}
    sample = samples(1)[0]
    old = pipe(**config)
    for turn in range(10):
        new = pipe(**config, cuda_graph=turn % 2 == 0)
        old.close()
        assert np.allclose(new({"data": sample})["result"], expected(sample))
        old = new
    old.close()
    assert device.memory == {}


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
            seen.append(context.store.scope.get("inputs"))

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
    with pytest.raises(SetupError, match="TensorRT cannot run on the device"):
        pipe(backend=ALONE, model=made, device="cpu")


@pytest.mark.parametrize(
    "options", [{}, {"cuda_graph": True}, {"context_memory": "shared"}, {"output_device": "cpu"}]
)
def test_no_thread_begins_to_use_the_first_device_for_an_engine_on_the_second(
    device, plan, pipe, linear, caplog, options
):
    """The fake device refuses calls for a thing of one device in a thread on another, as this thread is."""
    model, expected = linear
    device.devices = 2
    made = plan(model, {"x": ((1, 3), (4, 3), (8, 3))})
    before = set(device.homes)
    settings = {"output_device": "device", **options}
    p = pipe(backend=GATHERED, model=str(made), max=8, instance_num=2, device="cuda:1", **settings)
    inputs = samples(4)
    results = [one["result"] for one in p([{"data": sample} for sample in inputs])]
    assert {device.homes[one] for one in set(device.homes) - before} == {1}
    for result, sample in zip(results[:2], inputs, strict=False):
        read = result.get() if settings["output_device"] == "device" else result
        assert np.allclose(read, expected(sample))
    del results[:2]
    p.close()
    del results, result
    gc.collect()
    assert (device.current, set(device.homes), caplog.records) == (0, before, [])


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
