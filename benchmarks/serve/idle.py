"""The cost of idle connections: memory and processor time of a server to which a thousand clients are connected.

    python -m benchmarks.serve.idle [--connections 1000] [--seconds 10] [--json FILE]

Each connection has had one request and stays open. Wanted: less than 50 MB for a thousand, and no processor time.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from benchmarks.load import arguments, environment, print_environment, save
from benchmarks.serve.identity import Served, rest_request


def resident_bytes(pid: int) -> int:
    """Return the memory of a process; 0 where the system does not tell."""
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return 0
    (line,) = (one for one in path.read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    count, seconds = (50, 0.5) if options.quick else (options.connections, options.seconds)
    about = environment(["headrace-serve", "uvicorn", "uvloop"])
    print_environment(about)
    served = Served("benchmarks.serve.ours")
    request = rest_request(16)
    connections = []
    try:
        for _ in range(100):  # the memory of modules that the first requests load must not count
            with socket.create_connection(("127.0.0.1", served.port), timeout=60) as one:
                one.sendall(request)
                one.recv(1 << 16)
        before = resident_bytes(served.process.pid)
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", served.port), timeout=60)
            one.sendall(request)
            one.recv(1 << 16)
            connections.append(one)
        after = resident_bytes(served.process.pid)
        cpu = served.cpu_seconds()
        time.sleep(seconds)
        used = served.cpu_seconds() - cpu
    finally:
        for one in connections:
            one.close()
        served.stop()
    print(
        f"{count} connections: {(after - before) / 1e6:.1f} MB (wanted: below 50),"
        f" {used:.2f} s of processor time in {seconds:g} s (wanted: none)"
    )
    save(options.json, about, {"bytes": after - before, "cpu_seconds": used})


if __name__ == "__main__":
    sys.exit(main())
