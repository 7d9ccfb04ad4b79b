"""The interpreter ends in the middle of a batch of real onnxruntime: no abort, the right status."""

from __future__ import annotations

import sys

import pytest
from processes import run_process

pytestmark = pytest.mark.slow

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

PROGRAM = """
import sys
import threading
import time

import numpy as np

import headrace
import headrace._run.process

MODEL, BACKEND, ENDS = sys.argv[1:4]
if len(sys.argv) > 4:
    headrace._run.process.EXIT_S = float(sys.argv[4])


began = threading.Event()


class Long(headrace.Backend):
    def init(self, options, context):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            MODEL, settings, providers=["CPUExecutionProvider"]
        )

    def forward(self, batch):
        began.set()
        for request in batch:
            request["result"] = self.session.run(None, {"x": request["data"]})


class LongOwn(Long):
    owns_thread = True


class Asleep(headrace.Backend):
    def forward(self, batch):
        began.set()
        threading.Event().wait()


headrace.register("Long", Long)
headrace.register("LongOwn", LongOwn)
headrace.register("Asleep", Asleep)
pipe = headrace.pipe({"backend": BACKEND})
request = {"data": np.zeros((64, 256), np.float32)}
if ENDS == "waiting":
    threading.Thread(target=pipe, args=(request,), daemon=True).start()
else:
    pipe.submit(request)
began.wait()
print("before the end")
if ENDS == "slowly":

    class Slow:
        def __del__(self, sleep=time.sleep, seconds=4.0):
            sleep(seconds)

    # Deleted when only the main thread may still enter the interpreter.
    sys.modules["slow"] = Slow()
if ENDS in ("status", "slowly"):
    sys.exit(3)
if ENDS == "error":
    raise ValueError("nobody catches this")
"""


def save(path, times, width=256):
    """Write a network that multiplies ``float32 [n, width]`` with a matrix so many times."""
    import numpy as np
    import onnx
    from onnx import TensorProto as T
    from onnx import helper as h

    def value(name, kind, shape):
        return h.make_tensor_value_info(name, kind, shape)

    body = h.make_graph(
        [h.make_node("MatMul", ["a", "w"], ["b"]), h.make_node("Identity", ["c"], ["d"])],
        "body",
        [value("i", T.INT64, []), value("c", T.BOOL, []), value("a", T.FLOAT, [None, width])],
        [value("d", T.BOOL, []), value("b", T.FLOAT, [None, width])],
    )
    weights = np.zeros((width, width), np.float32).tobytes()
    graph = h.make_graph(
        [h.make_node("Loop", ["times", "go", "x"], ["y"], body=body)],
        "graph",
        [value("x", T.FLOAT, [None, width])],
        [value("y", T.FLOAT, [None, width])],
        [
            h.make_tensor("w", T.FLOAT, [width, width], weights, raw=True),
            h.make_tensor("times", T.INT64, [], [times]),
            h.make_tensor("go", T.BOOL, [], [True]),
        ],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A network that takes a moment."""
    path = tmp_path_factory.mktemp("models") / "long.onnx"
    save(path, 3000)
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A network that takes hours."""
    path = tmp_path_factory.mktemp("models") / "endless.onnx"
    save(path, 10_000_000)
    return path


def end(model, backend, ends, *exit_s):
    run = run_process(
        [sys.executable, "-c", PROGRAM, *map(str, (model, backend, ends, *exit_s))], timeout=240
    )
    assert run.stdout == "before the end\n", run.stderr
    return run.returncode


@pytest.mark.parametrize("backend", ["Long", "LongOwn"])
@pytest.mark.parametrize(("ends", "status"), [("status", 3), ("waiting", 0)])
def test_a_batch_that_ends_in_time_is_waited_for(long, backend, ends, status):
    assert end(long, backend, ends, 200) == status


@pytest.mark.parametrize("backend", ["Long", "LongOwn"])
@pytest.mark.parametrize(("ends", "status"), [("status", 3), ("error", 1), ("waiting", 0)])
def test_a_batch_that_does_not_end_is_left_with_the_status_kept(endless, backend, ends, status):
    assert end(endless, backend, ends, 0.2) == status


@pytest.mark.parametrize("backend", ["Long", "LongOwn"])
def test_a_batch_that_ends_while_the_interpreter_ends_does_not_abort_it(long, backend):
    assert end(long, backend, "slowly", 0.01) == 3


@pytest.mark.stress
def test_it_is_left_when_nobody_says_how_long_to_wait():
    """The batch uses no processor meanwhile: those above compute while they are left."""
    assert end("no model", "Asleep", "plain") == 0
