"""The tests of each distribution with the lowest versions of what it requires, in an environment of its own.

python scripts/lowest.py [FOLDER ...]              all distributions but those of `LEFT_OUT` without arguments; exit 1 when any fails
python scripts/lowest.py --imports [FOLDER ...]    tests of these, and of all others each module is imported

What a distribution names in `dependencies`, and in the extras that its tests use, is installed in the lowest version that its
range has and that is there for this Python. Once a package index has Headrace (`address.ON_INDEX`), so are the
distributions of this repository that it needs, in the lowest version of their range; until then they are those of the checkout.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from address import ON_INDEX
from distributions import ROOT, folders, project
from packaging.requirements import Requirement

LEFT_OUT = {
    "headrace-ray": "ray needs hundreds of megabytes for each version: ./dev test ray has its own",
    "headrace-torch": "torch needs gigabytes for each version: ./dev test torch has its own",
    "headrace-trt": "TensorRT needs gigabytes for each version",
}
"""What is only tested where it is named."""

TOOLS = (
    "editables>=0.5",
    "filelock>=3.12",
    "hatchling>=1.26",
    "pip>=24",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.7",
)
HYPOTHESIS = (
    'hypothesis==6.170.15; python_version >= "3.11"',
    'hypothesis==6.168.5; python_version < "3.11"',
)
"""What every test uses, in the version of requirements/first.txt."""

EXTRAS = {
    "headrace-cv": ("formats",),
    "headrace-models": ("watch",),
    "headrace-observe": ("prometheus", "otel", "plot"),
    "headrace-serve": ("metrics", "watch"),
    "headrace-vision": ("cli",),
}
"""The extras that tests use."""

TESTS = {
    "headrace": ("jsonschema>=4.20", "numpy>=2"),
    "headrace-flow": ("numpy>=1.24",),
    "headrace-models": ("numpy>=1.24",),
    "headrace-ort": ("onnx>=1.16",),
    "headrace-remote": ("httpx>=0.28", "onnx>=1.16", "tritonclient[http,grpc]>=2.50"),
    "headrace-serve": (
        "h2>=4.1",
        "httpx>=0.28",
        "jsonschema>=4.20",
        "onnx>=1.16",
        "tritonclient[http,grpc]>=2.60",
    ),
    "headrace-text": ("httpx>=0.28", "onnx>=1.16"),
    "headrace-triton": ("onnx>=1.16", "tritonclient[http,grpc]>=2.60"),
    "headrace-vision": ("onnx>=1.16",),
}
"""What else the tests of a distribution import."""

LIGHT = {"headrace-vision": ("pydeprecate", "scipy", "trackers>=2.6")}
"""What tests use without what it depends on: trackers asks for an OpenCV with windows, in the folder of the one without."""

BESIDE = {
    "headrace": ("headrace-cli", "headrace-flow", "headrace-process", "headrace-tensors"),
    "headrace-cli": ("headrace-flow", "headrace-process", "headrace-cv", "headrace-observe"),
    "headrace-flow": ("headrace-cli", "headrace-process", "headrace-tensors"),
    "headrace-models": ("headrace-cli", "headrace-flow", "headrace-serve"),
    "headrace-observe": ("headrace-cli", "headrace-cv", "headrace-flow", "headrace-tensors"),
    "headrace-ort": ("headrace-cli", "headrace-cv"),
    "headrace-process": ("headrace-cli", "headrace-cv", "headrace-flow", "headrace-ort"),
    "headrace-remote": ("headrace-cli", "headrace-cv", "headrace-ort", "headrace-serve"),
    "headrace-serve": (
        "headrace-cli",
        "headrace-cv",
        "headrace-flow",
        "headrace-ort",
        "headrace-observe",
    ),
    "headrace-text": ("headrace-flow", "headrace-ort", "headrace-serve"),
    "headrace-triton": (
        "headrace-cli",
        "headrace-flow",
        "headrace-ort",
        "headrace-process",
        "headrace-serve",
    ),
    "headrace-vision": ("headrace-cv", "headrace-ort"),
}
"""Distributions of this repository that its tests use besides those that it needs."""


IMPORTS = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    try:
        module.name.endswith("__main__") or importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", package.__name__):
            raise
        print(f"{module.name} is left out: it needs {error.name}, which an extra brings")
"""
"""Imports each module of a package but what starts a program, and those that need an extra which is not installed."""


def needed(name: str, projects: dict[str, dict], extras: tuple[str, ...] = ()) -> list[Requirement]:
    """Return what a distribution requires of this Python, with some extras."""
    table = projects[name]
    texts = [*table.get("dependencies", ())]
    texts += [one for extra in extras for one in table.get("optional-dependencies", {})[extra]]
    found = [Requirement(text) for text in texts]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def plan(
    name: str, *, tests: bool = True, on_index: bool = ON_INDEX
) -> tuple[list[str], list[str]]:
    """Return what to install for a distribution, or its tests: requirements, and names of distributions of the checkout."""
    projects = {project(folder)["name"]: project(folder) for folder in folders()}
    lowest = {str(one) for one in (*TOOLS, *(TESTS.get(name, ()) if tests else ()))}
    if tests and name != "headrace-testing":
        lowest |= set(HYPOTHESIS)
    beside = ["headrace-testing", *(BESIDE.get(name, ()) if tests else ())]
    if on_index:
        lowest |= {str(one) for one in needed(name, projects, EXTRAS.get(name, ()))}
        return sorted({*lowest, *beside} - {name}), [name]
    own: list[str] = []
    waiting = [name, *beside]
    while waiting:
        one = waiting.pop(0)
        if one in own:
            continue
        own.append(one)
        for requirement in needed(one, projects, EXTRAS.get(one, ()) if one == name else ()):
            if requirement.name not in projects:
                lowest.add(str(requirement))
                continue
            waiting.append(requirement.name)
            inner = needed(requirement.name, projects, tuple(requirement.extras))
            waiting += [each.name for each in inner if each.name in projects]
            lowest |= {str(each) for each in inner if each.name not in projects}
    return sorted(lowest), own


def run(name: str, environment: Path, arguments: list[str], *, imports: bool) -> bool:
    """Make the environment of a distribution, print what is in it, run its tests or import it; return whether they pass."""
    where = {project(folder)["name"]: folder for folder in folders()}
    requirements, own = plan(name, tests=not imports)
    python = environment / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run(
        [*uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True
    )
    subprocess.run([*install, "--resolution", "lowest-direct", *requirements], check=True)
    editable = [part for one in own for part in ("--editable", str(where[one]))]
    subprocess.run([*install, "--no-deps", "--no-build-isolation", *editable], check=True)
    if name in LIGHT and not imports:
        subprocess.run([*install, "--no-deps", "--resolution", "lowest", *LIGHT[name]], check=True)
    subprocess.run([*uv, "pip", "list", "--python", str(python), "--exclude-editable"], check=True)
    if imports:
        (package,) = (where[name] / "src").iterdir()
        program = [str(python), "-c", IMPORTS, package.name]
        return subprocess.run(program, cwd=environment, check=False).returncode == 0
    tests = [
        str(python),
        "-m",
        "pytest",
        str(where[name] / "tests"),
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    quick = ["-m", "not slow", "-n", str(os.cpu_count() or 1), "--dist", "loadfile"]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environ["PATH"] = os.pathsep.join([str(python.parent), environ["PATH"]])
    return (
        subprocess.run([*tests, *quick, *arguments], cwd=ROOT, env=environ, check=False).returncode
        == 0
    )


def main(arguments: list[str]) -> int:
    """Run the tests of distributions, or import them; return 1 when any fails."""
    named = [ROOT / argument for argument in arguments if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-")]
    imports = "--imports" in options
    options = [option for option in options if option != "--imports"]
    failed = []
    others = [folder for folder in folders() if folder not in named]
    for folder in (*named, *others) if imports or not named else named:
        name = project(folder)["name"]
        is_named = folder in named
        if not is_named and name in LEFT_OUT:
            print(f"{name} is left out: {LEFT_OUT[name]}")
            continue
        print(
            f"== {name} with the lowest versions, Python {sys.version.split()[0]}, {dt.datetime.now(tz=dt.timezone.utc).date()}",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as made:
            if not run(name, Path(made) / "environment", options, imports=imports and not is_named):
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all pass")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
