"""Fixtures that the tests of the command line share."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import textwrap

import pytest

from headrace._registry.registry import registry

AT_START = list(sys.path)


@pytest.fixture(scope="session", autouse=True)
def environment_read_once():
    """Which package is whose is read once of the environment; anew of folders that tests put before it."""
    read = importlib.metadata.packages_distributions
    known = read()

    def with_folders_of_tests():
        added = [folder for folder in sys.path if folder not in AT_START]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "path", added)
            found = read()
        return {name: [*found.get(name, ()), *known.get(name, ())] for name in {**found, **known}}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(importlib.metadata, "packages_distributions", with_folders_of_tests)
        yield


BACKENDS = """
import headrace
class {name}(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = "{result}"
"""


class Site:
    """A folder of fake installed distributions."""

    def __init__(self, folder):
        self.folder = folder

    def add(self, name, points="", modules=None, requires=("headrace>=0.1,<0.2",), version="1.0"):
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(points))
        for module, code in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(textwrap.dedent(code))

    def backend(self, name, backend, module, result="x", **more):
        points = f"[headrace.backends]\n{backend} = {module}:{backend}\n"
        code = BACKENDS.format(name=backend, result=result)
        self.add(name, points, {module: code}, **more)


@contextlib.contextmanager
def fake_site(folder):
    """Let a folder hold the installed distributions; nothing is registered before or after."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.setattr(registry, "_plugins", None)
        patched.setattr(registry, "local", {})
        before = set(sys.modules)
        yield Site(folder)
        registry.refresh()
        for name in set(sys.modules) - before:
            if name.startswith("hrt_"):
                del sys.modules[name]


@pytest.fixture
def site(tmp_path):
    """Return a folder for fake installed distributions."""
    with fake_site(tmp_path / "site") as made:
        yield made


@pytest.fixture(scope="module")
def site_of_module(tmp_path_factory):
    """The same for all tests of a module."""
    with fake_site(tmp_path_factory.mktemp("module") / "site") as made:
        yield made
