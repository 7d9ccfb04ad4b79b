"""What ``gate = "motion"`` saves on a scene where nothing moves, and what it costs where all does.

- ``none``: a ``VideoRunner`` whose model is a network of convolutions with random weights (``OnnxTensor``).
- ``motion``: the same with the gate.

The scene is ten seconds of a video with grain, still or panning. What is printed is processor time a frame (of the whole process),
the median of the rounds, and the gate over none.

    python -m benchmarks.vision.gate [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import av
import cv2
import numpy as np
import onnx
from benchmarks.load import arguments, environment, print_environment, save
from onnx import TensorProto, helper

from headrace_vision import VideoRunner

PACKAGES = ("headrace", "headrace-vision", "headrace-ort", "av", "onnxruntime")
SIZE = (360, 640)
"""Height and width of the pictures in pixels."""


def render(path: Path, frames: int, step: int) -> None:
    """Write a video of a landscape of blurred noise, with grain, that pans by ``step`` pixels a frame."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (SIZE[0] // 8, SIZE[1] // 4, 3), np.uint8)
    scene = cv2.resize(noise, (2 * SIZE[1], SIZE[0]), interpolation=cv2.INTER_CUBIC)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "50", "preset": "veryfast"})
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            left = step * number % SIZE[1]
            image = scene[:, left : left + SIZE[1]] + rng.normal(0, 3, (*SIZE, 1))
            frame = av.VideoFrame.from_ndarray(
                np.clip(image, 0, 255).astype(np.uint8), format="bgr24"
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def network(path: Path) -> None:
    """Write a network of about 1.3 billion multiplications for a picture of 320 x 320."""
    rng = np.random.default_rng(0)
    nodes, weights, last, channels = [], [], "x", 3
    for number, width in enumerate((16, 32, 64, 128, 256, 256)):
        shape = (width, channels, 3, 3)
        values = rng.normal(0, 0.05, shape).astype(np.float32)
        weights.append(helper.make_tensor(f"w{number}", TensorProto.FLOAT, shape, values.ravel()))
        stride = 2 if number else 1
        nodes += [
            helper.make_node(
                "Conv", [last, f"w{number}"], [f"c{number}"], pads=[1] * 4, strides=[stride] * 2
            ),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"]),
        ]
        last, channels = f"r{number}", width
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "gate",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 320, 320])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", channels, 1, 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def ms_of(video: Path, model: Path, gate: str | None) -> float:
    """Return milliseconds of processor time a frame."""
    expression = f"S[ResizeMat(320,320),Mat2Tensor,OnnxTensor({model})]"
    with VideoRunner({"backend": expression}, gate=gate) as runner:
        began = time.process_time()
        found = sum(one.error is None for one in runner.run({"a": video}))
        spent = time.process_time() - began
        assert found == runner.status()["sources"]["a"]["read"]
    return 1000 * spent / found


def main() -> None:
    """Measure and print."""
    args = arguments(__doc__).parse_args()
    rounds, frames = (1, 30) if args.quick else (5, 250)
    sides = [(scene, gate) for scene in ("still", "panning") for gate in (None, "motion")]
    found: dict[str, list[float]] = {f"{scene}, {gate}": [] for scene, gate in sides}
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "network.onnx"
        network(model)
        for scene, step in (("still", 0), ("panning", 2)):
            render(Path(name) / f"{scene}.mp4", frames, step)
        for turn in range(rounds + 1):  # the first one imports
            for scene, gate in sides:
                ms = ms_of(Path(name) / f"{scene}.mp4", model, gate)
                found[f"{scene}, {gate}"] += [ms] if turn else []
    about = environment(PACKAGES)
    print_environment(about)
    print(f"{frames} frames, {SIZE[1]} x {SIZE[0]}; medians of {rounds}")
    for side, row in found.items():
        print(f"{side:16} {statistics.median(row):8.3f} ms CPU")
    ratios: dict[str, list[float]] = {}
    for scene in ("still", "panning"):
        pairs = zip(found[f"{scene}, motion"], found[f"{scene}, None"], strict=True)
        ratios[scene] = [a / b for a, b in pairs]
        print(f"{scene}: with the gate over without: {statistics.median(ratios[scene]):.3f}")
    save(args.json, about, {"ms": found, "ratios": ratios})


if __name__ == "__main__":
    main()
