"""Says what a configuration runs here: files, modules, versions, GPUs; and how that differs from what was certified."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace_observe.gpu import devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.plan import Plan

__all__ = ["differences", "identity"]

_REQUIRED = re.compile(r"\s*([\w.-]+)")
_PRECISION_OF_TORCH = (
    *("backends.fp32_precision", "backends.cuda.matmul.fp32_precision"),
    *("backends.cudnn.conv.fp32_precision", "backends.cudnn.allow_tf32"),
    "backends.cuda.matmul.allow_tf32",
)
_PRECISION = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")


def identity(config: headrace.PipelineConfig, *, in_use: bool = True) -> dict[str, Any]:
    """Return what decides the results of a configuration here, as plain data for JSON.

    Args:
        config: The configuration.
        in_use: Whether only the GPUs count on which this process has computed.

    Returns:
        ``{"config_sha256", "files", "external_data", "modules", "versions", "python", "machine", "gpu"}``. ``files`` has
        the SHA-256 of the imported Python files and the files that options name, ``modules`` that of the packages with its
        backends. ``external_data`` is True if the weights outside of ONNX models are among the files, False if they cannot
        be found since onnx is not installed, None without a model of ONNX. ``gpu`` is None without a GPU.
    """
    plan = config.plan()
    files = [*config.files, *_files_of(plan)]
    models = [one for one in files if one.suffix == ".onnx"]
    external: bool | None = True if models else None
    try:
        files += [one for model in models for one in _external(model)]
    except ImportError:
        external = False
    names = _distributions(plan)
    return {
        "config_sha256": hashlib.sha256(_text_of(config, plan).encode()).hexdigest(),
        "files": {str(one): _sha256(one) for one in dict.fromkeys(files)},
        "external_data": external,
        "modules": dict(sorted(_modules(config, plan, names))),
        "versions": _versions([*names, *(one for name in names for one in _required_by(name))]),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": f"{platform.system()} {platform.machine()}",
        "gpu": _gpu(in_use=in_use),
    }


def _text_of(config: headrace.PipelineConfig, plan: Plan) -> str:
    """Return a text that differs if a value differs that may count for results: probes do not, nor how it is written."""
    # A certificate may restrict the sizes of a node. Here they count as written.
    tables = {"": config.to_dict(), **config.to_dict()}
    sizes = {
        name: table["batch_sizes"]
        for name, table in tables.items()
        if isinstance(table, Mapping) and "batch_sizes" in table
    }
    nodes = [
        [name, node.expression, node.links.to_dict(), _values(node.keys)]
        for name, node in plan.nodes.items()
    ]
    elements = [
        [part.name, len(part.children), part.prefixes, _values(part.options)]
        for tree in _trees(plan)
        for part in tree.walk()
    ]
    return json.dumps(_without_folders([sizes, nodes, elements]), sort_keys=True, default=str)


def _values(of: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one.value for key, one in of.items() if key != "batch_sizes"}


def _without_folders(value: Any) -> Any:
    """Return a value in which each absolute path is its name, since a certificate holds in any folder."""
    if isinstance(value, Mapping):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(one) for one in value]
    is_path = isinstance(value, str) and Path(value).is_absolute()
    return Path(value).name if is_path else value


def _trees(plan: Plan) -> list[Any]:
    return [tree for node in plan.nodes.values() for tree in node.trees]


def _files_of(plan: Plan) -> Iterator[Path]:
    """Yield the files that options name, also those of ``file.py:name`` and ``module:name``."""
    left = [
        one.value for tree in _trees(plan) for part in tree.walk() for one in part.options.values()
    ]
    while left:
        value = left.pop(0)
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
        elif isinstance(value, str):
            for text in dict.fromkeys((value, value.rpartition(":")[0])):
                with contextlib.suppress(OSError, ValueError):  # a text that is no path
                    if Path(text).is_absolute() and Path(text).is_file():
                        yield Path(text)
            module, _, _ = value.rpartition(":")
            if all(part.isidentifier() for part in module.split(".")):
                with contextlib.suppress(ImportError, ValueError):
                    spec = find_spec(module)
                    if spec is not None and spec.has_location:
                        yield Path(str(spec.origin))


def _external(model: Path) -> Iterator[Path]:
    """Yield the files beside a model of ONNX that hold its weights.

    Raises:
        ImportError: onnx is not installed.
    """
    onnx = importlib.import_module("onnx")
    left: list[Any] = [onnx.load(str(model), load_external_data=False)]
    while left:
        message = left.pop()
        if isinstance(message, onnx.TensorProto):
            for entry in message.external_data:
                if entry.key == "location":
                    yield model.parent / entry.value
            continue
        for kind, value in message.ListFields():
            if kind.message_type is not None:
                left += [value] if hasattr(value, "ListFields") else value


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


# The code that runs.


def _distributions(plan: Plan) -> list[str]:
    """Return the distributions of backends, and the libraries of Headrace that they require."""
    elements = [part for tree in _trees(plan) for part in tree.walk()]
    found = dict.fromkeys(["headrace", *(one.distribution for one in elements if one.version)])
    left = [*found]
    while left:
        new = [one for one in _required_by(left.pop()) if one.startswith("headrace-")]
        left += [one for one in new if one not in found]
        found.update(dict.fromkeys(new))
    return [*found]


def _required_by(name: str) -> list[str]:
    """Return what a distribution requires; with its extras, if these are no parts of Headrace."""
    try:
        texts = metadata.distribution(name).requires or ()
    except metadata.PackageNotFoundError:
        return []
    pairs = [(match[1], text) for text in texts if (match := _REQUIRED.match(text)) is not None]
    own = [(one, text) for one, text in pairs if one.startswith("headrace")]
    extra = {one for one, text in own if "extra" in text.partition(";")[2]}
    return [one for one, _ in pairs if one not in extra]


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in sorted({*names}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _modules(
    config: headrace.PipelineConfig, plan: Plan, names: Iterable[str]
) -> Iterator[tuple[str, str | None]]:
    """Yield the path and the SHA-256 of each module of the outermost packages in which backends are. None: no file."""
    modules = {one.replace("-", "_") for one in names}
    for plugin in headrace.plugins.installed():
        if plugin.distribution in names:
            modules |= {path.partition(":")[0] for path in plugin.backends.values()}
    registered = {part.distribution for tree in _trees(plan) for part in tree.walk()}
    own = registered - {one.distribution for one in plan.asks_for if one.version}
    modules |= own - {*map(str, config.files)}
    places = {module: _place(module) for module in modules}
    yield from ((module, None) for module in own if places.get(module, True) is None)
    for place, depth in {*filter(None, places.values())}:
        for file in [place] if place.is_file() else place.rglob("*"):
            if file.suffix in {".py", ".so", ".pyd"}:
                yield file.relative_to(place.parents[depth]).as_posix(), _sha256(file)


def _place(module: str) -> tuple[Path, int] | None:
    """Return the outermost package of a module, or its file, and how many namespaces it is in. None: it has no file."""
    parts = module.split(".")
    for depth in range(len(parts)):
        with contextlib.suppress(ImportError, ValueError):
            spec = find_spec(".".join(parts[: depth + 1]))
            if spec is not None and spec.origin is not None:
                file = Path(spec.origin)
                return file if spec.submodule_search_locations is None else file.parent, depth
    file_of_main = getattr(sys.modules.get(module), "__file__", None)
    return None if file_of_main is None else (Path(file_of_main), 0)


def _gpu(*, in_use: bool) -> dict[str, Any] | None:
    found = devices(in_use=in_use)
    if found is None:
        return None
    names = [str(one.name) for one in metadata.distributions()]
    libraries = [one for one in names if one.startswith(("nvidia-", "tensorrt"))]
    return {**found, "versions": _versions(libraries), "precision": _precision()}


def _precision() -> dict[str, Any]:
    """Return what decides, outside of a configuration, how exactly a GPU multiplies."""
    said: dict[str, Any] = {name: os.environ.get(name) for name in _PRECISION}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        said["torch deterministic"] = torch.are_deterministic_algorithms_enabled()
    for path in _PRECISION_OF_TORCH:
        # An older torch has not all of them, and torch refuses to tell if old and new ones were mixed.
        with contextlib.suppress(AttributeError, RuntimeError):
            said[f"torch.{path}"] = attrgetter(path)(torch)
    return said


# The comparison.


def differences(said: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return in sentences how a configuration here differs from what a certificate says. Both are an `identity`."""
    found = []
    if said["config_sha256"] != here["config_sha256"]:
        found.append("the configuration is another one")
    names = [[Path(path).name for path in of["files"]] for of in (said, here)]
    if names[0] != names[1]:
        found.append(f"it reads {_joined(names[1])}, not {_joined(names[0])}")
    else:
        pairs = zip(names[0], said["files"].values(), here["files"].values(), strict=True)
        found += [f"{name} has changed" for name, then, now in pairs if then != now]
    if said["external_data"] is False or (said["external_data"] and not here["external_data"]):
        found.append("weights outside of ONNX models cannot be compared without onnx")
    changed = _changed(said["modules"], here["modules"])
    found += [f"{name} has changed" for name, _, _ in changed]
    found += [f"{name} is in no file" for name, sha in here["modules"].items() if sha is None]
    found += [_sentence(*one) for one in _changed(said["versions"], here["versions"])]
    for key in ("python", "machine"):
        if said[key] != here[key]:
            found.append(_sentence(key, said[key], here[key]))
    return found + _differences_of_gpus(said["gpu"], here["gpu"])


def _differences_of_gpus(said: Any, here: Any) -> list[str]:
    if said is None:
        return []
    if here is None:
        return [f"there is no {' or '.join(one['name'] for one in said['devices'])} here"]
    found = [
        _sentence(key, said[key], here[key]) for key in ("driver", "cuda") if said[key] != here[key]
    ]
    found += [
        f"there is no {one['name']} ({one['compute_capability']}) here"
        for one in said["devices"]
        if one not in here["devices"]
    ]
    found += [_sentence(*one) for one in _changed(said["versions"], here["versions"])]
    # torch may be imported later: until then it has its defaults, which nobody can ask for.
    both = said["precision"].keys() & here["precision"].keys()
    then, now = ({key: of["precision"][key] for key in sorted(both)} for of in (said, here))
    return found + [_sentence(*one) for one in _changed(then, now)]


def _changed(said: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return each key whose value differs, with both values."""
    keys = dict.fromkeys([*said, *here])
    return [(key, said.get(key), here.get(key)) for key in keys if said.get(key) != here.get(key)]


def _sentence(name: str, said: Any, here: Any) -> str:
    then, now = ("missing" if one is None else one for one in (said, here))
    return f"{name} was {then}, here it is {now}"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(names) or "no file"
