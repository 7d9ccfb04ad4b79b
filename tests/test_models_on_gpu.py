"""Models move between the CPU and a CUDA device while requests go on."""

import threading

import numpy as np
import pytest

from headrace_models import Models

pytestmark = [pytest.mark.gpu, pytest.mark.whole_device]
torch = pytest.importorskip("torch")
WIDTH = 4096
"""64 MiB of weights, so that a copy that stayed behind is seen in the device's free memory."""


class Wide(torch.nn.Module):
    """Ones times a weight of 1 / WIDTH: the mean of the row in every column, whatever the device."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.full((WIDTH, WIDTH), 1 / WIDTH))

    def forward(self, x):
        return x @ self.weights


def by_torch(_folder):
    return {"backend": "S[TorchModule,CpuTensor(numpy=true)]", "module": f"{__name__}:Wide"}


def by_onnxruntime(folder):
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper, save

    weights = numpy_helper.from_array(np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32), "w")
    shape = ["n", WIDTH]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "graph", ports[:1], ports[1:], [weights])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(folder / "wide.onnx"))
    return {"backend": "OnnxTensor", "model": str(folder / "wide.onnx")}


@pytest.mark.parametrize("made", [by_torch, by_onnxruntime])
def test_ten_moves_under_load_lose_no_request_and_no_memory(made, tmp_path):
    config = {**made(tmp_path), "device": "cpu", "max": 4}
    done, errors, stop = threading.Semaphore(0), [], threading.Event()

    def client(number):
        row = np.full((1, WIDTH), number, np.float32)
        while not stop.is_set() and not errors:
            try:
                result = models("wide", {"data": row})["result"]
                np.testing.assert_allclose(np.asarray(result).reshape(-1), number, rtol=1e-2)
            except Exception as error:
                errors.append(error)
            done.release()

    with Models({"wide": config}) as models:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        free = []
        try:
            for turn in range(10):
                models.move("wide", "cpu" if turn % 2 else "cuda:0")
                for _ in range(20):
                    assert done.acquire(timeout=60)
                if turn % 2:  # on the CPU again: what lay on the device is gone
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                    free.append(torch.cuda.mem_get_info()[0])
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert not errors
        assert models.status()["wide"]["state"] == "ready"
    # The first turn loads what the libraries keep for the process.
    assert free[0] - free[-1] < 32 * 2**20, [one / 2**20 for one in free]
