"""The servers that `benchmarks.serve.identity` measures, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import ROOT, on_cores

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BACKENDS", "SIDES", "Floor", "Headrace", "Side", "written_models"]

SIDES = (16, 150_000)
"""Elements of a request: 64 bytes, and 600 kB."""

START_SECONDS = 60.0
BACKENDS = Path(__file__).with_name("users_backends.py")
"""The file of the backends."""

_MODEL_OF_TRITON = '''"""A model as Triton's users write it."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", one.copy())]) for one in arrays]
'''
_CONFIG_OF_TRITON = """name: "triton"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""


def written_models(folder: Path) -> list[str]:
    """Write the models of ``headrace serve`` into a folder, and give the words that name them."""
    version = folder / "repository" / "triton" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL_OF_TRITON, encoding="utf-8")
    (version.parent / "config.pbtxt").write_text(_CONFIG_OF_TRITON, encoding="utf-8")
    imports = f"import = [{json.dumps(str(BACKENDS))}]"
    rows = []
    for n in SIDES:
        port = f'{{ datatype = "FP32", shape = [-1, {n}]'
        rows += [
            f"[models.n{n}]",
            f'config = {{ {imports}, backend = "CopyArray", max = 8 }}',
            f"inputs.x = {port}, batched = true }}",
            f"outputs.y = {port} }}",
        ]
    for name, backend in (("files", "CountBytes"), ("vectors", "LettersVector")):
        rows += [f"[models.{name}]", f'config = {{ {imports}, backend = "{backend}" }}']
    file = folder / "serve.toml"
    file.write_text("\n".join([*rows, ""]), encoding="utf-8")
    return ["--models", str(file), str(folder / "repository")]


class Side:
    """A server in a process of its own, ready when made.

    Attributes:
        port, grpc_port: Where it listens.
    """

    port: int
    grpc_port: int

    def __init__(self, command: Sequence[str], cores: Sequence[int] | None, **env: str) -> None:
        with on_cores(cores):
            self.process: Any = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **env},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def cpu_seconds(self) -> float:
        """Return the processor time of the process and of all below it; 0 where the system does not tell."""
        if not Path("/proc/self/stat").exists():
            return 0.0
        parents: dict[int, int] = {}
        for one in Path("/proc").iterdir():
            if one.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (one / "stat").read_text().rpartition(")")[2].split()
                    parents[int(one.name)] = int(fields[1])
        tree = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
            tree |= more
        return sum(_cpu_seconds(pid) for pid in tree)

    def stop(self) -> None:
        """End the server, and what it has started."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of one process; the clock that Linux has for it counts nanoseconds."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it has just ended
        return 0.0


class Floor(Side):
    """The bare servers under headrace-serve.

    Args:
        cores: Those that it may use. None: all.
        module: The program, in this folder.
    """

    def __init__(self, cores: Sequence[int] | None = None, module: str = "floor") -> None:
        self.port, self.grpc_port = _free_port(), _free_port()
        ports = [str(self.port), str(self.grpc_port)]
        super().__init__(["-m", f"benchmarks.serve.{module}", *ports], cores)
        until = time.perf_counter() + START_SECONDS
        for port in (self.port, self.grpc_port):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if self.process.poll() is not None or time.perf_counter() > until:
                        raise SystemExit(f"{module} does not start") from None
                    time.sleep(0.05)


class Headrace(Side):
    """``headrace serve`` of a checkout.

    Args:
        models: The words that name what it serves.
        cores: Those that it may use. None: all.
        checkout: The checkout. None: this one.
        metadata: An empty folder, for what another checkout's distributions say of themselves.
    """

    def __init__(
        self,
        models: Sequence[str],
        cores: Sequence[int] | None = None,
        checkout: Path | None = None,
        metadata: Path | None = None,
    ) -> None:
        env: Mapping[str, str] = {}
        if checkout is not None and metadata is not None:
            env = {"PYTHONPATH": _path_of(checkout.resolve(), metadata)}
        ports = ["--port", "0", "--grpc-port", "0", "--json", "--api", "openai"]
        super().__init__(["-m", "headrace_cli", "serve", *models, *ports], cores, **env)
        line = self.process.stdout.readline()
        said = json.loads(line) if line else {}
        if not said.get("ok"):
            raise SystemExit(f"headrace serve of {checkout or ROOT} does not start: {said}")
        self.port = int(said["url"].rpartition(":")[2])
        self.grpc_port = int(said["grpc_url"].rpartition(":")[2])


def _path_of(checkout: Path, metadata: Path) -> str:
    """Return PYTHONPATH for a checkout: its sources, and the entry points of its distributions, before those installed."""
    places = []
    parts = ("core", "cli", "testing", "libs/*", "plugins/*")
    for file in (file for part in parts for file in checkout.glob(f"{part}/pyproject.toml")):
        sources = file.parent / "src"
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name, version = project["name"], project["version"]
        about = metadata / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
        )
        groups = {**project.get("entry-points", {}), "console_scripts": project.get("scripts", {})}
        rows = [
            row
            for group, points in groups.items()
            for row in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
        ]
        (about / "entry_points.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
        places.append(str(sources))
    if not places:
        raise SystemExit(f"{checkout} is no checkout of this repository")
    return os.pathsep.join([str(metadata), *places, os.environ.get("PYTHONPATH", "")])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
