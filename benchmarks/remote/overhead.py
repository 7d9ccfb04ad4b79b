"""What `Remote` costs its caller beside a bare call of grpcio, and what is answered while a server is killed.

    python -m benchmarks.remote.overhead

**Cost.** Batches of 8 rows of 60 kB from 10 threads, to one server whose answers are made beforehand. The bare side
sends the same bytes with the same options of the channel, written once, and does not look at the answer; "joined"
makes these bytes anew for each call out of 8 arrays, as everyone must who has them apart. Ours are one request of 8
rows, and a list of 8 requests, each with its result. What is compared is the processor time of this process for a batch.

**A server is killed.** Two ``headrace serve``, each with a backend that sleeps 20 ms for a batch of up to 8. Clients
send one request each at fixed times (open loop), in all 70 % of what one server alone can carry, because one is what
is left. Halfway through one server is killed with SIGKILL. Goodput is the part of all requests that was answered.
"""

from __future__ import annotations

import contextlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
from benchmarks.figures import compare, measure
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
)

import headrace
from headrace_remote.protocol import SERVICE, message

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW_BYTES = 60_000
ROWS = 8
THREADS = 10
ANSWERS = {"scores": "rows of 4 kB come back", "echo": "rows of 60 kB come back"}
"""What the models of `benchmarks.remote.fixed` send back."""

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def fixed_server() -> Iterator[str]:
    """Run `benchmarks.remote.fixed`; give its address."""
    command = [sys.executable, "-m", "benchmarks.remote.fixed", str(ROW_BYTES), str(ROWS)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip()}"  # type: ignore[union-attr]
        finally:
            process.stdin.close()  # type: ignore[union-attr]


def cost(model: str, url: str, seconds: float, rounds: int) -> dict[str, list[Load]]:
    """Measure both sides with one model of the fixed server."""
    arrays = [np.full(ROW_BYTES, k, np.uint8) for k in range(ROWS)]
    made = message("ModelInferRequest")(model_name=model)
    made.inputs.add(name="x", datatype="UINT8", shape=[ROWS, ROW_BYTES])
    made.raw_input_contents.append(np.stack(arrays).tobytes())
    data = made.SerializeToString()
    unbounded = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    config = {"backend": "Remote", "model": model, "urls": [url], "max": ROWS}
    with (
        grpc.insecure_channel(url, options=unbounded) as channel,
        headrace.pipe({**config, "instance_num": THREADS}) as pipe,
    ):
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        size = pipe({"data": arrays[0]})["result"].nbytes

        def bare(_: int) -> None:
            if len(call(data, timeout=60)) < ROWS * size:
                raise RuntimeError("the answer is too short")

        head, batch = data[: -ROWS * ROW_BYTES], np.stack(arrays)

        def joined(_: int) -> None:
            parts: list[Any] = [head, *arrays]
            if len(call(b"".join(parts), timeout=60)) < ROWS * size:
                raise RuntimeError("the answer is too short")

        def rows(_: int) -> None:
            if pipe({"data": batch, "request_size": ROWS})["result"].nbytes != ROWS * size:
                raise RuntimeError("the result is too short")

        def requests(_: int) -> None:
            for one in pipe([{"data": array} for array in arrays]):
                if one["result"].nbytes != size:
                    raise RuntimeError("the result is too short")

        sides = {
            "grpcio": lambda: drive(bare, THREADS, seconds),
            "grpcio, joined": lambda: drive(joined, THREADS, seconds),
            "Remote, 8 rows": lambda: drive(rows, THREADS, seconds),
            "Remote, 8 requests": lambda: drive(requests, THREADS, seconds),
        }
        return in_turn(sides, rounds)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a ``headrace serve``; give the process and its address of gRPC."""
    (folder / "slow.py").write_text(
        "import headrace, headrace_testing\nheadrace.register('Slow', headrace_testing.Slow)\n"
    )
    (folder / "slow.toml").write_text(
        'import = ["slow.py"]\nbackend = "Slow(ms=20)"\nmax = 8\nqueue_full = "reject"\n'
    )
    command = ["serve", "slow.toml", "--port", "0", "--grpc-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *command],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        text = ""
        while not (found := re.search(r" and \S*?(127\.0\.0\.1:\d+)", text)):
            line = process.stderr.readline()  # type: ignore[union-attr]
            if not line:
                raise RuntimeError(text)
            text += line
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]


def killed(seconds: float) -> dict[str, Any]:
    """Kill one of two servers under load, without and with ``rerun``."""
    found: dict[str, Any] = {}
    for rerun in (False, True):
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            servers = [stack.enter_context(served(Path(name))) for _ in range(2)]
            urls = [url for _, url in servers]
            config = {"backend": "Remote(slow)", "max": 8, "instance_num": 4, "timeout_ms": 5000}
            alone = {**config, "urls": urls[:1], "queue_size": 100_000}
            with headrace.pipe(alone) as pipe:
                count = 400
                began = time.perf_counter()
                wait([pipe.submit({"data": b"x"}) for _ in range(count)])
                capacity = count / (time.perf_counter() - began)
            with headrace.pipe({**config, "urls": urls, "rerun": rerun}) as pipe:
                found[f"rerun = {str(rerun).lower()}"] = open_loop(
                    pipe, 0.7 * capacity, seconds, servers[1][0], capacity
                )
    return found


def open_loop(
    pipe: headrace.Pipeline,
    rate: float,
    seconds: float,
    victim: subprocess.Popen[str],
    capacity: float,
) -> dict[str, Any]:
    """Send at a fixed rate, kill the victim halfway through, and count the outcomes."""
    pause = threading.Event()
    futures = []
    began = time.perf_counter()
    number = int(rate * seconds)
    for k in range(number):
        if k == number // 2:
            victim.send_signal(signal.SIGKILL)
        left = began + k / rate - time.perf_counter()
        if left > 0:
            pause.wait(left)
        futures.append(pipe.submit({"data": str(k).encode()}))
    wait(futures, 60)
    failed: dict[str, int] = {}
    good = wrong = 0
    for k, future in enumerate(futures):
        error = future.exception(0)  # raises where a request has no outcome
        if error is None:
            good += 1
            wrong += future.result()["result"] != str(k).encode()
        else:
            code = headrace.errors.code_of(error)
            failed[code] = failed.get(code, 0) + 1
    return {
        "capacity_rps": capacity,
        "sent": number,
        "answered": good,
        "goodput": good / number,
        "failed": failed,
        "wrong": wrong,
    }


def main() -> None:
    options = arguments(__doc__).parse_args()
    seconds, rounds = (0.3, 1) if options.quick else (2.0, 7)
    about = environment(["headrace", "headrace-remote", "grpcio", "protobuf", "numpy"])
    print_environment(about)
    figures: dict[str, Any] = {"cost": {}, "killed": {}}
    kept = []
    with fixed_server() as url:
        for model in ("scores", "echo"):
            loads = cost(model, url, seconds, rounds)
            ratios: dict[str, float] = {}
            figures["cost"][model] = {"loads": loads, "ratio": ratios}
            for name, side in loads.items():
                ratios[name] = ratio(side, loads["grpcio"], "cpu_us")
                each = sorted(
                    one.cpu_us / bare.cpu_us
                    for one, bare in zip(side, loads["grpcio"], strict=True)
                )
                if name != "grpcio":
                    spent = [[load.cpu_us for load in one] for one in (side, loads["grpcio"])]
                    what = f"{name}, {ANSWERS[model]}: processor time of a batch"
                    better = "lower" if name.startswith("Remote") else "neither"
                    kept.append(
                        compare(what, "µs", better, spent[0], "a bare call of grpcio", spent[1])
                    )
                cpu_us = statistics.median(load.cpu_us for load in side)
                print(
                    f"{model:7} {name:18} {cpu_us:6.0f} us of processor time a batch, "
                    f"{ratios[name]:.2f} ({each[0]:.2f} to {each[-1]:.2f}), "
                    f"{middle(side).rps:6.0f} batches/s"
                )
            print()
    figures["killed"] = killed(1.0 if options.quick else 10.0)
    answered = figures["killed"]["rerun = false"]["goodput"]
    what = "one of two servers killed, 70 % of what one can carry: answered"
    kept.append(measure(what, "", "higher", [answered]))
    for name, one in figures["killed"].items():
        print(
            f"one of two servers killed, {name}: goodput {one['goodput']:.3f} of {one['sent']}, "
            f"failed {one['failed'] or 'none'}, wrong {one['wrong']}"
        )
    save(options.json, about, figures, kept)


if __name__ == "__main__":
    main()
