"""What clients feel of an exchange that goes on: their p99, and the processor time of the server for each request.

Eight clients in a process of their own send rows to an ONNX model over HTTP, each as soon as it has its answer. Windows without an
exchange and windows in which a shadow runs a share of the requests come in turn. The ratios are medians over the rounds. By
the share alone, the processor time of the model itself grows by 1.05.

``--verdict`` exchanges ResNet-50 twice for itself in less precision: with a tolerance that is too tight, so that the old one has to
stay, and within one, so that the new one takes over. On a device both are engines of TensorRT, fp32 and fp16. On the CPU the new
one has weights that are rounded to fp16. A tolerance is a part of the greatest output.

    python -m benchmarks.models.exchange [--share 0.05] [--quick] [--json FILE]
    python -m benchmarks.models.exchange --verdict [--device cuda:0] [--quick] [--json FILE]
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from benchmarks.figures import Figure, compare
from benchmarks.gpu_networks import resnet
from benchmarks.load import arguments, environment, print_environment, save
from onnx import numpy_helper

from headrace_models import Exchange, Models

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

CLIENTS = 8
SIDE = 256
TOLERANCES = {"too tight": 1e-6, "wide enough": 1e-2}


def ask(port: int, seconds: float) -> list[float]:
    """Send requests for so long, and return their milliseconds; any status but 200 is an error."""
    one = {"name": "x", "datatype": "FP32", "shape": [1, SIDE], "data": [1.0] * SIDE}
    body, found = json.dumps({"inputs": [one]}), list[float]()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        connection.request("POST", "/v2/models/m/infer", body)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}")
        found.append(1e3 * (time.perf_counter() - begun))
    connection.close()
    return found


def window(port: int, seconds: float) -> list[float]:
    """Let all clients send for so long; it runs in the process of the clients."""
    found: list[list[float]] = []
    threads = [
        threading.Thread(target=lambda: found.append(ask(port, seconds))) for _ in range(CLIENTS)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if len(found) < CLIENTS:
        raise RuntimeError("a client was refused")
    return [ms for each in found for ms in each]


def measure(run: Callable[[], list[float]]) -> dict[str, float]:
    """Return the p99 of a window, and the processor time of the server for each request."""
    before = time.process_time()
    found = sorted(run())
    return {
        "p99_ms": found[int(len(found) * 0.99)],
        "cpu_us": 1e6 * (time.process_time() - before) / len(found),
        "requests": len(found),
    }


def windows(
    folder: Path, rounds: int, seconds: float, share: float
) -> tuple[dict[str, Any], list[Figure]]:
    """Measure windows in turn, and return all rounds and the figures to keep."""
    from benchmarks.models.budget import write_model

    from headrace_serve import Server

    write_model(folder / "m.onnx", SIDE)
    config = {"backend": "OnnxTensor", "model": str(folder / "m.onnx"), "max": 8, "threads": 1}
    exchange = Exchange(share=share, requests=10**9, at_most_s=3600.0)
    kinds: dict[str, list[dict[str, float]]] = {"without": [], "shadow": []}
    compared = 0
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context) as clients,
        Models({"m": config}) as models,
        Server(models, port=0) as server,
    ):

        def run() -> list[float]:
            return clients.submit(window, server.port, seconds).result()

        run()
        for number in range(rounds):
            kinds["without"].append(measure(run))
            models.update("m", {**config, "max": 9 + number}, exchange=exchange)
            kinds["shadow"].append(measure(run))
            models.end_exchange("m")
            compared += models.status()["m"]["exchange"]["compared"]
    shadow, without = kinds["shadow"], kinds["without"]
    units = {
        "p99_ms": ("99th percentile of the latency", "ms"),
        "cpu_us": ("processor time of a request", "µs"),
    }
    kept = [
        compare(
            f"a shadow runs {share:.0%} of the requests: {said}", unit, "lower", [each[key] for each in shadow],
            "without an exchange", [each[key] for each in without], own=True,
        )
        for key, (said, unit) in units.items()
    ]  # fmt: skip
    return {"share": share, "compared": compared, "rounds": kinds}, kept


def rounded(path: Path) -> Path:
    """Write a model again, with weights that are rounded to fp16."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half.astype(np.float32), tensor.name))
    copy = path.with_name("rounded.onnx")
    onnx.save(model, copy)
    return copy


def verdicts(folder: Path, device: str, *, quick: bool) -> tuple[dict[str, Any], list[Figure]]:
    """Exchange a network twice, and return what each verdict has measured, and the figures to keep."""
    model, size = resnet(folder), 32 if quick else 224
    row = f"3x{size}x{size}"
    old: dict[str, Any] = {"backend": "OnnxTensor", "model": str(model)}
    new, names = {**old, "model": str(rounded(model))}, "ONNX Runtime, weights rounded to fp16"
    if device != "cpu":
        profiles = [{"min": f"x:1x{row}", "max": f"x:8x{row}"}]
        both = {
            "backend": "TensorrtTensor",
            "model": str(model),
            "device": device,
            "profiles": profiles,
            "max": 8,
        }
        old, new, names = {**both, "tf32": False}, {**both, "precision": "fp16"}, "TensorRT, fp16"
    rows = np.random.default_rng(0).random((8, 3, size, size), np.float32)
    shown: dict[str, Any] = {}
    kept: list[Figure] = []
    with Models({"m": old}) as models:

        def ask() -> NDArray[np.float32]:
            return np.stack([models("m", {"data": each})["result"] for each in rows])

        first = ask()
        greatest = float(np.abs(first).max())
        for said, part in TOLERANCES.items():
            before = models.status()["m"]["version"]
            exchange = Exchange(
                share=0.2,  # with all of them the new one would have a queue of its own
                requests=24 if quick else 200,
                at_most_s=300.0,
                slower=1e6,  # the answers alone decide: times are only shown
                rtol=0.0,
                atol=part * greatest,
            )
            models.update("m", new, exchange=exchange)
            while True:
                ask()
                about = models.status()["m"]
                verdict, version = about["exchange"], about["version"]
                if verdict["outcome"] and (verdict["outcome"] == "passed") == (version != before):
                    break
            apart = float(np.abs(ask() - first).max()) / greatest
            shown[said] = {"tolerance": part, "apart": apart, "serves": version, **verdict}
            title = f"{names}, for fp32, with a tolerance that is {said} ({part:g})"
            differ = verdict["differ"] / max(1, verdict["rows"])
            kept += [
                Figure(f"{title}: takes over", "", "neither", float(version != before)),
                Figure(f"{title}: rows that differ", "", "neither", differ),
                Figure(
                    f"{title}: answers after the verdict, apart from fp32", "", "neither", apart
                ),
            ]
            kept += [
                compare(
                    f"{title}: {name} of the latency",
                    "ms",
                    "lower",
                    [ms[1]],
                    "fp32",
                    [ms[0]],
                    own=True,
                )
                for name, ms in verdict["ms"].items()
            ]
    return shown, kept


def main() -> None:
    """Print the figures; the status is 1 if a verdict is another one than it has to be."""
    parser = arguments(__doc__)
    parser.add_argument("--share", type=float, default=0.05, help="of the requests")
    parser.add_argument("--verdict", action="store_true", help="exchange a network twice")
    parser.add_argument("--device", default="cpu", help="of --verdict: cpu or cuda:0")
    asked = parser.parse_args()
    libraries = ["onnxruntime", "onnxruntime-gpu", "tensorrt_cu12_bindings"]
    about = environment(["headrace", "headrace-models", *libraries])
    print_environment(about)
    rounds, seconds = (2, 0.5) if asked.quick else (9, 4.0)
    with tempfile.TemporaryDirectory() as folder:
        if asked.verdict:
            shown, kept = verdicts(Path(folder), asked.device, quick=asked.quick)
        else:
            shown, kept = windows(Path(folder), rounds, seconds, asked.share)
    for figure in kept:
        beside = f", {figure.beside} {figure.other:.3g}" if figure.beside else ""
        print(f"{figure.what}: {figure.value:.3g} {figure.unit}{beside}")
    save(asked.json, about, shown, kept)
    outcomes = [verdict["outcome"] for verdict in shown.values()] if asked.verdict else []
    if outcomes not in ([], ["failed", "passed"]):
        sys.exit(f"the verdicts are {', '.join(outcomes)}")


if __name__ == "__main__":
    main()
