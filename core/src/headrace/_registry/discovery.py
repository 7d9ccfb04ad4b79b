"""Names that are known without an import: core's own, and those in the metadata of installed plugins.

A plugin is a distribution with entry points in one of our groups. Its state is one of:

``ok``
    It can be used, as far as its metadata tells.
``disabled``
    ``HEADRACE_PLUGINS`` does not allow it.
``incompatible``
    Its ``Requires-Dist: headrace...`` does not admit this version of core.
``broken``
    Its metadata cannot be read, or its hooks fail.
``missing_dependency``
    Its module with hooks imports a library that is not there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace._registry.backends import plain_path

if TYPE_CHECKING:
    from email.message import Message
    from importlib.metadata import Distribution, EntryPoint

BACKENDS = "headrace.backends"
HOOKS = "headrace.plugins"
_GROUPS = (BACKENDS, HOOKS)
_OURS = re.compile(r"\s*headrace\b(?![-_.]*\w)", re.IGNORECASE)


@dataclass
class PluginRecord:
    """What is known of one plugin.

    Attributes:
        plugin: The qualifier in ``plugin:Name``: the distribution's normalised name without a
            leading ``headrace-``.
        distribution, version: As installed.
        requires: The range of core it asks for, as written; empty when it names none.
        dependencies: All that it requires, as its metadata say.
        backends: Name of each backend and its import path.
        hooks: Import paths of its modules with hooks.
        state, reason, remedy: See the module; the last two are None for ``ok``.
        managers: Its hook modules, once they are loaded, by import path.
        answers: What its hooks gave, by the name of the hook; each is called once.
    """

    plugin: str
    distribution: str
    version: str
    requires: str = ""
    dependencies: tuple[str, ...] = field(default=(), repr=False)
    backends: dict[str, str] = field(default_factory=dict)
    hooks: list[str] = field(default_factory=list)
    state: str = "ok"
    reason: str | None = None
    remedy: str | None = None
    managers: dict[str, Any] = field(default_factory=dict, repr=False)
    answers: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    def refuse(self, state: str, reason: str, remedy: str = "") -> None:
        """Say that nothing of it can be used; ``remedy`` is to install it again unless it is given."""
        again = f"Install it again: pip install --force-reinstall {self.distribution}"
        self.state, self.reason, self.remedy = state, reason, remedy or again


def normalised_plugin(distribution: str) -> str:
    """Give the qualifier of a distribution: ``Headrace_CV`` is ``cv``."""
    name = re.sub(r"[-_.]+", "-", distribution).lower()
    return name.removeprefix("headrace-") if name != "headrace" else name


def discover() -> list[PluginRecord]:
    """List all installed plugins, ordered by name, with their states.

    Of distributions that are no plugins nothing but ``entry_points.txt`` is read, of plugins the
    head of their metadata too, once.
    """
    from importlib.metadata import entry_points

    points = entry_points()
    by_source: dict[object, list[EntryPoint]] = {}
    for group in _GROUPS:
        for point in points.select(group=group):
            source = id(point.dist) if point.dist is not None else _module_of(point)
            by_source.setdefault(source, []).append(point)
    by_name: dict[str, PluginRecord] = {}
    for found in by_source.values():
        _add(by_name, found)
    if (allowed := os.environ.get("HEADRACE_PLUGINS")) is not None:
        for record in by_name.values():
            _check_allowed(record, allowed)
    return [record for _, record in sorted(by_name.items())]


def _module_of(point: EntryPoint) -> str:
    return plain_path(point.value).partition(":")[0].partition(".")[0]


def _add(by_name: dict[str, PluginRecord], points: list[EntryPoint]) -> None:
    """Make the record of one distribution, or add to that of another of the same name."""
    dist = points[0].dist
    unreadable: Exception | None = None
    version, dependencies = "unknown", tuple[str, ...]()
    name = _module_of(points[0])  # however broken the metadata is, it has a name
    try:
        head = _head(dist)
        name = head["Name"] or name
        version = head["Version"] or version
        dependencies = tuple(head.get_all("Requires-Dist") or (dist and dist.requires) or ())
    except Exception as error:  # noqa: BLE001 - one plugin's bad metadata must not stop the others
        unreadable = error
    known = name in by_name
    made = PluginRecord(normalised_plugin(name), name, version, dependencies=dependencies)
    record = by_name.setdefault(name, made)
    _add_points(record, points)
    if known:
        return
    try:
        _check_range(record)
    except Exception as error:  # noqa: BLE001 - as above
        unreadable = unreadable or error
    if unreadable is not None:
        record.refuse("broken", f"its metadata cannot be read: {unreadable}")


def _head(dist: Distribution | None) -> Message:
    """Give the fields of the metadata; the description after them may be long, and is not read."""
    from email.parser import HeaderParser

    names = ("METADATA", "PKG-INFO", "")
    text = next(filter(None, map(dist.read_text, names)), "") if dist is not None else ""
    return HeaderParser().parsestr(re.split(r"\r?\n\r?\n", text, maxsplit=1)[0])


def _add_points(record: PluginRecord, points: list[EntryPoint]) -> None:
    for point in points:
        path = plain_path(point.value)
        if point.group == HOOKS:
            if path not in record.hooks:
                record.hooks.append(path)
        elif record.backends.setdefault(point.name, path) != path:
            twice = f"it offers the backend {point.name!r} twice"
            record.refuse("broken", twice, "Ask its author for a version that offers it once.")


def _check_range(record: PluginRecord) -> None:
    """Compare what the plugin requires of core with the core that runs."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for wanted in map(Requirement, filter(_OURS.match, record.dependencies)):
        here = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if not here or canonicalize_name(wanted.name) != "headrace":
            continue
        record.requires = str(wanted.specifier)
        if not wanted.specifier.contains(headrace.__version__, prereleases=True):
            record.refuse(
                "incompatible",
                f"it requires headrace {record.requires}, this is {headrace.__version__}",
                f"Install versions that fit: pip install --upgrade {record.distribution} headrace",
            )


def _check_allowed(record: PluginRecord, allowed: str) -> None:
    """Apply ``HEADRACE_PLUGINS``: ``cv,ort`` allows only these, ``-torch`` denies, empty none."""
    words = [normalised_plugin(word.strip()) for word in allowed.split(",") if word.strip()]
    denied = {normalised_plugin(word[1:].strip()) for word in words if word.startswith("-")}
    only = {word for word in words if not word.startswith("-")}
    if record.plugin in denied or (not denied and not only) or (only and record.plugin not in only):
        remedy = f"Add {record.plugin!r} to HEADRACE_PLUGINS, or unset it."
        if record.plugin in denied:
            remedy = f"Take '-{record.plugin}' out of HEADRACE_PLUGINS."
        record.refuse("disabled", f"HEADRACE_PLUGINS={allowed} does not allow it", remedy)


_ALL = re.compile(r"^__all__ = \[(.*?)\]", re.MULTILINE | re.DOTALL)


def _words() -> dict[str, str]:
    """Find the words of core without importing one: each module of `headrace.words` lists its own.

    A name that stands for another one there (``Aspect = DI``) is an alias of that word.
    """
    found: dict[str, str] = {}
    for file in sorted(Path(__file__).parents[1].joinpath("words").glob("[a-z]*.py")):
        text = file.read_text(encoding="utf-8")
        listed = _ALL.search(text)
        for name in re.findall(r"\w+", listed[1]) if listed is not None else ():
            alias = re.search(rf"^{name} = (\w+)$", text, re.MULTILINE)
            found[name] = f"headrace.words.{file.stem}:{alias[1] if alias is not None else name}"
    return found


CORE_BACKENDS = _words()
"""The backends of core and where each class is."""

CORE_BATCH_POLICIES = {"greedy": "headrace.policies:Greedy"}
CORE_DISPATCH_POLICIES = {"best_fit": "headrace.policies:BestFit"}
CORE_POLICIES = {**CORE_BATCH_POLICIES, **CORE_DISPATCH_POLICIES}
"""The policies of core and where each class is."""

_BY_DISTRIBUTION = {
    "headrace-cv": (
        "CropMat CvtColorMat DecodeMat EncodeMat LetterBoxMat Mat2Tensor NMS PerspectiveCropMat "
        "ResizeMat Tensor2Mat TopLeftResizeMat UnletterBox"
    ),
    "headrace-observe": "Benchmark",
    "headrace-ort": "OnnxTensor",
    "headrace-torch": (
        "ArgMaxTensor CatTensor ContiguousTensor CpuTensor CropTensor CvtColorTensor DecodeTensor "
        "FixTensor GpuTensor IndexSelectTensor NormalizeTensor PadTensor ResizeTensor SoftmaxTensor "
        "SplitTensor StreamPool SyncTensor TopKTensor TorchModule"
    ),
    "headrace-trt": (
        "LoadTensorrtEngine Onnx2Tensorrt TensorrtCat TensorrtInferTensor TensorrtSplit "
        "TensorrtTensor"
    ),
}

KNOWN_ELSEWHERE = {
    name: distribution for distribution, names in _BY_DISTRIBUTION.items() for name in names.split()
}
"""Names of well-known backends and the distribution to install for each."""


def how_to_install(distribution: str) -> str:
    """Say how to install a distribution of `KNOWN_ELSEWHERE`, also from a clone of the repository."""
    folder = f"./plugins/{normalised_plugin(distribution)}"
    return (
        f"Install it: pip install {distribution}, or in a clone of Headrace: pip install {folder}"
    )
