"""Requests per second of a model over HTTP, and processor time for each, at several numbers of clients, of servers in turn.

    python -m benchmarks.triton.clients MODEL URL[=PID]... [--clients 1 10 40] [--seconds 5] [--turns 3] [--rows]

Each URL is a server that has the model ``add_sub`` or another one with the inputs INPUT0 and INPUT1, FP32 [4], with
``--rows`` in a row each, FP32 [1, 4]. All servers run at the same time, and one of them gets requests. PID is the process of
the server: the time of the processes that it has started counts too. Prints a line for each server and number of clients:
the median of the turns, and all of them. On a machine with other work compare processor times.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import tritonclient.http as triton


def spent_s(pid: int) -> float:
    """Return the processor time of a process and of those that it has started, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    found = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    for thread in Path(f"/proc/{pid}/task").iterdir():
        children = (thread / "children").read_text(encoding="ascii").split()
        found += sum(spent_s(int(one)) for one in children)
    return found


def body_of(model: str, host: str, rows: bool) -> bytes:
    """Return the bytes of one request."""
    inputs = []
    shape = [1, 4] if rows else [4]
    for name in ("INPUT0", "INPUT1"):
        one = triton.InferInput(name, shape, "FP32")
        one.set_data_from_numpy(np.arange(4, dtype=np.float32).reshape(shape))
        inputs.append(one)
    body, size = triton.InferenceServerClient.generate_request_body(inputs)
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
    )
    if size is not None:
        head += f"Inference-Header-Content-Length: {size}\r\n"
    return f"{head}\r\n".encode() + body


async def client(host: str, port: int, request: bytes, until: float) -> int:
    """Send one request after the other; return how many were answered."""
    reader, writer = await asyncio.open_connection(host, port)
    count = 0
    while time.monotonic() < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        size = next(
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await reader.readexactly(size)
        count += 1
    writer.close()
    return count


async def load(url: str, model: str, clients: int, seconds: float, rows: bool) -> float:
    """Return the requests per second."""
    address = urlsplit(url)
    request = body_of(model, address.netloc, rows)
    until = time.monotonic() + seconds
    each = [
        client(str(address.hostname), int(address.port or 80), request, until)
        for _ in range(clients)
    ]
    return sum(await asyncio.gather(*each)) / seconds


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("url", nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 40])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", action="store_true")
    args = parser.parse_args()
    for clients in args.clients:
        found: dict[str, list[tuple[float, float]]] = {url: [] for url in args.url}
        for _ in range(args.turns):
            for server in args.url:
                url, _, pid = server.partition("=")
                before = spent_s(int(pid)) if pid else 0.0
                rate = asyncio.run(load(url, args.model, clients, args.seconds, args.rows))
                spent = spent_s(int(pid)) - before if pid else 0.0
                found[server].append((rate, spent / (rate * args.seconds) * 1e6))
        for server, turns in found.items():
            rates, times = zip(*turns, strict=True)
            every = " ".join(f"{rate:.0f}/{spent:.0f}" for rate, spent in turns)
            median = statistics.median
            print(
                f"{clients:3} clients {server}: {median(rates):.0f}/s, {median(times):.0f} us ({every})"
            )


if __name__ == "__main__":
    main()
