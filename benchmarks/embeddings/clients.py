"""Embeddings for 32 clients: a folder behind `headrace serve --api openai` beside two programs by hand.

    python -m benchmarks.embeddings.clients [--rounds 3] [--seconds 6] [--longest 256 32] [--policies TEXT...]

The encoder is that of `examples/embeddings`, of 6 layers and width 384, on one thread. Each client sends one text after the
other, of 8 to 256 tokens, log-uniform. All sides run in turn. Per side the median of the processor time of a request, its
ratio to that of "alone", and the 50th and 99th percentile of the latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 32


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def processor_s(pid: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def texts(longest: int) -> list[str]:
    """Return texts of 8 to ``longest`` tokens, the two special ones among them."""
    random = np.random.default_rng(1)
    counts = np.exp(random.uniform(np.log(8), np.log(longest), 2000)).astype(int)
    return [" ".join(f"w{word}" for word in random.integers(0, 8000, n - 2)) for n in counts]


async def drive(url: str, given: list[str], seconds: float) -> list[float]:
    """Let clients ask for some seconds, and return the latencies in seconds."""
    loop, latencies = asyncio.get_running_loop(), []
    end = loop.time() + seconds
    left = iter(given * 100)

    async def client(session: httpx.AsyncClient) -> None:
        while loop.time() < end:
            began = loop.time()
            body = {"model": "m", "input": next(left), "encoding_format": "base64"}
            (await session.post(f"{url}/v1/embeddings", json=body)).raise_for_status()
            latencies.append(loop.time() - began)

    async with httpx.AsyncClient(timeout=120) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return latencies


def wait_for(url: str) -> None:
    """Wait until a side answers a text."""
    for _ in range(600):
        try:
            body = {"model": "m", "input": "w1", "encoding_format": "base64"}
            if httpx.post(f"{url}/v1/embeddings", json=body, timeout=10).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        subprocess.run(["sleep", "0.1"], check=True)
    raise RuntimeError(f"{url} does not answer")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--longest", type=int, nargs="+", default=[256, 32])
    parser.add_argument("--policies", nargs="*", default=[])
    asked = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "m"
        prepare = ROOT / "examples" / "embeddings" / "prepare.py"
        subprocess.run([sys.executable, prepare, folder], check=True, stdout=subprocess.DEVNULL)
        serve = [sys.executable, "-m", "headrace", "serve", "--api", "openai", "--port"]
        sides: dict[str, list[str]] = {}
        for number, policy in enumerate(["", *asked.policies]):
            config = Path(place) / f"p{number}.toml"
            said = f'batch_policy = "{policy}"\n' if policy else ""
            config.write_text(f'extends = "m"\n[global]\nthreads = 1\n[encode]\n{said}')
            sides[policy or "headrace"] = [*serve, "PORT", f"m={config}"]
        by_hand = str(Path(__file__).with_name("by_hand.py"))
        for kind in ("queue", "alone"):
            sides[kind] = [sys.executable, by_hand, str(folder), "PORT", kind]
        urls, running = {}, {}
        try:
            for name, command in sides.items():
                port = str(free_port())
                urls[name] = f"http://127.0.0.1:{port}"
                line = [port if one == "PORT" else one for one in command]
                running[name] = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)
            for url in urls.values():
                wait_for(url)
            for longest in asked.longest:
                measure(urls, {n: one.pid for n, one in running.items()}, longest, asked)
        finally:
            for one in running.values():
                one.terminate()
            for one in running.values():
                one.wait(30)


def measure(
    urls: dict[str, str], pids: dict[str, int], longest: int, asked: argparse.Namespace
) -> None:
    """Measure all sides in turn, and print a row for each."""
    given = texts(longest)
    cost_ms: dict[str, list[float]] = {name: [] for name in urls}
    times_s: dict[str, list[float]] = {name: [] for name in urls}
    for turn in range(asked.rounds + 1):
        for name, url in urls.items():
            before = processor_s(pids[name])
            found = asyncio.run(drive(url, given, asked.seconds if turn else 1.0))
            if turn:  # the first one warms up
                cost_ms[name].append(1000 * (processor_s(pids[name]) - before) / len(found))
                times_s[name] += found
    alone = statistics.median(cost_ms["alone"])
    for name in urls:
        cost = statistics.median(cost_ms[name])
        middle, late = np.percentile(times_s[name], [50, 99]) * 1000
        print(
            f"8 to {longest:3}  {name:50} {cost:6.2f} ms a request  alone/it {alone / cost:5.2f}"
            f"  p50 {middle:6.0f} ms  p99 {late:6.0f} ms  {len(times_s[name])} requests",
            flush=True,
        )


if __name__ == "__main__":
    main()
