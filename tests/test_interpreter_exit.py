"""The interpreter ends in the middle of a batch of real onnxruntime: no abort, the right status."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

PROGRAM = """
import sys
import threading
import time

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

import headrace
import headrace._process

WIDTH, TIMES, BACKEND, ENDS = 256, int(sys.argv[1]), sys.argv[2], sys.argv[3]
if len(sys.argv) > 4:
    headrace._process.EXIT_S = float(sys.argv[4])


def value(name, kind, shape):
    return h.make_tensor_value_info(name, kind, shape)


def endless():
    body = h.make_graph(
        [h.make_node("MatMul", ["a", "w"], ["b"]), h.make_node("Identity", ["c"], ["d"])],
        "body",
        [value("i", T.INT64, []), value("c", T.BOOL, []), value("a", T.FLOAT, [None, WIDTH])],
        [value("d", T.BOOL, []), value("b", T.FLOAT, [None, WIDTH])],
    )
    weights = np.zeros((WIDTH, WIDTH), np.float32).tobytes()
    graph = h.make_graph(
        [h.make_node("Loop", ["times", "go", "x"], ["y"], body=body)],
        "graph",
        [value("x", T.FLOAT, [None, WIDTH])],
        [value("y", T.FLOAT, [None, WIDTH])],
        [
            h.make_tensor("w", T.FLOAT, [WIDTH, WIDTH], weights, raw=True),
            h.make_tensor("times", T.INT64, [], [TIMES]),
            h.make_tensor("go", T.BOOL, [], [True]),
        ],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    model.ir_version = 8
    return model.SerializeToString()


began = threading.Event()


class Long(headrace.Backend):
    def init(self, options, context):
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            endless(), settings, providers=["CPUExecutionProvider"]
        )

    def forward(self, batch):
        began.set()
        for request in batch:
            request["result"] = self.session.run(None, {"x": request["data"]})


class LongOwn(Long):
    owns_thread = True


headrace.register("Long", Long)
headrace.register("LongOwn", LongOwn)
pipe = headrace.pipe({"backend": BACKEND})
request = {"data": np.zeros((64, WIDTH), np.float32)}
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


def end(times, backend, ends, *exit_s):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, (times, backend, ends, *exit_s))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.stdout == "before the end\n", run.stderr
    return run.returncode


@pytest.mark.parametrize("backend", ["Long", "LongOwn"])
@pytest.mark.parametrize(("ends", "status"), [("plain", 0), ("status", 3), ("waiting", 0)])
def test_a_batch_that_ends_in_time_is_waited_for(backend, ends, status):
    assert end(3000, backend, ends, 200) == status


@pytest.mark.parametrize("backend", ["Long", "LongOwn"])
@pytest.mark.parametrize(
    ("ends", "status"), [("plain", 0), ("status", 3), ("error", 1), ("waiting", 0)]
)
def test_a_batch_that_does_not_end_is_left_with_the_status_kept(backend, ends, status):
    assert end(10_000_000, backend, ends, 0.5) == status


@pytest.mark.parametrize("backend", ["Long", "LongOwn"])
def test_a_batch_that_ends_while_the_interpreter_ends_does_not_abort_it(backend):
    assert end(3000, backend, "slowly", 0.01) == 3


@pytest.mark.stress
def test_it_is_left_when_nobody_says_how_long_to_wait():
    assert end(10_000_000, "Long", "plain") == 0
