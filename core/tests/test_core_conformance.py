"""The kit as its users meet it: under pytest, as a command, and what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import headrace
from headrace.testing import BackendConformance, certify
from headrace.testing.conformance import rules
from headrace.testing.conformance.memory import shares_memory
from headrace.testing.conformance.values import difference, kept
from headrace.testing.conformance.watching import DECOY, WatchedRequest

SHELF = str(Path(__file__).parent)

BACKEND = '''
"""A backend of a test."""
from __future__ import annotations
import headrace
from headrace.errors import InputError
from pydantic import Field


class Shout(headrace.Backend):
    """Write a text in capital letters.

    Reads:
        data: A text.
    Writes:
        result: The text in capital letters.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no text.
    Source:
        Own.
    """

    class Options(headrace.Options):
        """How loud."""

        marks: int = Field(1, ge=0, description="How many exclamation marks (a number).")

    def init(self, options, context):
        self.end = "!" * options.marks

    def forward(self, batch):
        outcomes = [None] * len(batch)
        for place, request in enumerate(batch):
            text = request.get("data")
            if not isinstance(text, str):
                outcomes[place] = InputError("no text", key="data", got=type(text).__name__)
            else:
                request["result"] = text.upper() + self.end
        return outcomes if any(outcomes) else None
'''

CONFORMANCE = """
from headrace.testing import BackendConformance


class ShoutConformance(BackendConformance):
    expression = "Shout(marks=2)"

    def make_item(self, k):
        return {"data": f"text {k}"}
"""


def run(*args, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def pytest_in(folder, *args):
    return run("-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", *args, cwd=folder)


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


@pytest.fixture
def shout(tmp_path):
    """A folder with a backend, its conformance class, and a test module that collects it."""
    write(
        tmp_path,
        shout_backend=BACKEND,
        shout_conformance=CONFORMANCE,
        test_shout="""
            import headrace
            from shout_backend import Shout
            from shout_conformance import ShoutConformance
            headrace.register("Shout", Shout)
        """,
    )
    return tmp_path


# What it loads.


def test_the_pytest_plugin_and_its_package_load_the_standard_library_only():
    done = run(
        "-S",
        "-c",
        "import sys; sys.path[:0] = sys.argv[1:]; before = set(sys.modules)\n"
        "import headrace.testing.pytest_plugin\n"
        "print(sorted({n.partition('.')[0] for n in set(sys.modules) - before}))",
        str(Path(headrace.__file__).parents[1]),
    )
    assert done.stderr == ""
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert loaded - set(sys.stdlib_module_names) == {"headrace"}


def test_an_unrelated_run_of_pytest_loads_nothing_of_headrace_but_the_plugin(tmp_path):
    write(
        tmp_path,
        test_unrelated="""
            import sys

            class TestNothing:
                def test_nothing(self, request):
                    assert request.config.pluginmanager.has_plugin("headrace")
                    ours = {name for name in sys.modules if name.startswith("headrace")}
                    assert ours == {
                        "headrace", "headrace.testing", "headrace.testing.pytest_plugin"
                    }
                    assert not {"pydantic", "numpy", "hypothesis", "asyncio"} & set(sys.modules)
        """,
    )
    done = pytest_in(tmp_path, "-q", "-p", "no:hypothesispytest", "-p", "no:timeout")
    assert done.returncode == 0, done.stdout


def test_the_fakes_and_the_kit_are_found_by_name():
    assert dir(headrace.testing) == sorted(headrace.testing.__all__)
    for name in headrace.testing.__all__:
        assert getattr(headrace.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="Fakes"):
        headrace.testing.Fakes  # noqa: B018


# Under pytest.


def test_a_class_that_a_test_imports_is_collected_one_test_per_rule(shout):
    done = pytest_in(shout, "-v")
    assert done.returncode == 0, done.stdout
    for identifier in rules():
        assert f"test_shout.py::ShoutConformance::{identifier} PASSED" in done.stdout
    assert f"{len(rules())} passed" in done.stdout
    assert "skipped" not in done.stdout


def test_any_name_is_collected_once_and_bases_are_not(shout):
    write(
        shout,
        test_shout="""
            import headrace
            from headrace.testing import BackendConformance
            from shout_backend import Shout
            headrace.register("Shout", Shout)

            class Texts(BackendConformance):
                def make_item(self, k):
                    return {"data": str(k)}

            class loud(Texts):
                expression = "Shout"

            class NotThisOne(Texts):
                expression = "Shout"
                __test__ = False
        """,
    )
    done = pytest_in(shout, "--collect-only", "-q")
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    assert lines == [f"test_shout.py::loud::{identifier}" for identifier in rules()]
    assert pytest_in(shout, "test_shout.py::loud::order-kept").returncode == 0


def test_a_broken_rule_fails_once_and_those_it_blocks_are_skipped(shout):
    text = (shout / "shout_backend.py").read_text("utf-8")
    (shout / "shout_backend.py").write_text(text.replace('request["result"] =', "ignored ="))
    done = pytest_in(shout, "-rs")
    assert done.returncode == 1
    assert "rule 'runs' failed: item 0 of a batch of 4 got no 'result'" in done.stdout
    assert " 1 failed" in done.stdout
    assert "it cannot be judged before" in done.stdout
    # Alone, a rule that cannot be judged is no success.
    alone = pytest_in(shout, "test_shout.py::ShoutConformance::order-kept")
    assert alone.returncode == 1
    assert "rule 'order-kept' blocked" in alone.stdout


EXCEPTED = """
    import headrace
    from shout_backend import Shout
    from shout_conformance import ShoutConformance
    headrace.register("Shout", Shout)

    class Excepted(ShoutConformance):
        expected_failures = {%s}

    del ShoutConformance
"""


def test_an_expected_failure_is_shown_with_its_reason(shout):
    text = (shout / "shout_backend.py").read_text("utf-8")
    (shout / "shout_backend.py").write_text(text.replace("Source:", "Origin:"))
    (shout / "test_shout.py").write_text(
        textwrap.dedent(EXCEPTED % '"docstring-sections": "a lawyer wrote it"')
    )
    done = pytest_in(shout, "-rx")
    assert "a lawyer wrote it (the docstring lacks Source:)" in done.stdout
    # Rules that need it are judged all the same.
    assert f"{len(rules()) - 1} passed, 1 xfailed" in done.stdout
    assert done.returncode == 0


def test_an_expected_failure_that_passes_is_a_failure(shout):
    (shout / "test_shout.py").write_text(textwrap.dedent(EXCEPTED % '"order-kept": "it is hard"'))
    done = pytest_in(shout)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "it is listed in expected_failures, and holds" in done.stdout


@pytest.mark.parametrize(
    ("excepted", "said"),
    [
        (
            '"order-keep": "it is hard"',
            "names 'order-keep', which is no rule; did you mean 'order-kept'",
        ),
        ('"order-kept": " "', "gives no reason for 'order-kept'"),
    ],
)
def test_an_exception_that_explains_nothing_is_refused(shout, excepted, said):
    (shout / "test_shout.py").write_text(textwrap.dedent(EXCEPTED % excepted))
    done = pytest_in(shout)
    assert done.returncode != 0
    assert said in done.stdout


# As a command.


@pytest.fixture
def installed(shout):
    """A distribution with two backends, of which one has a conformance class."""
    info = shout / "headrace_shout-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: headrace-shout\nVersion: 1.5\n"
        f"Requires-Dist: headrace>=0.1,<{int(headrace.__version__.split('.')[0]) + 1}\n"
    )
    (info / "entry_points.txt").write_text(
        "[headrace.backends]\nShout = shout_backend:Shout\nWhisper = shout_backend:Shout\n"
        "[headrace.conformance]\nShout = shout_conformance:ShoutConformance\n"
    )
    return shout


def command(installed, *args):
    # Without pytest: the rules are plain functions.
    program = (
        "import sys; sys.modules['pytest'] = None; sys.argv[0] = 'headrace'\n"
        "from headrace.__main__ import main; main()"
    )
    return run("-c", program, *args, PYTHONPATH=str(installed))


def test_a_backend_is_certified_by_name(installed):
    done = command(installed, "conformance", "Shout", "--certificate", str(installed / "out.json"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Shout (headrace-shout 1.5): certified" in done.stdout
    written = json.loads((installed / "out.json").read_text("utf-8"))
    (certificate,) = written["certificates"]
    assert written["certified"] is certificate["certified"] is True
    assert written["headrace"] == certificate["headrace"] == headrace.__version__
    names = ("backend", "distribution", "version", "expression", "options", "expected_failures")
    assert [certificate[name] for name in names] == [
        *("Shout", "headrace-shout", "1.5", "Shout(marks=2)", {}, {}),
    ]
    assert certificate["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {r["id"]: r["outcome"] for r in certificate["rules"]} == {
        **dict.fromkeys(rules(), "passed"),
        "rerun": "not_applicable",
    }
    assert all(rule["reason"] for rule in certificate["rules"])
    for identifier in rules():
        assert f" {identifier} " in done.stdout


@pytest.mark.parametrize("name", ["shout", "headrace-shout", "Headrace_Shout"])
def test_a_backend_without_a_class_is_not_certified(installed, name):
    done = command(installed, "conformance", name, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(c["backend"], c["certified"]) for c in found["certificates"]] == [
        *(("Shout", True), ("Whisper", False)),
    ]
    assert "headrace.conformance" in found["certificates"][1]["problem"]
    assert found["certified"] is False


def test_a_qualified_name_and_an_unknown_one(installed):
    done = command(installed, "conformance", "shout:Whisper")
    assert done.returncode == 1
    assert "Whisper (headrace-shout 1.5): NOT CERTIFIED" in done.stdout
    assert "1 of 1 backend not certified" in done.stderr
    unknown = command(installed, "conformance", "Shuot")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "Did you mean 'Shout'?" in unknown.stderr
    nowhere = command(installed, "conformance", "Shout", "--certificate", "no/such/folder.json")
    assert nowhere.returncode == 2


@pytest.mark.parametrize(
    ("conformance", "said"),
    [
        ("nothing_there:X", "cannot be imported: ModuleNotFoundError"),
        ("shout_conformance:Other", "cannot be imported: AttributeError"),
        ("shout_backend:Shout", "no subclass of headrace.testing.BackendConformance"),
    ],
)
def test_a_conformance_class_that_cannot_be_used_is_said(installed, conformance, said):
    points = installed / "headrace_shout-1.5.dist-info" / "entry_points.txt"
    points.write_text(
        points.read_text("utf-8").replace("shout_conformance:ShoutConformance", conformance)
    )
    done = command(installed, "conformance", "Shout")
    assert done.returncode == 1
    assert said in done.stdout


def test_the_class_must_certify_the_backend_it_is_offered_for(installed):
    text = CONFORMANCE.replace('"Shout(marks=2)"', '"Identity"')
    (installed / "shout_conformance.py").write_text(text)
    done = command(installed, "conformance", "Shout")
    assert done.returncode == 1
    assert "certifies Identity, the entry point promises Shout" in done.stdout


def test_a_plugin_that_is_not_usable_is_said(installed):
    metadata = installed / "headrace_shout-1.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text("utf-8").replace("headrace>=0.1", "headrace>=99"))
    done = command(installed, "conformance", "headrace-shout")
    assert done.returncode == 1
    assert "it requires headrace" in done.stdout


# Its parts.


def test_every_rule_has_an_identifier_a_reason_and_a_text():
    for identifier, rule in rules().items():
        assert identifier == rule.id
        assert identifier.replace("-", "").isalpha()
        assert identifier.islower()
        assert rule.reason.endswith(".")
        assert len(rule.text) > 40
        assert set(rule.needs) < set(rules())


def test_an_object_of_plain_python_is_a_backend_too():
    class Plain:
        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("PlainOfConformance", Plain, replace=True)

    class PlainConformance(BackendConformance):
        expression = "PlainOfConformance"

        def make_item(self, k):
            return {"data": k}

    found = {v.id: v.outcome for v in certify(PlainConformance).rules}
    assert found["docstring-sections"] == "failed"
    assert found["missing-key"] == "failed"
    assert found["batch-equals-items"] == "passed"
    assert found["imports-lazily"] == "not_applicable"


@pytest.mark.parametrize("look", [
    lambda r: r["a"], lambda r: r.get("a"), lambda r: "a" in r, lambda r: r.setdefault("a", 1),
    lambda r: r.pop("a"), dict, lambda r: {**r}, lambda r: r.copy(), lambda r: list(r.items()),
    lambda r: list(r.values()), lambda r: r | {}, lambda r: r == {"a": 1}, lambda r: dict(**r),
])  # fmt: skip
def test_every_way_of_reading_a_request_is_noticed(look):
    request = WatchedRequest(a=1)
    look(request)
    assert request.read == {"a"}
    assert isinstance(request, dict)


@pytest.mark.parametrize("change", [
    lambda r: r.update(a=2), lambda r: r.update({"a": 2}), lambda r: r.__setitem__("a", 2),
    lambda r: r.__ior__({"a": 2}), lambda r: r.pop("a"), lambda r: r.__delitem__("a"),
    lambda r: r.clear(), lambda r: r.popitem(),
])  # fmt: skip
def test_every_way_of_changing_a_request_is_noticed(change):
    request = WatchedRequest(a=1)
    change(request)
    assert request.written == {"a"}


def test_what_was_written_first_is_not_read():
    request = WatchedRequest({"a": 1, DECOY: 2})
    request["b"] = 3
    assert request["b"] == 3
    assert (request.read, request.written, request.walked) == (set(), {"b"}, False)
    dict(request)
    assert request.walked


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        (1, 1, False),
        (1, 1.0, True),
        (True, 1, True),
        ("a", "b", True),
        (float("nan"), float("nan"), False),
        (1.0, 1.0 + 1e-9, False),
        (1.0, 1.1, True),
        (float("inf"), 1.0, True),
        ([1, [2.0]], [1, [2.0]], False),
        ([1, 2], (1, 2), True),
        ([1], [1, 2], True),
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1}, {"b": 1}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, True),
        (b"ab", b"ab", False),
        (memoryview(b"ab"), memoryview(b"ab"), False),
        (memoryview(b"ab"), memoryview(b"ac"), True),
        (None, 0, True),
    ],
)
def test_values_are_compared_by_type_and_content(a, b, differ):
    assert (difference(a, b, rtol=1e-6) is not None) is differ


def test_numbers_of_an_array_library_share_no_memory():
    numpy = pytest.importorskip("numpy")
    whole = numpy.arange(4.0)
    kept_alive = [whole.sum() for _ in range(50)]
    assert not any(shares_memory(one, whole.sum()) for one in kept_alive)
    assert shares_memory(whole[1:], whole[:2])
    assert shares_memory({"a": [whole]}, (whole,))


def test_arrays_are_compared_by_dtype_shape_and_numbers():
    np = pytest.importorskip("numpy")
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert difference(a, a.copy()) is None
    assert difference(a, a.astype(np.float64)) is not None
    assert difference(a, a.reshape(3, 2)) is not None
    assert difference(a, a + 1) is not None
    assert difference({"x": [a]}, {"x": [a + 1e-7]}, atol=1e-5) is None
    assert difference(np.array(["a", None]), np.array(["a", "b"], object)) is not None
    copy = kept({"x": a})
    a[0] = 9
    assert difference(copy, {"x": a}) is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1 or more", (1, None)),
        ("4 or more; items are independent", (4, None)),
        ("One or more items.", (1, None)),
        ("Any number of items.", (1, None)),
        ("1 to 8", (1, 8)),
        ("2-16, see the option", (2, 16)),
        ("1", (1, 1)),
        ("1; one at a time.", (1, 1)),
        ("Exactly 4 rows", None),
        ("exactly 4 items", (4, 4)),
        ("2 to the size of the window", (2, "what words tell")),
        ("That of what is inside.", None),
        ("10 milliseconds", None),
    ],
)
def test_the_range_in_a_docstring_is_read(text, found):
    from headrace.testing.conformance.rules_docs import _range_of

    assert _range_of(text) == found


class Constant(headrace.Backend):
    """Give the same number to all.

    Reads:
        Nothing.
    Writes:
        result: 7.
    Batch:
        1 or more

    Raises:
        Nothing.
    Source:
        Own.
    """

    reads = ()
    rerun = True

    def forward(self, batch):
        for request in batch:
            request["result"] = 7


def test_rules_about_keys_do_not_apply_where_none_is_read():
    headrace.register("ConstantOfConformance", Constant, replace=True)

    class ConstantConformance(BackendConformance):
        expression = "ConstantOfConformance"

        def make_item(self, k):
            return {"data": k}

    certificate = certify(ConstantConformance)
    found = {v.id: v.detail for v in certificate.rules if v.outcome != "passed"}
    assert certificate.certified, found
    about_keys = {"missing-key", "wrong-type", "wrong-shape", "wrong-dtype", "bad-item-alone"}
    about_imports = {"imports-lazily", "missing-library"}  # it is a class of a test module
    assert set(found) == about_keys | about_imports
