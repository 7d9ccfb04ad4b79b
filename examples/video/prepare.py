"""Render videos whose objects are known, and build a detector for them by hand: nothing is trained.

Everything goes to ``made/`` beside this file: ``*.mp4``, their truth in ``*.csv`` (a line per object and frame:
frame, object, class, x1, y1, x2, y2), and ``detector.onnx``, a network in the layout of YOLOv8, and ``embedder.onnx``. The objects in ``plates/plates.mp4`` are
larger, and say something: ``plates/detector.onnx`` finds those. The pictures of ``wide/wide.mp4`` are larger than the network's input.
"""

from __future__ import annotations

import csv
import math
import signal
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper

MADE = Path(__file__).parent / "made"
HEIGHT, WIDTH, FPS, FRAMES = 320, 320, 25, 120
SIDE = 24
"""Side of an object, in pixels."""
PLATE_SIDE = 112
"""Side of an object with text on it, in pixels."""
AROUND = 16
"""A cell of the network looks at a window of the side of an object, and so many pixels more."""
COLORS = {"red": (30, 30, 240), "blue": (240, 30, 30)}
"""The classes: blue, green, red."""


@dataclass
class Mover:
    """An object that goes straight: it is there from one frame to another.

    Attributes:
        kind: Its class.
        x, y: Its centre in frame 0, in pixels.
        dx, dy: Its way per frame, in pixels.
        text: What it says, in its middle.
        is_turned: Whether it stands on its head.
    """

    kind: str
    x: float
    y: float
    dx: float
    dy: float
    text: str = ""
    is_turned: bool = False

    @property
    def side(self) -> int:
        """Its side, in pixels."""
        return PLATE_SIDE if self.text else SIDE

    def look(self) -> Any:
        """Return it as an image."""
        image = np.full((self.side, self.side, 3), COLORS[self.kind], np.uint8)
        if self.text:
            font, place = cv2.FONT_HERSHEY_DUPLEX, (4, self.side // 2 + 9)
            cv2.putText(image, self.text, place, font, 0.8, (255, 255, 255), 1, cv2.LINE_AA)
        return image[::-1, ::-1] if self.is_turned else image

    def box(self, frame: int) -> tuple[int, int, int, int]:
        """Return x1, y1, x2, y2 in a frame, in pixels."""
        left = round(self.x + self.dx * frame - self.side / 2)
        top = round(self.y + self.dy * frame - self.side / 2)
        return left, top, left + self.side, top + self.side


CLIPS = {
    # Lanes far from each other: nobody is hidden.
    "easy": [
        Mover("red", 40, 30, 0, 2.0),
        Mover("blue", 120, 290, 0, -2.0),
        Mover("red", 200, 30, 0, 1.5),
        Mover("blue", 280, 60, 0, 0.5),
    ],
    # Two meet in the same lane and hide each other.
    "crossing": [
        Mover("red", 40, 100, 2.0, 0),
        Mover("blue", 280, 100, -2.0, 0),
        Mover("red", 160, 40, 0, 2.0),
    ],
    "slow": [Mover("blue", 60, 100, 0.5, 0.5), Mover("red", 250, 60, 0, 0.7)],
    "empty": [],
}
PLATES = [
    Mover("red", 80, 90, 0.5, 0, "K4 729"),
    Mover("blue", 240, 90, -0.3, 0, "B6 583", is_turned=True),
    Mover("blue", 160, 240, 0, 0.1, "ZH 902"),
]
WIDE = [Mover("blue" if x % 200 else "red", x, 60 + x % 370, 2, 0.5) for x in range(40, 900, 70)]


def picture(
    movers: list[Mover], frame: int, random: np.random.Generator, size: tuple[int, int]
) -> Any:
    """Return a frame, ``uint8 [H, W, 3]``, and the boxes in it that are at least half visible."""
    height, width = size
    image = random.normal(70, 6, (height, width, 3)).clip(0, 255).astype(np.uint8)
    truth = []
    for number, mover in enumerate(movers):
        x1, y1, x2, y2 = mover.box(frame)
        seen = (max(x1, 0), max(y1, 0), min(x2, width), min(y2, height))
        if seen[2] > seen[0] and seen[3] > seen[1]:
            look = mover.look()[seen[1] - y1 : seen[3] - y1, seen[0] - x1 : seen[2] - x1]
            image[seen[1] : seen[3], seen[0] : seen[2]] = look
            area = (seen[2] - seen[0]) * (seen[3] - seen[1])
            if area >= mover.side**2 / 2:
                truth.append([frame, number, mover.kind, *seen])
    return image, truth


def render(
    name: str,
    movers: list[Mover],
    frames: int = FRAMES,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> None:
    """Write a clip and its truth."""
    random = np.random.default_rng(len(name))
    rows = []
    with av.open(str(MADE / f"{name}.mp4"), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options={"crf": "18"})
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            image, truth = picture(movers, number, random, size)
            rows += truth
            frame = av.VideoFrame.from_ndarray(image, format="bgr24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with (MADE / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def detector(object_side: int) -> onnx.ModelProto:
    """Return a network ``[N, 3, 320, 320]`` (red, green, blue, 0 to 1) to ``[N, 6, 2100]``, in YOLOv8's layout.

    A pixel belongs to a class where its colour is far from the other two: a convolution of 1 x 1, clipped to 0 and 1. Each cell of the
    three grids averages, over a window around it, these maps, and the maps times the places of the pixels: that gives
    area, centre and, as objects are square, side. The score is the part of the expected area that was found,
    lowered with the distance of the centre from the cell.

    Args:
        object_side: Side of the objects that it finds, in pixels.
    """
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, values: Any) -> str:
        array = np.asarray(values, np.float32)
        constants.append(helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.ravel()))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    far = [[4, -4, -4], [-4, -4, 4]]  # red, blue
    weights = constant("far", np.array(far)[:, :, None, None])
    zero, one = constant("zero", 0), constant("one", 1)
    raw = node("Conv", ["image", weights, constant("bias", [-0.8, -0.8])], "raw")
    maps = node("Clip", [raw, zero, one], "maps")
    whole = node("ReduceSum", [maps, axes_of(constants)], "whole", keepdims=1)
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    places = node("Mul", [whole, constant("places", np.stack([x, y])[None])], "places_of")
    everything = node("Concat", [maps, whole, places], "everything", axis=1)
    heads = [head(node, constant, everything, stride, object_side) for stride in (8, 16, 32)]
    node("Concat", heads, "output", axis=2)

    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, HEIGHT, WIDTH])
    cells = sum((HEIGHT // stride) * (WIDTH // stride) for stride in (8, 16, 32))
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 6, cells])
    graph = helper.make_graph(nodes, "squares", [image], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    helper.set_model_props(model, {"task": "detect", "names": str(dict(enumerate(COLORS)))})
    onnx.checker.check_model(model)
    return model


def axes_of(constants: list[Any]) -> str:
    """Add the constant that names the axis of the channels."""
    constants.append(helper.make_tensor("channels", TensorProto.INT64, [1], [1]))
    return "channels"


def head(node: Any, constant: Any, everything: str, stride: int, object_side: int) -> str:
    """Add the cells of one grid; return ``[N, 6, cells]``: centre, size, two scores."""

    def named(text: str) -> str:
        return f"{text}_{stride}"

    window = object_side + AROUND
    pad = (window - stride) // 2
    mean = node(
        "AveragePool",
        [everything],
        named("mean"),
        kernel_shape=[window, window],
        strides=[stride, stride],
        pads=[pad] * 4,
        count_include_pad=1,
    )
    parts = [named(text) for text in ("red", "blue", "mass", "x", "y")]
    node_split(node, mean, parts)
    red, blue, mass, x, y = parts
    floor = node("Max", [mass, constant(named("least"), 1e-6)], named("floor"))
    area = node("Mul", [floor, constant(named("pixels"), window**2)], named("area"))
    side = node("Sqrt", [area], named("side"))
    center = [node("Div", [one, floor], named(f"c{one}")) for one in (x, y)]
    ys, xs = (np.mgrid[: HEIGHT // stride, : WIDTH // stride] + 0.5) * stride
    offsets = []
    for one, grid, axis in zip(center, (xs, ys), "xy", strict=True):
        cell = constant(named(f"cell{axis}"), grid[None, None])
        away = node("Sub", [one, cell], named(f"away{axis}"))
        offsets.append(node("Abs", [away], named(f"abs{axis}")))
    far = node("Add", offsets, named("far"))
    lowered = node("Mul", [far, constant(named("slope"), -1 / 80)], named("lowered"))
    near = node("Add", [lowered, constant(named("top"), 1.0)], named("near"))
    kept = node("Clip", [near, "zero", "one"], named("kept"))
    scores = []
    for one in (red, blue):
        expected = constant(named(f"part_{one}"), window**2 / object_side**2)
        part = node("Mul", [one, expected], named(f"part{one}"))
        clipped = node("Clip", [part, "zero", "one"], named(f"clip{one}"))
        scores.append(node("Mul", [clipped, kept], named(f"score{one}")))
    whole = node("Concat", [*center, side, side, *scores], named("cells"), axis=1)
    constants_shape = constant_shape(node, stride)
    return str(node("Reshape", [whole, constants_shape], named("rows")))


def node_split(node: Any, value: str, parts: list[str]) -> None:
    """Split the five channels of a value into the parts of those names."""
    for index, part in enumerate(parts):
        number = helper.make_tensor(f"{part}_i", TensorProto.INT64, [1], [index])
        node("Constant", [], f"{part}_index", value=number)
        node("Gather", [value, f"{part}_index"], part, axis=1)


def constant_shape(node: Any, stride: int) -> str:
    """Add the shape ``[N, 6, cells]``."""
    shape = helper.make_tensor(f"shape_v{stride}", TensorProto.INT64, [3], [0, 6, -1])
    return str(node("Constant", [], f"shape_{stride}", value=shape))


def embedder() -> onnx.ModelProto:
    """Return a network ``[N, 3, 32, 32]`` to ``[N, 16]``: a vector of length 1 of each picture. Its weights are random."""
    weights = np.random.default_rng(0).normal(size=(16, 3, 5, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["crop", "weights"], ["maps"], strides=[2, 2]),
        helper.make_node("Relu", ["maps"], ["seen"]),
        helper.make_node("ReduceMean", ["seen"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("LpNormalization", ["mean"], ["vector"], axis=1, p=2),
    ]
    crop = helper.make_tensor_value_info("crop", TensorProto.FLOAT, ["n", 3, 32, 32])
    vector = helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["n", 16])
    constant = helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.ravel())
    graph = helper.make_graph(nodes, "embedder", [crop], [vector], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Write everything."""
    for folder in ("plates", "wide"):
        (MADE / folder).mkdir(parents=True, exist_ok=True)
    for name, movers in CLIPS.items():
        render(name, movers)
    render("plates/plates", PLATES, 25)
    render("wide/wide", WIDE, 10, (540, 960))
    onnx.save(detector(SIDE), MADE / "detector.onnx")
    onnx.save(embedder(), MADE / "embedder.onnx")
    onnx.save(detector(PLATE_SIDE), MADE / "plates" / "detector.onnx")
    print(f"{len(CLIPS)} clips of {FRAMES} frames and detector.onnx in {MADE}")
    crossings = sum(crosses(mover) for mover in CLIPS["easy"])
    print(f"in easy.mp4, {crossings} objects cross the line y = {HEIGHT // 2}")


def crosses(mover: Mover) -> bool:
    """Return whether an object crosses the middle of the picture from above or below."""
    first, last = (mover.y + mover.dy * frame - HEIGHT / 2 for frame in (0, FRAMES - 1))
    return math.copysign(1, first) != math.copysign(1, last)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # whoever reads the output may go
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
