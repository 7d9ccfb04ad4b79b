"""JPEG to class on the CPU: headrace beside the best code one would write by hand.

One request is the bytes of a JPEG picture (640 x 480): decode, resize to 224 x 224, to a planar
float tensor, through a convolutional network with ONNX Runtime. The same libraries, the same
functions of OpenCV, one thread inside each call; the sides differ only in who runs what:

- ``alone``: every client does all of it in its own thread, with one shared session.
- ``batcher``: a hand-written batcher, in four forms; the better one counts. Either the clients
  make the tensors and two threads gather them (up to 8, or 1 at a time) and run the network, or
  two threads do all of it (up to 8, or 1 at a time).
- ``headrace``: the backends of headrace-cv and headrace-ort in one node of two instances, with
  ``max`` 1, 4 and 8. One of these is chosen for all numbers of clients; the others are shown.

The clock of a request runs from the call with the bytes to the class in the client's hands.
Processor time is that of the process: clients, threads, network.

    python -m benchmarks.jpeg_onnx [--network light heavy] [--clients 1 10 40] [--json FILE]

The networks (about 60 and 550 million multiply-adds, random weights) are made at run time. Needs
headrace, headrace-cv, headrace-ort and onnx.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import onnx
import onnxruntime as ort
from benchmarks.load import (
    Load,
    arguments,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
    usable_cpus,
)
from onnx import TensorProto, helper, numpy_helper

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Side = Callable[[bytes], int]

SIDE = 224
CLASSES = 1000
WIDTHS = {"light": 1, "heavy": 3}
MAXIMA = (1, 4, 8)


def make_network(path: Path, width: int) -> float:
    """Write a classifier of five strided convolutions; give its millions of multiply-adds."""
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


def make_pictures(count: int = 8) -> list[bytes]:
    """Give JPEG files of 640 x 480: blurred noise with grain, about 90 KB each."""
    rng = np.random.default_rng(11)
    files = []
    for _ in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
        picture = cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC).astype(np.float32)
        picture += rng.normal(0, 6, picture.shape)
        ok, file = cv2.imencode(
            ".jpg", np.clip(picture, 0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 90]
        )
        if not ok:
            raise SystemExit("OpenCV cannot write JPEG here")
        files.append(file.tobytes())
    return files


# By hand.


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
    """Threads that take what waits in one queue, up to ``most``, and run the network on it."""

    def __init__(self, model: Path, most: int, threads: int, *, decodes: bool) -> None:
        self.session = session_of(model)
        self.most, self.decodes = most, decodes
        self.inbox: SimpleQueue[Job | None] = SimpleQueue()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def __call__(self, file: bytes) -> int:
        """Send one picture and wait for its class."""
        job = Job(file if self.decodes else tensor_of(file))
        self.inbox.put(job)
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


# With headrace.


def pipeline(model: Path, most: int, instances: int) -> headrace.Pipeline:
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
    """Give all sides by name, and what closes them."""
    threads = usable_cpus()
    sides: dict[str, Side] = {"alone": alone(model)}
    closing = []
    for name, most, decodes in (
        ("batcher, clients decode, max 1", 1, False),
        ("batcher, clients decode, max 8", 8, False),
        ("batcher, threads decode, max 1", 1, True),
        ("batcher, threads decode, max 8", 8, True),
    ):
        batcher = Batcher(model, most, threads, decodes=decodes)
        sides[name] = batcher
        closing.append(batcher.close)
    for most in MAXIMA:
        pipe = pipeline(model, most, threads)
        sides[f"headrace, max {most}"] = through(pipe)
        closing.append(pipe.close)
    return sides, closing


def check(sides: dict[str, Side], files: list[bytes]) -> None:
    """See to it that all sides give the same classes."""
    answers = {name: [side(file) for file in files] for name, side in sides.items()}
    wrong = [name for name in sides if answers[name] != answers["alone"]]
    if wrong:
        raise SystemExit(f"these sides answer otherwise: {', '.join(wrong)}")


def report(cells: dict[int, dict[str, list[Load]]]) -> dict[str, Any]:
    """Print the loads of one network by number of clients, and the ratios."""
    print(
        f"{'':32}{'clients':>8}{'img/s':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms/img':>11}{'cores':>7}"
    )
    for clients, loads in cells.items():
        for name, rounds in loads.items():
            m = middle(rounds)
            print(
                f"{name:32}{clients:8}{m.rps:8.0f}{m.p50_us / 1e3:8.2f}{m.p99_us / 1e3:8.2f}"
                f"{m.cpu_us / 1e3:11.3f}{m.cores:7.2f}"
            )
        print()
    by_hand = {
        clients: max(
            (name for name in loads if not name.startswith("headrace")),
            key=lambda name: middle(loads[name]).rps,
        )
        for clients, loads in cells.items()
    }
    ratios = {
        name: {c: ratio(loads[name], loads[by_hand[c]]) for c, loads in cells.items()}
        for name in next(iter(cells.values()))
        if name.startswith("headrace")
    }
    best = max(ratios, key=lambda name: min(ratios[name].values()))
    print("throughput of headrace over the better of all that is written by hand")
    figures = {}
    for clients, loads in cells.items():
        others = ", ".join(
            f"{name.removeprefix('headrace, ')} {values[clients]:.3f}"
            for name, values in ratios.items()
        )
        tail = ratio(loads[best], loads["alone"], "p99_us")
        cpu = ratio(loads[best], loads[by_hand[clients]], "cpu_us")
        print(
            f"  {clients:3} clients: {ratios[best][clients]:.3f} x {by_hand[clients]!r} with {best!r}"
            f" ({others}); processor time {cpu:.3f} x; p99 {tail:.2f} x that of 'alone'"
        )
        figures[clients] = {
            "by_hand": by_hand[clients],
            "chosen": best,
            "ratio": {name: values[clients] for name, values in ratios.items()},
            "cpu_over_by_hand": cpu,
            "p99_over_alone": tail,
            "loads": loads,
        }
    print(flush=True)
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--network", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 10, 40])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one window")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    seconds, rounds = (0.5, 1) if chosen.quick else (chosen.seconds, chosen.rounds)
    warm_up = min(0.4, seconds)
    cv2.setNumThreads(1)
    about = environment(
        [
            "headrace",
            "headrace-cv",
            "headrace-ort",
            "onnxruntime",
            "opencv-python-headless",
            "numpy",
        ]
    )
    print_environment(about)
    files = make_pictures()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for network in chosen.network:
            model = Path(folder) / f"{network}.onnx"
            macs = make_network(model, WIDTHS[network])
            size = sum(map(len, files)) / len(files) / 1024
            print(f"{network}: {macs:.0f} million multiply-adds, pictures of {size:.0f} KiB")
            sides, closing = sides_of(model)
            check(sides, files)
            cells = {}
            for clients in chosen.clients:
                runs: dict[str, Callable[[], Load]] = {}
                for name, side in sides.items():

                    def call(i: int, side: Side = side) -> None:
                        side(files[i % len(files)])

                    def run(call: Callable[[int], None] = call, clients: int = clients) -> Load:
                        return drive(call, clients, seconds, warm_up)

                    runs[name] = run
                cells[clients] = in_turn(runs, rounds)
            for close in closing:
                close()
            figures[network] = report(cells)
    save(chosen.json, about, figures)


if __name__ == "__main__":
    main()
