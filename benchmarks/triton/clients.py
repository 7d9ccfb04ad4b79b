"""Requests per second of a model over HTTP, at several numbers of clients, of servers in turn.

    python -m benchmarks.triton.clients MODEL URL... [--clients 1 10 40] [--seconds 5] [--turns 3]

Each URL is a server that has the model ``add_sub`` or another one with the inputs INPUT0 and INPUT1, FP32 [4]. All
servers run at the same time, and one of them gets requests. Prints a line for each server and number of clients: the
median of the turns, and all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from urllib.parse import urlsplit

import numpy as np
import tritonclient.http as triton


def body_of(model: str, host: str) -> bytes:
    """Return the bytes of one request."""
    inputs = []
    for name in ("INPUT0", "INPUT1"):
        one = triton.InferInput(name, [4], "FP32")
        one.set_data_from_numpy(np.arange(4, dtype=np.float32))
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


async def load(url: str, model: str, clients: int, seconds: float) -> float:
    """Return the requests per second."""
    address = urlsplit(url)
    request = body_of(model, address.netloc)
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
    args = parser.parse_args()
    for clients in args.clients:
        found: dict[str, list[float]] = {url: [] for url in args.url}
        for _ in range(args.turns):
            for url in args.url:
                found[url].append(asyncio.run(load(url, args.model, clients, args.seconds)))
        for url, rates in found.items():
            every = " ".join(f"{one:.0f}" for one in rates)
            print(f"{clients:3} clients {url}: {statistics.median(rates):.0f}/s ({every})")


if __name__ == "__main__":
    main()
