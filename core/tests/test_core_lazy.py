"""Packages whose public names are imported when they are first used."""

import importlib
import sys

import pytest

INIT = """
from headrace.lazy import lazy_names

__all__ = ["Scale", "grow"]
__getattr__, __dir__ = lazy_names(__name__, {"things": "Scale grow:_grow", "": "tools"})
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_shop"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "things.py").write_text("class Scale: pass\ndef _grow(): return 7\n")
    (folder / "tools.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("lazy_shop")
    for name in [one for one in sys.modules if one.startswith("lazy_shop")]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_first_used(package):
    assert "lazy_shop.things" not in sys.modules
    assert package.Scale is sys.modules["lazy_shop.things"].Scale
    assert package.__dict__["Scale"] is package.Scale
    assert package.grow() == 7
    assert package.tools is sys.modules["lazy_shop.tools"]


def test_all_names_are_listed_and_come_by_a_star(package):
    assert dir(package) == ["Scale", "grow", "tools"]
    found = {}
    exec("from lazy_shop import *", found)
    assert {"Scale", "grow"} <= set(found)


def test_another_name_is_an_error_that_knows_where_it_looked(package):
    with pytest.raises(
        AttributeError, match="module 'lazy_shop' has no attribute 'Scael'"
    ) as found:
        _ = package.Scael
    assert (found.value.name, found.value.obj) == ("Scael", package)
    with pytest.raises(ImportError, match="Scael"):
        exec("from lazy_shop import Scael", {})
