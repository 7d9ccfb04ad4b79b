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
import weakref
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import headrace
from headrace_observe.certify.gpu import devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.plan import Plan

    _State: TypeAlias = tuple[tuple[int, ...], list[tuple[int, ...]]]

__all__ = ["Held", "differences", "identity"]

_REQUIRED = re.compile(r"\s*([\w.-]+)")
_PRECISION_OF_TORCH = (
    *("backends.fp32_precision", "backends.cuda.matmul.fp32_precision"),
    *("backends.cudnn.conv.fp32_precision", "backends.cudnn.allow_tf32"),
    "backends.cuda.matmul.allow_tf32",
)
_PRECISION = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")


class Held:
    """The files of an `identity`, open from their digest on: so one that takes the place of another is seen.

    An open file keeps its inode. Each write to it, and each rename of it or of a link that leads to it, changes a time that
    no program can set.
    """

    def __init__(self) -> None:
        self._files: dict[Path, tuple[str, _State]] = {}
        self._closes: list[weakref.finalize[..., Held]] = []

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file, which stays open; of a module that a configuration imports, of what has run."""
        if path not in self._files:
            before = _state(path)
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self._closes.append(weakref.finalize(self, os.close, descriptor))
            with open(descriptor, "rb", closefd=False) as file:
                digest = _digest_of_run(path) or _sha256_of(file)
            same = _times(os.fstat(descriptor)) == before[0]
            self._files[path] = (
                digest,
                before if same else ((), []),
            )  # else it was replaced just now
        return self._files[path][0]

    def changed(self) -> list[str]:
        """Return the names of the files that are no longer those of the digests."""
        return [path.name for path, (_, before) in self._files.items() if _state(path) != before]

    def close(self) -> None:
        """Close the files."""
        for close in self._closes:
            close()


def _times(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _state(path: Path) -> _State:
    """Return what differs once a path leads to another file: of the file, and of each link on the way there."""
    links, left = [], path.absolute()
    for _ in range(40):  # as many as Linux follows
        link = next((path for path in (*reversed(left.parents), left) if path.is_symlink()), None)
        if link is None:
            break
        links.append(_times(link.lstat()))
        left = Path(os.path.normpath(link.parent / link.readlink())) / left.relative_to(link)
    return _times(path.stat()) if path.exists() else (), links


def identity(
    config: headrace.PipelineConfig,
    *,
    in_use: bool = True,
    hashes: Held | None = None,
    modules: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Return what decides the results of a configuration here, as plain data for JSON.

    Args:
        config: The configuration.
        in_use: Whether only the GPUs count on which this process has computed.
        hashes: Keeps the files open. None: nothing does.
        modules: The modules of a certificate. None: those that this process has loaded of packages with backends.

    Returns:
        ``{"config_sha256", "files", "external_data", "modules", "versions", "python", "machine", "gpu"}``. ``files`` has
        the SHA-256 of the imported Python files and the files that options name, ``modules`` that of the
        modules. ``external_data`` is True if the weights outside of ONNX models are among the files, False if they cannot
        be found since onnx is not installed, None without a model of ONNX. ``gpu`` is None without a GPU.
    """
    plan = config.plan()
    hashes = hashes or Held()
    files = [*config.files, *_files_of(plan)]
    models = [file for file in files if file.suffix == ".onnx"]
    external: bool | None = True if models else None
    try:
        files += [file for model in models for file in _external(model)]
    except ImportError:
        external = False
    names = _distributions(plan)
    code = _loaded_modules(config, plan, names) if modules is None else modules
    return {
        "config_sha256": hashlib.sha256(_text_of(config, plan).encode()).hexdigest(),
        "files": {str(file): hashes.sha256(file) for file in dict.fromkeys(files)},
        "external_data": external,
        "modules": {name: _digest_of_module(name) for name in sorted(code)},
        "versions": _versions(chain(names, *map(_required_by, names))),
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
        [name, node.expression, node.to_dict()["links"], _values(node.values)]
        for name, node in plan.nodes.items()
    ]
    elements = [
        [part.name, len(part.children), part.prefix_texts, _values(part.values)]
        for tree in _trees(plan)
        for part in tree.walk()
    ]
    return json.dumps(_without_folders([sizes, nodes, elements]), sort_keys=True, default=str)


def _values(of: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.value for key, value in of.items() if key != "batch_sizes"}


def _without_folders(value: Any) -> Any:
    """Return a value in which each absolute path is its name, since a certificate holds in any folder."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(item) for item in value]
    is_path = isinstance(value, str) and Path(value).is_absolute()
    return Path(value).name if is_path else value


def _trees(plan: Plan) -> list[Any]:
    return [tree for node in plan.nodes.values() for tree in node.trees]


def _files_of(plan: Plan) -> Iterator[Path]:
    """Yield the files that options name, also those of ``file.py:name`` and ``module:name``."""
    left = [
        value.value
        for tree in _trees(plan)
        for part in tree.walk()
        for value in part.values.values()
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


def _sha256_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


# The code that runs.


def _digest_of_run(path: Path) -> str | None:
    """Return the SHA-256 of a file that a configuration imports, as it has run; None of any other file."""
    for module in [*sys.modules.values()]:
        if getattr(module, "__file__", None) == str(path) and "__sha256__" in vars(module):
            return str(vars(module)["__sha256__"])
    return None


def _distributions(plan: Plan) -> list[str]:
    """Return the distributions of backends, and the libraries of Headrace that they require."""
    elements = [part for tree in _trees(plan) for part in tree.walk()]
    names = dict.fromkeys(["headrace", *(el.distribution for el in elements if el.version)])
    left = [*names]
    while left:
        new = [name for name in _required_by(left.pop()) if name.startswith("headrace-")]
        left += [name for name in new if name not in names]
        names.update(dict.fromkeys(new))
    return [*names]


def _required_by(name: str) -> list[str]:
    """Return what a distribution requires; with its extras, if these are no parts of Headrace."""
    try:
        texts = metadata.distribution(name).requires or ()
    except metadata.PackageNotFoundError:
        return []
    pairs = [(match[1], text) for text in texts if (match := _REQUIRED.match(text)) is not None]
    own = [(name, text) for name, text in pairs if name.startswith("headrace")]
    extra = {name for name, text in own if "extra" in text.partition(";")[2]}
    return [name for name, _ in pairs if name not in extra]


def _versions(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in sorted({*names}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


_loaded: dict[str, tuple[object, tuple[int, ...]]] = {}
"""The spec of each module that was loaded when it was hashed first, and the state of its file then."""


def _loaded_modules(config: headrace.PipelineConfig, plan: Plan, names: Iterable[str]) -> set[str]:
    """Return the modules with backends, and those that this process has loaded of their packages and of distributions."""
    elements = [part for tree in _trees(plan) for part in tree.walk()]
    own = {el.distribution for el in elements if not el.version} - {*map(str, config.files)}
    brought = [rec.backends for rec in headrace.plugins.installed() if rec.distribution in names]
    modules = {path.partition(":")[0] for paths in brought for path in paths.values()} | own
    packages = {name.replace("-", "_") for name in names}
    packages |= {module.partition(".")[0] for module in modules}
    loaded = [name for name in [*sys.modules] if name.partition(".")[0] in packages]
    return own | {name for name in loaded if _file_of(name) is not None}


def _file_of(module: str) -> Path | None:
    """Return the file of a module, whether it is loaded or not."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module not in sys.modules:
        with contextlib.suppress(ImportError, ValueError):
            file = getattr(find_spec(module), "origin", None)
    return Path(file) if file is not None and Path(file).is_file() else None


def _digest_of_module(name: str) -> str | None:
    """Return the SHA-256 of a module's file. None: it has none, or no longer that which this process has loaded."""
    path = _file_of(name)
    if path is None:
        return None
    if name in sys.modules:
        now = getattr(sys.modules[name], "__spec__", None), _times(path.stat())
        known = _loaded.get(name, now)
        _loaded[name] = known if known[0] is now[0] else now
        if _loaded[name] != now:
            return None
    with path.open("rb") as file:
        return _sha256_of(file)


def _gpu(*, in_use: bool) -> dict[str, Any] | None:
    gpus = devices(in_use=in_use)
    if gpus is None:
        return None
    names = [str(dist.name) for dist in metadata.distributions()]
    libraries = [name for name in names if name.startswith(("nvidia-", "tensorrt"))]
    return {**gpus, "versions": _versions(libraries), "precision": _precision()}


def _precision() -> dict[str, Any]:
    """Return what decides, outside of a configuration, how exactly a GPU multiplies."""
    values: dict[str, Any] = {name: os.environ.get(name) for name in _PRECISION}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        values["torch deterministic"] = torch.are_deterministic_algorithms_enabled()
    for path in _PRECISION_OF_TORCH:
        # An older torch has not all of them, and torch refuses to tell if old and new ones were mixed.
        with contextlib.suppress(AttributeError, RuntimeError):
            values[f"torch.{path}"] = attrgetter(path)(torch)
    return values


# The comparison.


def differences(past: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return in sentences how a configuration here differs from what a certificate says. Both are an `identity`."""
    sentences = []
    if past["config_sha256"] != here["config_sha256"]:
        sentences.append("the configuration is another one")
    names = [[Path(path).name for path in of["files"]] for of in (past, here)]
    if names[0] != names[1]:
        sentences.append(f"it reads {_joined(names[1])}, not {_joined(names[0])}")
    else:
        pairs = zip(names[0], past["files"].values(), here["files"].values(), strict=True)
        sentences += [f"{name} has changed" for name, then, now in pairs if then != now]
    if past["external_data"] is False or (past["external_data"] and not here["external_data"]):
        sentences.append("weights outside of ONNX models cannot be compared without onnx")
    sentences += [
        f"{name} is in no file, or has changed since it was loaded"
        if digest is None
        else f"{name} has changed"
        for name, digest in here["modules"].items()
        if digest is None or digest != past["modules"][name]
    ]
    sentences += [_sentence(*change) for change in _changed(past["versions"], here["versions"])]
    for key in ("python", "machine"):
        if past[key] != here[key]:
            sentences.append(_sentence(key, past[key], here[key]))
    return sentences + _differences_of_gpus(past["gpu"], here["gpu"])


def _differences_of_gpus(past: Any, here: Any) -> list[str]:
    if past is None:
        return []
    if here is None:
        return [f"there is no {' or '.join(device['name'] for device in past['devices'])} here"]
    sentences = [
        _sentence(key, past[key], here[key]) for key in ("driver", "cuda") if past[key] != here[key]
    ]
    sentences += [
        f"there is no {device['name']} ({device['compute_capability']}) here"
        for device in past["devices"]
        if device not in here["devices"]
    ]
    sentences += [_sentence(*change) for change in _changed(past["versions"], here["versions"])]
    # torch may be imported later: until then it has its defaults, which nobody can ask for.
    both = past["precision"].keys() & here["precision"].keys()
    then, now = ({key: of["precision"][key] for key in sorted(both)} for of in (past, here))
    return sentences + [_sentence(*change) for change in _changed(then, now)]


def _changed(past: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return each key whose value differs, with both values."""
    keys = dict.fromkeys([*past, *here])
    return [(key, past.get(key), here.get(key)) for key in keys if past.get(key) != here.get(key)]


def _sentence(name: str, past: Any, here: Any) -> str:
    then, now = ("missing" if value is None else value for value in (past, here))
    return f"{name} was {then}, here it is {now}"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(names) or "no file"
