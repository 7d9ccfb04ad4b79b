"""The client programs of Triton's Python backend, as they are, against `headrace serve` of the models beside them.

    python -m benchmarks.triton.examples CHECKOUT [--python PROGRAM] [--only NAME...]

CHECKOUT is a clone of github.com/triton-inference-server/python_backend. For each example the models that its README
names are put into a folder as that README says, `headrace serve` serves the folder on the ports of Triton (8000, 8001,
and 8002 for metrics), and the client runs until it ends. ``--python`` is an interpreter with tritonclient and requests
for the clients. Exit status 1 if a client fails that is not in `NEEDS`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODELS = {
    "add_sub": ("add_sub/model.py", "add_sub/config.pbtxt"),
    "pytorch": ("pytorch/model.py", "pytorch/config.pbtxt"),
    "batch_auto_complete": ("auto_complete/batch_model.py", "auto_complete/batch_config.pbtxt"),
    "nobatch_auto_complete": (
        "auto_complete/nobatch_model.py",
        "auto_complete/nobatch_config.pbtxt",
    ),
    "bls_sync": ("bls/sync_model.py", "bls/sync_config.pbtxt"),
    "bls_async": ("bls/async_model.py", "bls/async_config.pbtxt"),
    "bls_decoupled_sync": ("bls_decoupled/sync_model.py", "bls_decoupled/sync_config.pbtxt"),
    "bls_decoupled_async": ("bls_decoupled/async_model.py", "bls_decoupled/async_config.pbtxt"),
    "square_int32": ("decoupled/square_model.py", "decoupled/square_config.pbtxt"),
    "repeat_int32": ("decoupled/repeat_model.py", "decoupled/repeat_config.pbtxt"),
    "custom_metrics": ("custom_metrics/model.py", "custom_metrics/config.pbtxt"),
    "resnet50": ("instance_kind/model.py", "instance_kind/config.pbtxt"),
    "jax": ("jax/model.py", "jax/config.pbtxt"),
}
"""By the name of a model: its file and its configuration, below ``examples``."""

CLIENTS = {
    "add_sub/client.py": ["add_sub"],
    "pytorch/client.py": ["pytorch"],
    "auto_complete/client.py": ["batch_auto_complete", "nobatch_auto_complete"],
    "bls/sync_client.py": ["bls_sync", "add_sub", "pytorch"],
    "bls/async_client.py": ["bls_async", "add_sub", "pytorch"],
    "bls_decoupled/sync_client.py": ["bls_decoupled_sync", "square_int32"],
    "bls_decoupled/async_client.py": ["bls_decoupled_async", "square_int32"],
    "decoupled/square_client.py": ["square_int32"],
    "decoupled/repeat_client.py": ["repeat_int32"],
    "custom_metrics/client.py": ["custom_metrics"],
    "instance_kind/client.py": ["resnet50"],
    "jax/client.py": ["jax"],
}
"""By client: the models that it needs."""

NEEDS = {
    "instance_kind/client.py": "it fetches weights from torch.hub",
    "jax/client.py": "it needs jax",
}
"""Clients that may fail, with the reason."""


def repository(examples: Path, models: list[str], folder: Path) -> Path:
    """Put models into a folder as Triton wants them; return the folder."""
    for name in models:
        (folder / name / "1").mkdir(parents=True)
        code, config = (examples / one for one in MODELS[name])
        shutil.copy(code, folder / name / "1" / "model.py")
        shutil.copy(config, folder / name / "config.pbtxt")
    return folder


def judge(examples: Path, client: str, python: str) -> tuple[bool, str]:
    """Serve the models of a client, and run it; return whether it ended well, and its last line."""
    with tempfile.TemporaryDirectory() as made, (Path(made) / "log").open("w+") as log:
        folder = repository(examples, CLIENTS[client], Path(made) / "models")
        ports = ["--port", "8000", "--grpc-port", "8001", "--admin-port", "8002"]
        command = [sys.executable, "-m", "headrace_cli", "serve", str(folder), *ports, "--json"]
        how: Any = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        with subprocess.Popen([*command, "--debug-errors"], **how) as server:
            try:
                if '"http' not in (server.stdout.readline() if server.stdout else ""):
                    log.seek(0)
                    server.kill()
                    return False, f"the server: {log.read().strip()[-2000:]}"
                program = [python, str(examples / client)]
                clean = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
                ran = subprocess.run(program, capture_output=True, text=True, env=clean, timeout=60)
            except subprocess.TimeoutExpired:
                return False, "the client has not ended after 60 seconds"
            finally:
                server.terminate()
    told = (ran.stdout + ran.stderr).strip().splitlines() or [""]
    return ran.returncode == 0, next((one for one in told if one.startswith("PASS")), told[-1])


def main() -> int:
    """Run the clients."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=[*CLIENTS])
    args = parser.parse_args()
    bad = 0
    for client in args.only:
        files = [client, *(file for one in CLIENTS[client] for file in MODELS[one])]
        missing = [one for one in files if not (args.checkout / "examples" / one).exists()]
        if missing:
            good, told = False, f"the checkout lacks {missing[0]}"
        else:
            good, told = judge(args.checkout / "examples", client, args.python)
        may = NEEDS.get(client, "")
        bad += not good and not may
        print(
            f"{'ok' if good else 'FAILS'} {client}: {told}{f' ({may})' if may else ''}", flush=True
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
