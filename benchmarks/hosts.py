"""A batch to another machine beside one to another process: `Host` on the loopback and `Process`, in turn.

The clock of a round runs from the first call to the last answer of one thread that calls again and again. Where one
request at a time is sent this is the round trip: of a few bytes mostly the time in which the system wakes the other
side. A batch of eight is one list. Both sides copy what they get (`copy:copy`), so every byte goes there and back.

Wanted for batches of eight requests of 60 kB: `Host` at least 0.85 of `Process`.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.figures import compare
from benchmarks.load import arguments, environment, print_environment, save

import headrace

LOADS = [(10, 1), (60_000, 1), (60_000, 8), (1_000_000, 1), (8_000_000, 1)]
"""Bytes of a request, and requests of a batch."""


@contextmanager
def worker(secret: Path) -> Iterator[str]:
    """Start a worker; give its address."""
    command = [sys.executable, "-m", "headrace_cli", "worker", "--listen", "127.0.0.1:0"]
    command += ["--secret-file", str(secret)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stderr is not None
            yield f"127.0.0.1:{started.stderr.readline().split()[-1]}"
        finally:
            started.terminate()


def rate(pipe: headrace.Pipeline, array: Any, batch: int, seconds: float) -> float:
    """Return the requests per second of one caller."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        if batch == 1:
            pipe({"data": array})
        else:
            pipe([{"data": array} for _ in range(batch)])
        count += batch
    return count / took


def main() -> None:
    options = arguments(__doc__).parse_args()
    seconds, rounds = (0.1, 2) if options.quick else (0.5, 15)
    about = environment(["headrace", "headrace-process", "numpy"])
    print_environment(about)
    figures: dict[str, Any] = {}
    kept = []
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32), encoding="ascii")
        keys = {"max": 8, "at": [open_.enter_context(worker(secret))], "secret_file": str(secret)}
        sides = {
            "Process": headrace.pipe({"backend": "Process[Call(copy:copy)]", "max": 8}),
            "Host": headrace.pipe({"backend": "Host[Call(copy:copy)]", **keys}),
        }
        for pipe in sides.values():
            open_.callback(pipe.close)
        for size, batch in LOADS:
            array = np.zeros(size, "u1")
            rates: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(rounds):
                for name in sorted(sides, reverse=bool(turn % 2)):
                    rates[name].append(rate(sides[name], array, batch, seconds))
            each = sorted(a / b for a, b in zip(rates["Host"], rates["Process"], strict=True))
            what = f"Host, {batch} of {size} bytes: requests a second of one caller"
            found = (rates["Host"], "Process", rates["Process"])
            kept.append(compare(what, "1/s", "higher", *found, own=True))
            middle = {name: statistics.median(found) for name, found in rates.items()}
            figures[f"{size} x {batch}"] = {"rps": rates, "ratio": statistics.median(each)}
            print(
                f"{size:8} bytes x {batch}: Process {middle['Process']:7.0f}/s, Host {middle['Host']:7.0f}/s, "
                f"ratio {statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"
            )
    save(options.json, about, figures, kept)


if __name__ == "__main__":
    main()
