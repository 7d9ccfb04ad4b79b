"""What importing a backend may load: a library is judged by the code that it loads, however it is installed."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

import headrace
from headrace_testing import BackendConformance
from headrace_testing.conformance import ConformanceRun

BACKEND = '''
import %s
import headrace
from headrace.errors import InputError


class Adds(headrace.Backend):
    """Add one.

    Reads:
        data: An int.
    Writes:
        result: One more.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no int.
    Source:
        own
    """

    def forward(self, batch):
        outcomes = [None] * len(batch)
        for place, request in enumerate(batch):
            if type(request.get("data")) is int:
                request["result"] = request["data"] + 1
            else:
                outcomes[place] = InputError("no int", key="data")
        return outcomes
'''
SMALL = "ONE = 1\n"
LARGE = "TABLE = '" + "x" * 1_000_001 + "'\n"


@pytest.fixture(params=["wheel", "editable"])
def install(request, tmp_path, monkeypatch):
    """Install distributions of one module each, from a wheel or editable: what installers note of them."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    names = []

    def put(module, source, *required):
        notes = site / f"{module}_of_test-1.0.dist-info"
        notes.mkdir()
        lines = [f"Name: {module}-of-test", "Version: 1.0"]
        lines += [f"Requires-Dist: {one}" for one in required]
        (notes / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
        folder = site if request.param == "wheel" else tmp_path / module / "src"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        record = f"{notes.name}/METADATA,,\n"
        if request.param == "wheel":
            record += f"{module}.py,,\n"
        else:
            told = '{"url": "%s", "dir_info": {"editable": true}}'
            (notes / "direct_url.json").write_text(told % (tmp_path / module).as_uri())
            monkeypatch.syspath_prepend(str(folder))
        (notes / "RECORD").write_text(record)
        names.append(module)

    yield put
    for module in names:
        sys.modules.pop(module, None)


@pytest.fixture
def judge(install):
    """Judge the imports of a backend whose distribution requires these, and whose module imports this one."""

    def judged(imports, *required, init="", **members):
        install("adds", BACKEND % imports + init, "headrace", *required)
        importlib.invalidate_caches()
        cls = importlib.import_module("adds").Adds
        headrace.register("AddsOfTest", cls, replace=True)
        attributes = {
            "expression": "AddsOfTest",
            "make_item": lambda self, k: {"data": k},
            **members,
        }
        with ConformanceRun(type("Kit", (BackendConformance,), attributes)) as run:
            found = run.verdict("imports-lazily")
            return found.outcome, found.detail

    return judged


def test_a_light_library_that_is_required_may_be_imported(install, judge):
    install("lightly", SMALL)
    assert judge("lightly", "lightly-of-test") == ("passed", "init loads no further library")


def test_what_a_light_library_imports_is_judged(install, judge):
    install("lightly", "import numpy", "numpy")
    assert judge("lightly", "lightly-of-test") == (
        "failed",
        "importing adds loads numpy; import it in init",
    )


def test_a_light_library_may_use_another_one(install, judge):
    install("deeper", SMALL)
    install("lightly", "import deeper", "deeper-of-test")
    assert judge("lightly", "lightly-of-test")[0] == "passed"


def test_much_source_is_heavy_as_compiled_code_is(install, judge):
    install("heavily", LARGE)
    assert judge("heavily", "heavily-of-test") == (
        "failed",
        "importing adds loads heavily; import it in init",
    )


def test_a_light_library_that_nothing_requires_is_missing_elsewhere(install, judge):
    install("lightly", SMALL)
    outcome, detail = judge("lightly")
    assert outcome == "failed"
    assert detail.startswith(
        "importing it loads lightly, which no Requires-Dist of adds-of-test brings"
    )
    assert "ModuleNotFoundError" in detail


@pytest.mark.parametrize(("brought", "outcome"), [((), "failed"), (("brought-of-test",), "passed")])
def test_what_only_the_model_needs_is_named_in_the_class(install, judge, brought, outcome):
    install("brought", SMALL)
    init = "\n    def init(self, options, context):\n        import brought\n"
    assert judge("json", init=init, model_brings=brought)[0] == outcome
