"""The work of the JPEG benchmarks: pictures, networks, and the ways to go from one to the other.

`benchmarks.jpeg_onnx` says what each side is. All use `tensor_of`, or headrace-cv's same functions
of OpenCV, and ONNX Runtime with one thread per call.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from benchmarks.load import usable_cpus

import headrace

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Side = Callable[[bytes], int]
    ListSide = Callable[[list[bytes]], list[int]]

SIDE = 224
CLASSES = 1000
WIDTHS = {"light": 1, "heavy": 3}
MAXIMA = (1, 4, 8)
BATCHERS = (
    ("batcher, clients decode, max 1", 1, False),
    ("batcher, clients decode, max 8", 8, False),
    ("batcher, threads decode, max 1", 1, True),
    ("batcher, threads decode, max 8", 8, True),
)
LIST_INSTANCES = 2


def make_network(path: Path, width: int) -> float:
    """Write a classifier of five strided convolutions; give its millions of multiply-adds."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(7)
    nodes, weights, macs = [], [], 0
    name, channels, size = "image", 3, SIDE
    for layer in range(5):
        out, size = 16 * 2**layer * width, size // 2
        scale = (2 / (9 * channels)) ** 0.5
        kernel = rng.normal(0, scale, (out, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(
            helper.make_node(
                "Conv", [name, f"w{layer}"], [f"c{layer}"], strides=[2, 2], pads=[1, 1, 1, 1]
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        macs += kernel.size * size * size
        name, channels = f"r{layer}", out
    head = rng.normal(0, 0.05, (channels, CLASSES)).astype(np.float32)
    weights.append(numpy_helper.from_array(head, "head"))
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["pool"]))
    nodes.append(helper.make_node("Flatten", ["pool"], ["flat"]))
    nodes.append(helper.make_node("MatMul", ["flat", "head"], ["scores"]))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return (macs + head.size) / 1e6


# The sides written by hand.


def tensor_of(file: bytes) -> NDArray[np.float32]:
    """Decode, resize and make a planar tensor with a batch axis, the fast way."""
    image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("no picture")
    small = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    tensor = np.empty((1, 3, SIDE, SIDE), np.float32)
    for channel, plane in enumerate(cv2.split(small)):
        tensor[0, channel] = plane
    return tensor


def session_of(model: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def alone(model: Path) -> Side:
    session = session_of(model)

    def call(file: bytes) -> int:
        (scores,) = session.run(None, {"image": tensor_of(file)})
        return int(scores[0].argmax())

    return call


class Job:
    """One request of the hand-written batcher: a lock that is released when it is answered."""

    __slots__ = ("answer", "done", "item")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.answer: Any = None
        self.done = threading.Lock()
        self.done.acquire()


class Batcher:
    """Threads that take up to ``most`` waiting jobs from one queue, and run the network on them."""

    def __init__(self, model: Path, most: int, threads: int, *, decodes: bool) -> None:
        self.session = session_of(model)
        self.most, self.decodes = most, decodes
        self.inbox: SimpleQueue[Job | None] = SimpleQueue()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def __call__(self, file: bytes) -> int:
        """Send one picture and wait for its class."""
        return self.wait(self.send(file))

    def all(self, files: list[bytes]) -> list[int]:
        """Send many pictures and wait for all classes."""
        jobs = [self.send(file) for file in files]
        return [self.wait(job) for job in jobs]

    def send(self, file: bytes) -> Job:
        """Put one picture into the queue of the threads."""
        job = Job(file if self.decodes else tensor_of(file))
        self.inbox.put(job)
        return job

    def wait(self, job: Job) -> int:
        """Wait for the class of one picture."""
        job.done.acquire()
        if isinstance(job.answer, Exception):
            raise job.answer
        return int(job.answer.argmax())

    def work(self) -> None:
        """Answer batches until closed; runs in each thread."""
        while (job := self.inbox.get()) is not None:
            batch = [job]
            while len(batch) < self.most:
                try:
                    more = self.inbox.get_nowait()
                except Empty:
                    break
                if more is None:
                    self.inbox.put(None)
                    break
                batch.append(more)
            self.answer(batch)

    def answer(self, batch: list[Job]) -> None:
        """Run one batch and wake those who wait for it."""
        try:
            tensors = [tensor_of(job.item) if self.decodes else job.item for job in batch]
            whole = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
            (answers,) = self.session.run(None, {"image": whole})
        except Exception as error:  # noqa: BLE001 - goes to those who wait
            answers = [error] * len(batch)
        for job, scores in zip(batch, answers, strict=True):
            job.answer = scores
            job.done.release()

    def close(self) -> None:
        """End the threads."""
        for _ in self.threads:
            self.inbox.put(None)
        for thread in self.threads:
            thread.join()


# The side of headrace.


def pipeline(model: Path, most: int, instances: int | str) -> headrace.Pipeline:
    return headrace.pipe(
        {
            "backend": "S[DecodeMat,ResizeMat,Mat2Tensor,OnnxTensor]",
            "resize_h": SIDE,
            "resize_w": SIDE,
            "model": str(model),
            "max": most,
            "instance_num": instances,
        }
    )


def through(pipe: headrace.Pipeline) -> Side:
    def call(file: bytes) -> int:
        request = {"data": file}
        pipe(request)
        return int(request["result"].argmax())

    return call


def sides_of(model: Path) -> tuple[dict[str, Side], list[Callable[[], None]]]:
    """Return all sides by name, and an object that closes them."""
    threads = usable_cpus()
    sides: dict[str, Side] = {"alone": alone(model)}
    closing = []
    for name, most, decodes in BATCHERS:
        batcher = Batcher(model, most, threads, decodes=decodes)
        sides[name] = batcher
        closing.append(batcher.close)
    for most in MAXIMA:
        pipe = pipeline(model, most, "auto")
        sides[f"headrace, max {most}"] = through(pipe)
        closing.append(pipe.close)
    return sides, closing


def list_sides_of(model: Path) -> tuple[dict[str, ListSide], list[Callable[[], None]]]:
    """Return all ways to answer a list by name, and an object that closes them."""
    one = alone(model)
    pool = ThreadPoolExecutor(LIST_INSTANCES)

    def in_this_thread(files: list[bytes]) -> list[int]:
        return [one(file) for file in files]

    def halves(files: list[bytes]) -> list[int]:
        parts = [files[k::LIST_INSTANCES] for k in range(LIST_INSTANCES)]
        classes = [0] * len(files)
        for k, answers in enumerate(pool.map(in_this_thread, parts)):
            classes[k::LIST_INSTANCES] = answers
        return classes

    sides: dict[str, ListSide] = {"alone": in_this_thread, "halves": halves}
    closing: list[Callable[[], None]] = [pool.shutdown]
    for name, most, decodes in BATCHERS:
        batcher = Batcher(model, most, LIST_INSTANCES, decodes=decodes)
        sides[name] = batcher.all
        closing.append(batcher.close)
    for most in MAXIMA:
        pipe = pipeline(model, most, LIST_INSTANCES)
        sides[f"headrace, max {most}"] = list_through(pipe)
        closing.append(pipe.close)
    return sides, closing


def list_through(pipe: headrace.Pipeline) -> ListSide:
    def call(files: list[bytes]) -> list[int]:
        requests = [{"data": file} for file in files]
        pipe(requests)
        return [int(request["result"].argmax()) for request in requests]

    return call
