"""Run the tests marked ``gpu`` from a checkout, with pytest and without any installation.

scripts/check gpu                    the tests of every plugin whose library is there
scripts/check gpu --parallel         in a process per core, by pytest-xdist; those marked whole_device follow, one after another
scripts/check gpu --device cuda:1    on another device: conformance, races and most others of torch, ort and trt
scripts/check gpu -k race -x         what pytest takes

Needs pytest, what core needs, and the plugins' libraries (torch; ONNX Runtime and others if they are
there); neither a package index nor the tools of the other checks. The distributions are found
through PYTHONPATH: their metadata are written into a temporary folder, as an installation would.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from distributions import ROOT, sources, write_metadata

LIBRARIES = {"trt": "tensorrt", "torch": "torch", "ort": "onnxruntime", "observe": "pynvml"}
"""Per plugin with tests for a GPU: the library that the tests need. Those that take longest come first."""

MORE = {
    "torch": (
        "tests/test_callers_streams_on_gpu.py",
        "tests/test_device_spans.py",
        "tests/test_models_on_gpu.py",
        "tests/test_two_devices_on_gpu.py",
        "libs/models/tests/test_models_devices.py",
    ),
    "trt": (
        "tests/test_tensorrt_pages.py",
        "tests/test_example_detect.py",
        "tests/test_trt_with_torch.py",
    ),
}
"""Tests of documents and examples that run a plugin on a GPU, and of several plugins together."""

SETTINGS = """[pytest]
addopts = -ra --import-mode=importlib
markers =
    gpu: needs a CUDA device
    whole_device: needs all of that device, its memory or its time
    slow: takes more than a few seconds of a processor
    peers: runs another framework or tool
    stress: races, ends and leaks over minutes
    timeout: for pytest-timeout, where that is installed
"""

LEFT_OUT = "not imports-lazily and not missing-library"
"""Leaves out the rules about imports: they need no GPU, and start processes that import the library."""

NOTHING_FOUND = 5
"""The exit status of pytest where ``-k`` leaves nothing, as it may for one of two runs."""


def chosen() -> list[str]:
    """Return the files with tests for a GPU that can run here, and say which plugins cannot.

    Other files are not even looked at: they may need tools that are not there.
    """
    found = []
    for name, library in LIBRARIES.items():
        folder = ROOT / "plugins" / name / "tests"
        if not folder.is_dir():
            continue
        if importlib.util.find_spec(library) is None:
            print(f"plugins/{name}: not run, {library} is not installed here", flush=True)
        else:
            files = sorted(folder.glob("test_*.py"))
            found += [str(ROOT / file) for file in MORE.get(name, ())]
            found += [str(one) for one in files if "mark.gpu" in one.read_text(encoding="utf-8")]
    return found


def run(command: list[str], environ: dict[str, str]) -> tuple[int, list[str], Counter[str]]:
    """Run pytest and print what it prints; give its exit status, the lines that name what failed, and its counts."""
    failed, counts = [], Counter()
    with subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                failed.append(line)
            elif summary := re.match(r"[= ]*((?:\d+ [a-z]+,? )+)in [0-9.]+s\b", line):
                counts = Counter(
                    {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", summary[1])}
                )
    return process.returncode, failed, counts


def main(arguments: list[str]) -> int:
    """Run pytest on them; give its exit status, or that of the first of two runs that fails."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--parallel", nargs="?", type=int, const=os.cpu_count() or 8)
    parser.add_argument("--device", default=os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0"))
    asked, arguments = parser.parse_known_args(arguments)
    files = chosen()
    if not files:
        print("nothing to run", file=sys.stderr)
        return 2
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        write_metadata(Path(temporary))
        settings = Path(temporary) / "pytest.ini"
        settings.write_text(SETTINGS, encoding="utf-8")
        beside = [ROOT / "scripts", ROOT / "tests", ROOT / "libs" / "tensors" / "tests"]
        path = [temporary, *map(str, [*beside, *sources()]), os.environ.get("PYTHONPATH", "")]
        environ = {
            **os.environ,
            "HEADRACE_TORCH_DEVICE": asked.device,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }
        command = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(ROOT)]
        command += ["--confcutdir", str(ROOT / "plugins"), "-p", "no:cacheprovider", "-m", "gpu"]
        if "-k" not in arguments:
            command += ["-k", LEFT_OUT]
        command += [*files, *arguments]
        if asked.parallel is None:
            return subprocess.run(command, env=environ, cwd=ROOT, check=False).returncode
        spread = ["-n", str(asked.parallel), "--dist", "worksteal"]
        runs = [
            run([*command, "-m", "gpu and not whole_device", *spread], environ),
            run([*command, "-m", "gpu and whole_device"], environ),
        ]
    print("".join(line for _, failed, _ in runs for line in failed), end="")
    counts = sum((counts for *_, counts in runs), Counter()).most_common()
    aside = ("deselected", "warning", "warnings")
    summary = ", ".join(f"{number} {word}" for word, number in counts if word not in aside)
    print(f"{asked.device}: {summary} in {time.monotonic() - begun:.0f} s")
    statuses = [status for status, *_ in runs if status != NOTHING_FOUND]
    return next(filter(None, statuses), 0 if statuses else NOTHING_FOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
