"""JPEG to class on the CPU with torch: `benchmarks.jpeg_onnx` with TorchModule for ONNX Runtime.

The sides are the same: every client does it all itself, a hand-written batcher in four forms, and
headrace with ``S[DecodeMat,ResizeMat,Mat2Tensor,TorchModule]``. All call one torch.export program in
inference mode, with one thread of torch inside each call.

    python -m benchmarks.jpeg_torch [--network light heavy] [--clients 1 10 40] [--json FILE]

Needs headrace, headrace-cv, headrace-torch and (for the sides' code) onnxruntime.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import torch
from benchmarks import jpeg_sides
from benchmarks.jpeg_onnx import measure_clients
from benchmarks.jpeg_sides import CLASSES, SIDE, WIDTHS
from benchmarks.load import arguments, environment, print_environment, save
from benchmarks.pictures import make_pictures

import headrace

if TYPE_CHECKING:
    from numpy.typing import NDArray

WANTED = 0.97


def make_program(path: Path, width: int) -> None:
    """Write the classifier of `benchmarks.jpeg_onnx` as a torch.export program, random weights."""
    torch.manual_seed(7)
    layers: list[torch.nn.Module] = []
    channels = 3
    for layer in range(5):
        out = 16 * 2**layer * width
        layers += [torch.nn.Conv2d(channels, out, 3, stride=2, padding=1), torch.nn.ReLU()]
        channels = out
    layers += [
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(channels, CLASSES),
    ]
    network = torch.nn.Sequential(*layers).eval()
    rows = ({0: torch.export.Dim("rows")},)
    example = (torch.zeros(2, 3, SIDE, SIDE),)
    torch.export.save(torch.export.export(network, example, dynamic_shapes=rows), path)


class Session:
    """The program, called as the hand-written sides call a session of ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        self.module = torch.export.load(path).module()

    def run(self, _: None, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the scores."""
        with torch.inference_mode():
            return [self.module(torch.from_numpy(feeds["image"])).numpy()]


def pipeline(model: Path, most: int, instances: int | str) -> headrace.Pipeline:
    one_each = {} if instances == "auto" else {"threads": instances}
    return headrace.pipe(
        {
            "global": one_each,
            "main": {
                "backend": "S[DecodeMat,ResizeMat,Mat2Tensor,TorchModule]",
                "resize_h": SIDE,
                "resize_w": SIDE,
                "model": str(model),
                "max": most,
                "instance_num": instances,
            },
        }
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--network", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 10, 40])
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one window")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    seconds, rounds = (0.5, 1) if chosen.quick else (chosen.seconds, chosen.rounds)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    jpeg_sides.session_of, jpeg_sides.pipeline = Session, pipeline
    about = environment(["headrace", "headrace-cv", "headrace-torch", "torch", "numpy"])
    print_environment(about)
    files = make_pictures()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for network in chosen.network:
            model = Path(folder) / f"{network}.pt2"
            make_program(model, WIDTHS[network])
            print(f"{network}; wanted: {WANTED} x the better hand-written side")
            run = (seconds, min(0.4, seconds), rounds)
            figures[network] = measure_clients(model, files, chosen.clients, run)
    save(chosen.json, about, figures)


if __name__ == "__main__":
    main()
