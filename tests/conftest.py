"""What several tests need: wheels, an environment of them, and pages that are followed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from functools import partial
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import httpx
import pytest
from environments import environment_with
from filelock import FileLock
from following import follow, variables
from packaging.requirements import Requirement
from pages import Page, copy_examples, succeed

if TYPE_CHECKING:
    from collections.abc import Callable

# A busy machine is ten times slower than an idle one, and httpx gives up after five seconds.
for _part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, 60.0)

ROOT = Path(__file__).resolve().parents[1]
PIP = {
    "PIP_RETRIES": "10",
    "PIP_TIMEOUT": "60",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # What is not imported need not be compiled. pip reads the variable as the value of "compile".
    "PIP_NO_COMPILE": "0",
}


@pytest.fixture(scope="session", autouse=True)
def patient_pip():
    """A package index that is slow, or away for a moment, fails no test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PIP.items():
            patch.setenv(name, value)
        yield


def shared(tmp_path_factory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that is made once in a run of the tests, however many processes share that."""
    top = tmp_path_factory.getbasetemp()
    folder = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            try:
                make(folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """One wheel per distribution, built by ``./dev wheels`` in one folder; by name of the package."""

    def make(folder: Path) -> None:
        # What builds them is in this environment; an empty one per wheel would need the index.
        environ = {**os.environ, "HEADRACE_ENV": sys.prefix, "PIP_NO_BUILD_ISOLATION": "0"}
        succeed(ROOT / "dev", "wheels", folder, env=environ)

    folder = shared(tmp_path_factory, "wheels", make)
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


PACKED = (
    *("headrace[cli,testing]", "headrace-cv", "headrace-ort", "headrace-serve", "onnx"),
    *("hatchling", "editables", "build", "pytest"),
)
"""What tests install and build with, besides distributions that they make."""


def required(wanted: tuple[str, ...]) -> dict[str, Distribution]:
    """Return by name what the requirements ask for, directly and through others, as it is installed."""
    found: dict[str, Distribution] = {}
    seen, waiting = set(), [(Requirement(text), "") for text in wanted]
    while waiting:
        requirement, extra = waiting.pop()
        name = requirement.name.lower()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for chosen in {"", *requirement.extras} - {e for n, e in seen if n == name}:
            seen.add((name, chosen))
            found[name] = distribution(name)
            waiting += [(Requirement(text), chosen) for text in found[name].requires or ()]
    return found


def pack(installed: Distribution, folder: Path) -> None:
    """Write a wheel of what is installed, but for its scripts, which pip makes of the entry points."""
    tags = re.findall(r"^Tag: (\S+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    columns = zip(*(tag.split("-") for tag in tags), strict=True)
    name, version = re.sub(r"[-_.]+", "_", installed.name), installed.version
    file_name = "-".join([name, version, *(".".join(sorted({*column})) for column in columns)])
    made_by_pip = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")
    rows = []
    with zipfile.ZipFile(folder / f"{file_name}.whl", "w") as archive:
        for file in installed.files or ():
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            if file.parent.suffix == ".dist-info":
                record = file.parent / "RECORD"
                if file.name in made_by_pip:
                    continue
            archive.write(file.locate(), file.as_posix())
            rows.append(f'"{file}",{file.hash.mode}={file.hash.value},{file.size}\n')
        archive.writestr(record.as_posix(), "".join([*rows, f'"{record}",,\n']))


@pytest.fixture(scope="session")
def pip_environ(wheels, tmp_path_factory) -> dict[str, str]:
    """Variables with which pip installs what tests need: our wheels, and what is installed here.

    It asks no index, so that a test needs no network, and gets the versions that all others use.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        for name, installed in required(PACKED).items():
            if not name.startswith("headrace"):
                pack(installed, folder)

    packed = shared(tmp_path_factory, "packed", make)
    links = f"{wheels['headrace'].parent} {packed}"
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links}


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of what ``./dev`` needs of the repository to build and to install it, and to read pictures."""
    folder = tmp_path / "headrace"
    left_out = shutil.ignore_patterns("tests", "made", "dist", "__pycache__", ".*")
    for name in ("core", "cli", "testing", "libs", "plugins", "scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    shutil.copytree(ROOT / "examples" / "ocr", folder / "examples" / "ocr", ignore=left_out)
    for name in ("dev", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def first_backend(pip_environ, tmp_path_factory) -> Path:
    """A folder in which ``docs/first_backend.md`` was followed, from nothing but pictures.

    ``printed.json`` there holds what each command printed, and the processor time of all.
    """
    import cv2
    import numpy as np

    def make(folder: Path) -> None:
        (folder / "photos").mkdir(parents=True)
        for name in ("a.jpg", "b.png"):
            cv2.imwrite(str(folder / "photos" / name), np.full((40, 60, 3), 100, np.uint8))
        began = seconds_of_children()
        page = Page("docs/first_backend.md")
        environ = variables(Path(sys.executable).parent, pip_environ)
        printed = follow(page, folder, environ=environ)
        saved = {"printed": printed, "seconds": seconds_of_children() - began}
        (folder / "printed.json").write_text(json.dumps(saved), encoding="utf-8")

    return shared(tmp_path_factory, "first-backend", make)


def seconds_of_children() -> float:
    """Return the processor time of the processes that were started and waited for."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="session")
def environment(first_backend, pip_environ, tmp_path_factory) -> Path:
    """An environment of its own with the wheels of a CPU pipeline and what they ask for.

    It is the one that the page about a first backend has made, and ``headrace-ort``.
    """
    environment = first_backend / ".venv"

    def make(folder: Path) -> None:
        python = environment / "bin" / "python"
        succeed(python, "-m", "pip", "install", "--quiet", "headrace-ort", env=pip_environ)
        folder.mkdir()

    shared(tmp_path_factory, "environment", make)
    return environment


@pytest.fixture(scope="session")
def ocr_made(tmp_path_factory) -> Path:
    """What ``examples/ocr/prepare.py`` makes: pictures and models."""

    def make(folder: Path) -> None:
        succeed(sys.executable, ROOT / "examples" / "ocr" / "prepare.py", "--into", folder)

    return shared(tmp_path_factory, "ocr-made", make)


@pytest.fixture
def after_demo(ocr_made, tmp_path) -> Path:
    """A folder with ``examples/ocr`` as ``./dev demo`` leaves it in a clone."""
    folder = copy_examples(tmp_path / "headrace", "ocr")
    shutil.copytree(ocr_made, folder / "examples" / "ocr" / "made")
    return folder


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def tritonserver() -> Path:
    """Return Triton's program, in an environment that is made if need be."""
    version = re.search(r"PyTriton\s+(\d[\d.]*\d)", Page("docs/from_triton.md").text)[1]
    try:
        home = environment_with(f"nvidia-pytriton=={version}", "numpy").parent
    except subprocess.CalledProcessError:
        pytest.skip("pip has no PyTriton for this Python")
    found = [*home.rglob("tritonserver/bin/tritonserver")]
    if not found:
        pytest.skip("this PyTriton brings no Triton for this machine")
    whole = found[0].parents[1]
    stub = (
        whole / "python_backend_stubs" / f"3.{sys.version_info[1]}" / "triton_python_backend_stub"
    )
    if not stub.exists():
        pytest.skip(f"this PyTriton has no stub for Python 3.{sys.version_info[1]}")
    with FileLock(f"{home}.lock"):
        if not (whole / "backends" / "python" / stub.name).exists():
            shutil.copy(stub, whole / "backends" / "python")
    return found[0]


@contextmanager
def run_triton(tritonserver, folder, *more, ready="ready"):
    """Run Triton on ``repository`` of a folder until the block ends, and give the ports of HTTP, gRPC and its metrics."""
    http, grpc, metrics = free_ports(3)
    home = tritonserver.parents[1]
    packages = home.parents[1]
    environ = {
        **os.environ,
        "PATH": f"{packages.parents[2] / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
    }
    ports = {"http": http, "grpc": grpc, "metrics": metrics}
    command = [
        tritonserver,
        "--model-repository=repository",
        f"--backend-directory={home / 'backends'}",
        *more,
    ]
    command += [f"--{name}-port={port}" for name, port in ports.items()]
    command += [f"--{name}-address=127.0.0.1" for name in ports]
    log = folder / "log.txt"
    with log.open("w") as written:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=written, stderr=written)
    try:
        for _ in range(3000):  # until it is ready; the limit only ends what hangs
            try:
                with urlopen(f"http://127.0.0.1:{http}/v2/health/{ready}", timeout=300):
                    break
            except OSError:
                pass
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(log.read_text(errors="replace"))
        yield http, grpc, metrics
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture(scope="session")
def triton_of(tritonserver):
    """Return `run_triton` with Triton's program."""
    return partial(run_triton, tritonserver)
