"""A file of Python as a module of a package of its folder: helpers of two models never meet.

``model.py`` is the module ``FOLDER_HASH.model``. Its ``from .helper import x`` and its ``from
helper import x`` both find ``FOLDER_HASH.helper``, which lies beside it. So do those of the helper:
each file of the package has an ``__import__`` of its own, which looks into the folder first.
``sys.path`` and the modules of others stay as they are.
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
from importlib.util import (
    find_spec,
    module_from_spec,
    resolve_name,
    spec_from_file_location,
)
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace._language.registry.registry import registry

_packages: dict[str, Package] = {}
"""By name, the packages of all folders of which a file was run."""


def package_of(folder: Path) -> Package:
    """Return the package of a folder, the same one each time."""
    name = _module_name(folder.name, os.fsencode(folder))
    if not _packages:
        sys.meta_path.insert(0, _Finder)
    if name not in _packages:
        _packages[name] = Package(name, str(folder))
    return _packages[name]


def _module_name(text: str, content: bytes) -> str:
    return re.sub(r"\W", "_", f"{text}_{_digest(content)[:12]}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Version:
    """One version of a file that was run: its content, its classes, what it imports beside it."""

    def __init__(self, module: ModuleType, path: str, source: bytes) -> None:
        self.module, self.path, self.digest = module, path, _digest(source)
        self.classes: dict[str, type[Any]] = {}
        self.uses: dict[_Version, None] = {}

    def is_present(self) -> bool:
        try:
            return _digest(Path(self.path).read_bytes()) == self.digest
        except OSError:
            return False


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
        return (
            f"{self.name}.{stem if stem.isidentifier() else _module_name(stem, os.fsencode(stem))}"
        )

    def run(self, path: Path) -> dict[str, type[Any]]:
        """Run a file, unless its present version, with those of its helpers, was run already.

        Whatever it raises goes on, and leaves the modules of the package as they were.

        Returns:
            The classes that the file and its helpers have registered, by name.
        """
        name, before = self.module_name(path), self._versions
        present = {version for version in before.values() if version.is_present()}
        # A version that was replaced is not present, even where its file holds the same content
        # again.
        fresh = {key: before[key] for key in before if present.issuperset(self._below(key))}
        if name not in fresh:
            # Other files that a configuration names stay until they are run again: pipelines may
            # pickle their classes.
            stay = self._named - {version.module.__name__ for version in self._below(name)}
            self._put_modules({key: before[key] for key in before if key in fresh or key in stay})
            self._beside.clear()
            importlib.invalidate_caches()
            spec: Any = spec_from_file_location(name, path, loader=_Loader(name, str(path)))
            module = sys.modules[name] = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                sys.modules.pop(name, None)
                self._put_modules(before)
                raise
            setattr(self._module, name.rpartition(".")[2], module)
            self._named.add(name)
        below = reversed(self._below(name))
        return {key: cls for version in below for key, cls in version.classes.items()}

    def files(self, path: Path) -> list[str]:
        """Return the file, and those of its helpers as far as they were run."""
        return [version.path for version in self._below(self.module_name(path))]

    def execute(self, module: ModuleType, loader: _Loader) -> None:
        """Run the code of a module of the package."""
        name, source = module.__name__, Path(loader.path).read_bytes()
        code = loader.source_to_code(source, loader.path)
        version = self._versions[name] = _Version(module, loader.path, source)
        imports_here = {**vars(builtins), "__import__": self._import}
        vars(module).update(__builtins__=imports_here, __sha256__=version.digest)
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
        scope, named = globals or {}, fromlist or ()
        importer = str(scope.get("__name__"))
        if level == 0 and self._is_beside(name.partition(".")[0], importer):
            scope, level = vars(self._module), 1
        module = builtins.__import__(name, scope, locals, named, level)
        user = self._versions.get(importer)
        if level and user is not None:
            base = resolve_name("." * level + name, str(scope["__package__"]))
            parts = [*accumulate(base.split("."), "{}.{}".format), *(f"{base}.{n}" for n in named)]
            user.uses |= {self._versions[n]: None for n in parts if n in self._versions}
        return module

    def _is_beside(self, top: str, importer: str) -> bool:
        """Tell whether a name of an ``import`` means what lies in the folder.

        In a file that is named like a library its name means the library. What the program itself
        has imported from the folder is meant as well, and stays the program's.
        """
        full = f"{self.name}.{top}"
        if full == importer or full in sys.modules:
            return full != importer
        if top not in self._beside:
            spec = PathFinder.find_spec(top, [self._folder])
            if spec is not None and spec.loader is None:
                # A folder without __init__.py comes after every module with a file, as everywhere
                # in Python.
                other = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
                self._beside[top] = other is None or other.origin is None
            else:
                file = getattr(sys.modules.get(top), "__file__", None) or ""
                same = spec and os.path.realpath(file) == os.path.realpath(str(spec.origin))
                self._beside[top] = spec is not None and not same
        return self._beside[top]

    def _below(self, name: str) -> list[_Version]:
        """Return the versions of a module, and of all that it imports of the package after it."""
        below: dict[_Version, None] = {}
        left = [self._versions[name]] if name in self._versions else []
        while left:
            if (version := left.pop()) not in below:
                below[version] = None
                left += version.uses
        return [*below]

    def _put_modules(self, versions: dict[str, _Version]) -> None:
        """Put these modules where ``import`` looks for them, and no others of the package."""
        for name in sorted(self._versions.keys() | versions.keys()):  # a package before its modules
            parent, _, last = name.rpartition(".")
            holder = vars(sys.modules.get(parent, self._module))
            if name in versions:
                sys.modules[name] = holder[last] = versions[name].module
            else:
                sys.modules.pop(name, None)
                holder.pop(last, None)
        self._versions = dict(versions)


class _Loader(SourceFileLoader):
    """Runs a file of a package from its source.

    The cache of Python takes two versions from one second for the same.
    """

    def exec_module(self, module: ModuleType) -> None:
        _packages[self.name.partition(".")[0]].execute(module, self)


class _Finder:
    """Finds modules of packages of folders for Python."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = _packages.get(name.partition(".")[0])
        spec = None if package is None else PathFinder.find_spec(name, path, target)
        if package is not None and spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path)
        return spec
