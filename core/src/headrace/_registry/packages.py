"""A file of Python as a module of a package of its own folder, so that the helpers of two models never meet.

``model.py`` is the module ``FOLDER_HASH.model``. Its ``from .helper import x`` and its ``from helper import x`` both
find ``FOLDER_HASH.helper``, which lies beside it. So do those of the helper: each file of the package has an
``__import__`` of its own, which looks into the folder first. ``sys.path`` and the modules of others stay as they are.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, resolve_name
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace._registry.registry import registry

_packages: dict[str, Package] = {}
"""By name, the packages of all folders of which a file was run."""


def package_of(folder: Path) -> Package:
    """Return the package of a folder, the same one each time."""
    name = _named(folder.name, os.fsencode(folder))
    if not _packages:
        sys.meta_path.insert(0, _Finder)
    if name not in _packages:
        _packages[name] = Package(name, str(folder))
    return _packages[name]


def files_run(path: Path) -> list[str]:
    """Return a file that was run and those of its helpers."""
    return package_of(path.parent).files(path)


def _named(text: str, content: bytes) -> str:
    return re.sub(r"\W", "_", f"{text}_{_digest(content)[:12]}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Version:
    """One version of a file that was run: its content, the classes that it has registered, what it imports beside it."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.digest = path, _digest(source)
        self.classes: dict[str, type[Any]] = {}
        self.uses: dict[str, _Version] = {}

    def is_gone(self) -> bool:
        try:
            return _digest(Path(self.path).read_bytes()) != self.digest
        except OSError:
            return True


class Package:
    """The package of a folder."""

    def __init__(self, name: str, folder: str) -> None:
        self.name, self._folder = name, folder
        self._versions: dict[str, _Version] = {}
        self._named: set[str] = set()  # by `import` of a configuration
        self._beside: dict[str, bool] = {}
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        self._module = sys.modules[name] = module_from_spec(spec)

    def module_name(self, path: Path) -> str:
        """Return the name in ``sys.modules`` of a file of the folder."""
        stem = path.stem
        return f"{self.name}.{stem if stem.isidentifier() else _named(stem, os.fsencode(stem))}"

    def run(self, path: Path) -> dict[str, type[Any]]:
        """Run a file, unless its present version, with those of its helpers, was run already.

        Whatever it raises goes on, and leaves the modules of the package as they were.

        Returns:
            The classes that the file and its helpers have registered, by name.
        """
        name = self.module_name(path)
        stale, before = self._stale(), dict(self._versions)
        if name not in before or name in stale:
            modules = {one: sys.modules[one] for one in before if one in sys.modules}
            # Other files that a configuration names stay until they are run again: pipelines may pickle their classes.
            for one in stale & {*self._below(name), *(before.keys() - self._named)}:
                self._put(one, None)
            self._beside.clear()
            importlib.invalidate_caches()
            spec = ModuleSpec(name, loader := _Loader(self, name, str(path)), origin=str(path))
            spec.has_location = True
            module = module_from_spec(spec)
            self._put(name, module)
            try:
                loader.exec_module(module)
            except BaseException:
                for one in {*self._versions, name}:
                    self._put(one, None)
                for one, known in modules.items():
                    self._put(one, known)
                self._versions = before
                raise
            self._named.add(name)
        below = self._below(name)
        return {key: cls for one in reversed(below) for key, cls in below[one].classes.items()}

    def files(self, path: Path) -> list[str]:
        """Return the file, and those of its helpers as far as they were run."""
        return [one.path for one in self._below(self.module_name(path)).values()]

    def execute(self, module: ModuleType, path: str, source: bytes, code: Any) -> None:
        """Run the code of a module of the package."""
        name = module.__name__
        version = self._versions[name] = _Version(path, source)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        try:
            with registry.recording(name, version.classes):
                exec(code, vars(module))  # noqa: S102
        except BaseException:
            self._versions.pop(name, None)
            raise

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - as `__import__` calls it
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        own = globals or {}
        importer = str(own.get("__name__"))
        if level == 0 and self._is_beside(name.partition(".")[0], importer):
            own, level = vars(self._module), 1
        if level == 0:
            return builtins.__import__(name, globals, locals, fromlist or (), 0)
        found = builtins.__import__(name, own, locals, fromlist or (), level)
        user = self._versions.get(importer)
        if user is not None:
            base = resolve_name("." * level + name, str(own["__package__"]))
            parts = [*accumulate(base.split("."), "{}.{}".format)]
            parts += [f"{base}.{one}" for one in fromlist or ()]
            user.uses.update({one: self._versions[one] for one in parts if one in self._versions})
        return found

    def _is_beside(self, top: str, importer: str) -> bool:
        """Tell whether a name of an ``import`` means what lies in the folder.

        In a file that is named like a library its name means the library. What the program itself has imported from
        the folder is meant as well, and stays the program's.
        """
        full = f"{self.name}.{top}"
        if full == importer or full in sys.modules:
            return full != importer
        if top not in self._beside:
            spec = PathFinder.find_spec(top, [self._folder])
            if spec is None:
                known = True
            elif spec.loader is None:
                # A folder without __init__.py comes after every module with a file, as everywhere in Python.
                other = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
                known = other is not None and other.origin is not None
            else:
                file = getattr(sys.modules.get(top), "__file__", None) or ""
                known = os.path.realpath(file) == os.path.realpath(str(spec.origin))
            self._beside[top] = not known
        return self._beside[top]

    def _below(self, name: str) -> dict[str, _Version]:
        """Return the versions of a module and of all that it imports of the package, itself first."""
        found: dict[str, _Version] = {}
        left = [name]
        while left:
            one = left.pop()
            if one in self._versions and one not in found:
                found[one] = self._versions[one]
                left += [*found[one].uses]
        return found

    def _stale(self) -> set[str]:
        """Return the modules whose file holds another version now, and those that use one of them or an older one."""
        stale: set[str] = set()
        more = {name for name, one in self._versions.items() if one.is_gone()}
        while True:
            stale |= more
            more = {
                name
                for name, one in self._versions.items()
                if name not in stale
                and any(u in stale or self._versions.get(u) is not v for u, v in one.uses.items())
            }
            if not more:
                break
        return stale

    def _put(self, name: str, module: ModuleType | None) -> None:
        """Put a module where ``import`` looks for it; None takes it away."""
        parent, _, last = name.rpartition(".")
        holder = vars(sys.modules.get(parent, self._module))
        if module is None:
            sys.modules.pop(name, None)
            holder.pop(last, None)
            self._versions.pop(name, None)
        else:
            sys.modules[name] = holder[last] = module


class _Loader(SourceFileLoader):
    """Runs a file of a package from its source: the cache of Python takes two versions from one second for the same."""

    def __init__(self, package: Package, name: str, path: str) -> None:
        super().__init__(name, path)
        self._package = package

    def exec_module(self, module: ModuleType) -> None:
        source = Path(self.path).read_bytes()
        code = self.source_to_code(source, self.path)
        self._package.execute(module, self.path, source, code)


class _Finder:
    """Finds modules of packages of folders for Python."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = _packages.get(name.partition(".")[0])
        spec = None if package is None else PathFinder.find_spec(name, path, target)
        if package is not None and spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(package, name, spec.loader.path)
        return spec
