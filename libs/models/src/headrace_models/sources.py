"""What models are made of: configurations by name and version, on a device, and the files that they come from."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, Problem
from headrace.plugins import read_text
from headrace_models.fetching.onnx_files import leads_out, weights_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "ALIASES",
    "Entries",
    "Source",
    "check_name",
    "entries_of",
    "files_of",
    "folder_models",
    "is_shares",
    "own_entries",
    "read_aliases",
    "read_entries",
    "read_folder",
    "split",
    "stamp",
]

ALIASES = "aliases.toml"
"""The file in a folder of models whose keys are aliases and shares."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")
"""Without leading zeros, so that 1 and 01 are not two versions."""
GONE_S = 1.0
"""Seconds for which a file is missing until it counts as deleted."""
_WHOLE_BYTES = 1 << 20
"""Up to this size the contents of a file are compared; of larger ones size and times."""

Entries = dict[tuple[str, str], "Source"]
"""The source of each version, by name and version."""


@dataclass(frozen=True)
class Source:
    """Where the configuration of one version comes from.

    Attributes:
        config: A path of a TOML file, a dict, or a checked configuration. A dict that a plugin has read may have
            ``check_built(described)``. It gets ``describe()`` of each new pipeline, and raises ConfigError to refuse it.
        pinned: Whether the version's number was written with it, as in ``"detect:3"``: then a changed file is built
            again under the same number.
        device: The device to which `headrace_models.Models.move` has moved it. None: as the configuration says.
    """

    config: Any
    pinned: bool = False
    device: str | None = None

    @property
    def path(self) -> Path | None:
        """The path of the configuration, None for a dict or a checked configuration."""
        if headrace.plugins.is_address(self.config):
            return None  # what it stands for does not change
        return Path(self.config) if isinstance(self.config, (str, os.PathLike)) else None

    def load(
        self, *, allow_import: bool
    ) -> tuple[headrace.PipelineConfig, headrace.PipelineConfig]:
        """Read and check the configuration. Return it as it is written, and on the device of this source.

        Raises:
            ConfigError, SetupError: As `headrace.PipelineConfig.load` raises them, or it cannot be moved.
        """
        written = headrace.PipelineConfig.load(self.config, allow_import=allow_import)
        if self.device is None:
            return written, written
        moved = self._on_device(written)
        return written, headrace.PipelineConfig.load(moved, allow_import=allow_import)

    def _on_device(self, config: headrace.PipelineConfig) -> dict[str, Any]:
        """Return the configuration as a dict in which every node is on the device."""
        on = {"device": self.device}
        plain = config.to_dict()
        changes: dict[str, Any] = on
        if "backend" not in plain:
            nodes = [name for name in config.nodes if "device" in plain.get(name, {})]
            changes = {"global": on, **dict.fromkeys(nodes, on)}
        if self.path is not None:
            return {"extends": [str(self.path.absolute()).replace("${", "$${")], **changes}
        if headrace.plugins.is_address(self.config):
            return {"extends": [self.config.replace("${", "$${")], **changes}
        if not isinstance(self.config, Mapping):
            text = "a checked configuration cannot be moved, since it does not tell its folders"
            hint = "Name the model by the path of its file, or by a dict."
            raise ConfigError(Problem("models", text, hint=hint))
        laid = {key: value for key, value in self.config.items() if key not in changes}
        both = {
            key: {**self.config.get(key, {}), **changes[key]} for key in changes if key != "device"
        }
        return {**laid, **(both or on)}

    def files(self) -> set[Path]:
        """Return the file of the configuration and those that it extends; none for a dict."""
        paths: set[Path] = set()
        if self.path is not None:
            _add_extended(self.path.absolute(), paths)
        return paths


def files_of(nodes: Iterable[Mapping[str, Any]]) -> set[Path]:
    """Return the files that options name, from the nodes of `headrace.explain`.

    Those with the weights of a model of ONNX are among them, and all code beside a file of code.
    """
    files = {path for node in nodes for path in _named_in(node["tree"])}
    for path in [*files]:
        if path.suffix == ".py":
            files.update(path.parent.glob("*.py"))
        elif path.suffix == ".onnx":
            weights = [path.parent / name for name in weights_of(path) if not leads_out(name)]
            files.update(weight for weight in weights if weight.is_file())
    return files


def _add_extended(path: Path, paths: set[Path]) -> None:
    """Add a configuration file and all that it extends."""
    if path in paths:
        return
    paths.add(path)
    try:
        extends = tomllib.loads(read_text(path)).get("extends", [])
    except (
        OSError,
        ValueError,
        RecursionError,
    ):  # half-written. Loading the file reports its problems
        return
    for base in [extends] if isinstance(extends, str) else extends:
        if isinstance(base, str):
            _add_extended(path.parent / Path(os.path.expandvars(base)).expanduser(), paths)


def _named_in(tree: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files that the options of an element and of those below it name; checked paths are absolute."""
    for option in tree["options"].values():
        yield from _paths_in(option["value"])
    for child in tree["children"]:
        yield from _named_in(child)


def _paths_in(value: Any) -> Iterator[Path]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _paths_in(part)
    elif isinstance(value, str) and len(value) < 4096 and os.path.isabs(value):  # noqa: PTH117 - no Path for any text
        path = Path(value)
        if path.is_file():
            yield path


def stamp(path: Path) -> tuple[Any, ...]:
    """Return what changes when a file is written: its contents' hash, of a large file its size and times.

    Returns:
        An empty tuple if there is no such file, or it cannot be read.
    """
    try:
        status = path.stat()
        if status.st_size > _WHOLE_BYTES:
            return status.st_size, status.st_mtime_ns, status.st_ino
        return status.st_size, hashlib.blake2b(path.read_bytes()).digest()
    except OSError:
        return ()


def split(text: str) -> tuple[str, str | None]:
    """Split ``"detect:3"`` into name and version; the version is None if none is written."""
    name, colon, version = text.partition(":")
    return name, version if colon else None


def is_shares(value: Any) -> bool:
    """Return whether a value is a table of shares: ``{"detect:3": 0.9, "detect:4": 0.1}``."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(
            isinstance(num, (int, float)) and not isinstance(num, bool) for num in value.values()
        )
    )


def read_entries(models: Any) -> tuple[Entries, dict[str, Any]]:
    """Read what `headrace_models.Models` takes.

    Args:
        models: A dict of configurations by ``"name"`` or ``"name:version"``, in which a table of shares is an
            alias, or the path of a folder, see `read_folder`.

    Returns:
        The source of each version, and the target of each alias.

    Raises:
        ConfigError: A name or a version is wrong or is there twice, or a folder cannot be read.
        TypeError: ``models`` is neither a dict nor a path, or a model is no configuration.
    """
    if isinstance(models, (str, os.PathLike)):
        folder = Path(models)
        own = _own_models(folder)
        if own is None:
            return read_folder(folder), read_aliases(folder)
        return read_entries({name: _config_in(config) for name, config in own.items()})
    if not isinstance(models, Mapping):
        got = type(models).__name__
        raise TypeError(f"models are a dict of configurations by name, or a folder, got {got}")
    entries: Entries = {}
    aliases: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in models.items():
        name, version = split(str(key))
        if is_shares(value):
            aliases[name] = value
            continue
        if not isinstance(value, (str, os.PathLike, Mapping, headrace.PipelineConfig)):
            got = type(value).__name__
            raise TypeError(f"model {key!r} is a path, a dict or a PipelineConfig, got {got}")
        problem = _wrong(name, version)
        if problem is None and (name, version or "1") in entries:
            problem = Problem(
                "models", f"version {version or '1'} of model {name!r} is there twice"
            )
        if problem is None:
            entries[name, version or "1"] = Source(value, pinned=version is not None)
        else:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    return entries, aliases


def check_name(name: str) -> None:
    """Check the name of a model or alias.

    Raises:
        ConfigError: It has other characters.
    """
    if (problem := _wrong(name, None)) is not None:
        raise ConfigError(problem)


def _wrong(name: str, version: str | None) -> Problem | None:
    if not _NAME.fullmatch(name):
        hint = "A name has the characters A-Z a-z 0-9 _ . - and begins with a letter or digit, as does each part behind a /."
        return Problem("models", f"{name[:80]!r} is no name of a model", hint=hint)
    if version is not None and not _VERSION.fullmatch(version):
        text = f"{version[:80]!r} is no version of model {name!r}"
        return Problem("models", text, hint="A version is a whole number such as 2 or 10.")
    return None


def read_folder(folder: Path) -> Entries:
    """Read a folder of models: ``NAME.toml``, or ``NAME/3.toml`` for a version. Other files are left alone.

    A TOML file whose name begins with ``_`` or ``.`` is no model, so that other files can extend it. What a plugin reads,
    as ``NAME.onnx``, is a model as well, unless a TOML file beside it names it, or has its name.

    Raises:
        ConfigError: The folder cannot be read, or a name is wrong.
    """
    named: dict[str, str] = {}
    try:
        for path in _models_in(folder):
            if path.is_dir() and not headrace.plugins.reads(path):
                versions = [file for file in _models_in(path) if _VERSION.fullmatch(file.stem)]
                _add_named({f"{path.name}:{file.stem}": str(file) for file in versions}, named)
            elif path.name != ALIASES:
                _add_named({path.stem: str(path)}, named)
    except OSError as error:
        text = f"cannot read the folder of models: {error.strerror}"
        raise ConfigError(Problem("models", text, file=str(folder))) from error
    entries, _ = read_entries(named)
    return entries


def _add_named(models: dict[str, str], named: dict[str, str]) -> None:
    """Add the paths of models by name."""
    if both := models.keys() & named.keys():
        name = both.pop()
        text = (
            f"model {name!r} is there twice: {Path(named[name]).name} and {Path(models[name]).name}"
        )
        raise ConfigError(Problem("models", text, hint="Rename one of the files."))
    named.update(models)


def _models_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are models, or name some, and the folders in it."""
    paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    written = {p: p.read_bytes() for p in paths if p.suffix == ".toml" and not p.is_dir()}
    texts, stems = b"\n".join(written.values()), {path.stem for path in written}
    for path in paths:
        is_own = path.stem not in stems and os.fsencode(path.name) not in texts
        is_model = path in written or path.is_dir() or (is_own and headrace.plugins.reads(path))
        if is_model and not path.name.startswith("_"):
            yield path


_listed: dict[Path, set[str]] = {}
"""The names of the models in each folder that was listed."""
_again: dict[Path, Callable[[], dict[str, Any]]] = {}
"""What reads each folder again that a plugin has read as several models: it stays a repository until the process ends."""


def _own_models(path: Path) -> dict[str, Any] | None:
    """Return the models, by name, of a folder or file that a plugin reads; None for any other."""
    path = path.absolute()
    tables = headrace.plugins.tables_of(path)
    if tables is None and path in _again and path.is_dir():
        return _again[path]()
    if tables is None:
        return None
    if tables.keys() == {"models"}:
        models: dict[str, Any] = tables["models"]
        readers = (getattr(_config_in(model), "again", None) for model in models.values())
        _again[path] = next(filter(None, readers), _again.get(path, dict))
        return models
    return {path.name if path.is_dir() else path.stem: str(path)}


def own_entries(folder: Path) -> Entries | None:
    """Return the source of each version of a folder that a plugin reads as a whole; None for any other.

    Raises:
        ConfigError: The plugin refuses it. If it refuses some of several models, the error may have that of each by
            its name as ``refused``, and ``others``, the models of a serving file without them.
    """
    own = _own_models(folder)
    return None if own is None else entries_of(own)


def entries_of(models: Mapping[str, Any]) -> Entries:
    """Return the source of each version of the models of a serving file."""
    return read_entries({name: _config_in(model) for name, model in models.items()})[0]


def _config_in(entry: Any) -> Any:
    """Return the configuration of a model as a serving file has it."""
    is_entry = isinstance(entry, Mapping) and "config" in entry and "backend" not in entry
    return entry["config"] if is_entry else entry


def folder_models(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the models and aliases of a folder, as the dict that `headrace_models.Models` takes.

    A model that an earlier call has returned must be missing twice, a second apart, before it is left out.

    Returns:
        The path of each configuration by ``"NAME"`` for ``NAME.toml`` and ``"NAME:3"`` for ``NAME/3.toml``, and a table
        of shares for each alias. What the plugin gives that reads the folder as a whole, where one does.

    Raises:
        ConfigError: The folder or ``aliases.toml`` cannot be read, or a name is wrong.
    """
    path = Path(folder).absolute()
    models = _models_and_aliases(path)
    if _listed.get(path, set()).difference(split(key)[0] for key in models):
        threading.Event().wait(GONE_S)  # somebody deletes a model, or is moving its file
        models = _models_and_aliases(path)
    _listed[path] = {split(key)[0] for key in models}
    return models


def _models_and_aliases(path: Path) -> dict[str, Any]:
    own = _own_models(path)
    if own is not None:
        return own
    models: dict[str, Any] = {
        f"{name}:{number}" if source.pinned else name: source.config
        for (name, number), source in read_folder(path).items()
    }
    for alias, target in read_aliases(path).items():
        models[alias] = {target: 1.0} if isinstance(target, str) else target
    return models


def read_aliases(folder: Path) -> dict[str, Any]:
    """Read ``aliases.toml`` of a folder of models: ``live = {"detect:3" = 0.9, "detect:4" = 0.1}``.

    Raises:
        ConfigError: It is no TOML, or cannot be read. If there is none, there are no aliases.
    """
    path = folder / ALIASES
    try:
        table: dict[str, Any] = tomllib.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(Problem("models", f"cannot read it: {error}", file=str(path))) from error
    return table
