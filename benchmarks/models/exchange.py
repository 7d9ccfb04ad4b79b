"""What clients feel of an exchange that goes on: their p99, and the processor time of the server for each request.

Eight clients in a process of their own send rows to an ONNX model over HTTP, each as soon as it has its answer. Windows without an
exchange and windows in which a shadow runs a share of the requests come in turn. The ratios are medians over the rounds. By
the share alone, the processor time of the model itself grows by 1.05.

    python -m benchmarks.models.exchange [--share 0.05] [--quick] [--json FILE]
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = 8
SIDE = 256


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


def compare(folder: Path, rounds: int, seconds: float, share: float) -> dict[str, Any]:
    """Measure windows in turn, and return the figures of all rounds with their ratios."""
    from benchmarks.models.budget import write_model

    from headrace_models import Exchange, Models
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
    pairs = [*zip(kinds["shadow"], kinds["without"], strict=True)]
    ratios = {
        name: statistics.median(one[name] / other[name] for one, other in pairs)
        for name in ("p99_ms", "cpu_us")
    }
    return {"share": share, "compared": compared, "ratios": ratios, "rounds": kinds}


def main() -> None:
    """Print the ratios."""
    parser = arguments(__doc__)
    parser.add_argument("--share", type=float, default=0.05, help="of the requests")
    asked = parser.parse_args()
    about = environment(["headrace", "headrace-models", "headrace-serve", "onnxruntime"])
    print_environment(about)
    rounds, seconds = (2, 0.5) if asked.quick else (9, 4.0)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), rounds, seconds, asked.share)
    for kind, all_rounds in found["rounds"].items():
        figures = {
            name: statistics.median(one[name] for one in all_rounds) for name in all_rounds[0]
        }
        print(f"{kind:<8} " + "  ".join(f"{name} {one:.2f}" for name, one in figures.items()))
    print(f"compared {found['compared']}")
    for name, one in found["ratios"].items():
        print(f"shadow / without, {name}: {one:.3f}")
    save(asked.json, about, found)


if __name__ == "__main__":
    main()
