"""A network of torchvision behind pictures, and the sides that `benchmarks.gpu_torch` runs with it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.captured import Captured
from benchmarks.decoding import by_processes, decoding_node, picture_of
from benchmarks.load import Load, drive, usable_cpus
from benchmarks.pictures import make_pictures
from benchmarks.two_stages import TwoStages
from benchmarks.ways import Way

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BATCH", "CLIENTS", "SIDE", "TIMEOUT_MS", "Bench", "Classifier"]

SIDE = 224
CLIENTS = 40
BATCH = 8
TIMEOUT_MS = 2.0


class Classifier(torch.nn.Module):
    """A network of torchvision behind its preprocessing: pictures in, numbers of classes out.

    Args:
        name: A network of ``torchvision.models``, or ``"tiny"``.
        layout: ``"hwc"`` for ``uint8 [N, H, W, 3]`` (blue, green, red) as OpenCV has it, ``"chw"`` for
            ``uint8 [N, 3, H, W]`` (red, green, blue).
    """

    def __init__(self, name: str, layout: str = "hwc") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layout = layout
        self.network: Any = tiny() if name == "tiny" else network_of(name)
        self.register_buffer("mean", torch.tensor([123.7, 116.3, 103.5]).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([58.4, 57.1, 57.4]).reshape(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return ``int64 [N]``."""
        if self.layout == "hwc":
            images = images.permute(0, 3, 1, 2).flip(1)
        values = (images.to(self.mean.dtype) - self.mean) / self.std
        found: torch.Tensor = self.network(values).argmax(1)
        return found


def network_of(name: str) -> Any:
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def tiny() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )


class Bench:
    """The settings of one run, and what all parts measure with."""

    def __init__(self, device: str, seconds: float, rounds: int, *, quick: bool) -> None:
        self.device, self.seconds, self.rounds, self.quick = device, seconds, rounds, quick
        self.cuda = device.startswith("cuda")
        self.files = make_pictures(4 if quick else 16)
        self.cores = usable_cpus()
        self.ways = [Way.usual()]
        self.batch, self.timeout_ms = BATCH, TIMEOUT_MS

    def wait(self) -> None:
        """Wait for the device, outside of what is timed."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def load(self, call: Callable[[int], object], clients: int) -> Load:
        """Send requests from so many clients for one window."""
        return drive(call, clients, self.seconds, warm_up=0.2 if self.quick else 0.7)

    def repeated(self, call: Callable[[], object], each: int) -> float:
        """Call back to back, and give how many pictures a second that is."""
        for _ in range(3):
            call()
        self.wait()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < self.seconds / 2:
            for _ in range(20):
                call()
            self.wait()
            count += 20
        return count * each / (time.perf_counter() - began)

    def decoding(self) -> float:
        """Return how many pictures a second all processors decode, with nothing else, in independent processes."""
        return by_processes(self.files, SIDE, self.seconds)

    def module(self, name: str, half: bool) -> Any:
        """Return the module on the device, in fp16 where that was asked for and is a GPU."""
        found = Classifier(name).eval().to(self.device)
        return found.half() if half and self.cuda else found

    def bare(self, name: str, *, half: bool) -> float:
        """Return the pictures a second of the captured module, back to back, inputs resident."""
        module = self.module(name, half)
        given = torch.zeros((self.batch, SIDE, SIDE, 3), dtype=torch.uint8, device=self.device)
        with torch.inference_mode():
            if not self.cuda:
                return self.repeated(lambda: module(given), self.batch)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    module(given)
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                module(given)
            with torch.cuda.stream(side):
                return self.repeated(graph.replay, self.batch)

    def pipeline(
        self, name: str, *, half: bool, decode: str = "cv", way: Way | None = None
    ) -> dict[str, Any]:
        """Return the configuration: decoding in many instances, the model in two."""
        layout, shape = ("hwc", "224x224x3") if decode == "cv" else ("chw", "3x224x224")
        words = {
            "cv": "S[GpuTensor,TorchModule,CpuTensor(numpy=true)]",
            "gpu": "S[DecodeTensor,ResizeTensor(224,224),TorchModule,CpuTensor(numpy=true)]",
        }
        model: dict[str, Any] = {
            "backend": words[decode],
            "module": "benchmarks.gpu_classifier:Classifier",
            "args": {"name": name, "layout": layout},
            "shape": f"uint8:{shape}",
            "cuda_graph": True,
            "device": self.device,
            "instance_num": 2,
            "max": self.batch,
            "batching_timeout": self.timeout_ms,
        }
        if half and self.cuda:
            model["dtype"] = "float16"
        if decode == "gpu":
            return {"model": model}
        way = way or self.ways[0]
        return {"decode": {**decoding_node(way, SIDE), "next": "model"}, "model": model}

    def headrace(self, pipe: headrace.Pipeline, clients: int = CLIENTS) -> Load:
        """Load a pipeline from so many clients."""
        files = self.files
        return self.load(lambda i: int(pipe({"data": files[i % len(files)]})["result"]), clients)

    def beside(self, name: str, way: Way, *, half: bool) -> list[Load]:
        """Load the pipeline that decodes another way from 40 clients, and from four times as many."""
        with (
            headrace.pipe(self.pipeline(name, half=half, way=way)) as pipe,
            way.front(),
        ):
            return [self.headrace(pipe, clients) for clients in (CLIENTS, 4 * CLIENTS)]

    def by_hand(self, name: str, *, half: bool) -> TwoStages:
        """Return the program of threads written by hand: decoding workers, two model threads."""
        module = self.module(name, half)
        runners = [Captured(module, self.batch, (SIDE, SIDE, 3)) for _ in range(2)]
        return TwoStages(
            partial(picture_of, size=SIDE),
            runners,
            decoders=self.ways[0].instances,
            batch=self.batch,
            timeout_ms=self.timeout_ms,
        )

    def hand_written(self, program: TwoStages) -> Load:
        """Load the program written by hand from 40 clients."""
        files = self.files
        return self.load(lambda i: int(program(files[i % len(files)])), CLIENTS)

    def naive(self, name: str, *, half: bool) -> Load:
        """40 threads: each decodes, copies to the device and calls the module."""
        module, files = self.module(name, half), self.files

        def call(i: int) -> int:
            picture = torch.from_numpy(picture_of(files[i % len(files)], SIDE)).to(self.device)
            with torch.inference_mode():
                return int(module(picture[None])[0])

        return self.load(call, CLIENTS)
