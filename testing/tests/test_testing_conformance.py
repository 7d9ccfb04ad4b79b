"""The kit as its users meet it: under pytest, as a command, and what it loads."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import run_process
from typer.testing import CliRunner

import headrace
import headrace_testing
from headrace._language.registry.registry import registry
from headrace_cli.app import app
from headrace_testing.conformance import rules
from headrace_testing.conformance.backend_rules import life as rules_life
from headrace_testing.conformance.probe import Probe

pytest_plugins = ["pytester"]

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
from headrace_testing import BackendConformance


class ShoutConformance(BackendConformance):
    expression = "Shout(marks=2)"

    def make_item(self, k):
        return {"data": f"text {k}"}
"""


def run(*args, cwd=None, **environment):
    return run_process(
        [sys.executable, *args],
        timeout=300,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


@pytest.fixture
def no_fresh_process(monkeypatch):
    """Leave out what a fresh process sees, which takes a second; tests with one are marked so."""
    monkeypatch.setattr(rules_life, "probe", lambda subject, **_: Probe(stage="build"))


@pytest.fixture
def shout(pytester):
    """A folder with a backend, its conformance class, and a test module that collects it."""
    pytester.syspathinsert()
    write(
        pytester.path,
        shout_backend=BACKEND,
        shout_conformance=CONFORMANCE,
        test_shout="""
            import headrace
            from shout_backend import Shout
            from shout_conformance import ShoutConformance
            headrace.register("Shout", Shout)
        """,
    )
    yield pytester.path
    for name in ("shout_backend", "shout_conformance", "other_backend", "other_conformance"):
        sys.modules.pop(name, None)


@pytest.fixture
def pytest_in(shout, pytester):
    """Run pytest there, in this process; give what it prints and its exit status."""

    def run_pytest(*args):
        registry.local.pop("Shout", None)  # another run has registered it
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)
        return SimpleNamespace(stdout=str(done.stdout), returncode=int(done.ret))

    return run_pytest


# What it loads.


def test_the_pytest_plugin_and_its_package_load_the_standard_library_only():
    done = run(
        "-S",
        "-c",
        "import sys; sys.path[:0] = sys.argv[1:]; before = set(sys.modules)\n"
        "import headrace_testing.pytest_plugin\n"
        "print(sorted({n.partition('.')[0] for n in set(sys.modules) - before}))",
        str(Path(headrace_testing.__file__).parents[1]),
    )
    assert done.stderr == ""
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert loaded - set(sys.stdlib_module_names) == {"headrace_testing"}


def test_an_unrelated_run_of_pytest_loads_nothing_of_headrace_but_the_plugin(tmp_path):
    write(
        tmp_path,
        test_unrelated="""
            import sys

            class TestNothing:
                def test_nothing(self, request):
                    assert request.config.pluginmanager.has_plugin("headrace")
                    ours = {name for name in sys.modules if name.startswith("headrace")}
                    assert ours == {"headrace_testing", "headrace_testing.pytest_plugin"}
                    loaded = {"pydantic", "numpy", "hypothesis"} & set(sys.modules)
                    # From Python 3.14 on the debugger, which pytest loads, brings asyncio.
                    assert not loaded
                    assert sys.version_info >= (3, 14) or "asyncio" not in sys.modules
        """,
    )
    done = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."),
        *("-p", "headrace"),  # by its entry point; plugins of others load what they like
        cwd=tmp_path,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    assert done.returncode == 0, done.stdout


def test_the_command_says_what_to_install_where_the_kit_is_not():
    done = run(
        "-c",
        "import sys; sys.modules['headrace_testing'] = None\n"
        "from headrace_cli import main\n"
        "sys.argv[1:] = ['conformance', 'Identity']\n"
        "main()",
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert 'pip install "headrace[testing]"' in done.stderr
    assert "Traceback" not in done.stderr


# Under pytest.


@pytest.mark.first(
    "write a backend of your own and certify it: one test per rule, and a certificate"
)
def test_a_class_that_a_test_imports_is_collected_one_test_per_rule(shout, pytest_in):
    done = pytest_in("-v")
    assert done.returncode == 0, done.stdout
    for identifier in rules():
        assert f"test_shout.py::ShoutConformance::{identifier} PASSED" in done.stdout
    assert f"{len(rules())} passed" in done.stdout
    assert "skipped" not in done.stdout


def test_any_name_is_collected_once_and_bases_are_not(shout, pytest_in, no_fresh_process):
    write(
        shout,
        test_shout="""
            import headrace
            from headrace_testing import BackendConformance
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
    done = pytest_in("--collect-only", "-q")
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    assert lines == [f"test_shout.py::loud::{identifier}" for identifier in rules()]
    assert pytest_in("test_shout.py::loud::order-kept").returncode == 0


def test_tests_of_its_own_run_beside_the_rules(shout, pytest_in, no_fresh_process):
    write(
        shout,
        test_shout="""
            import headrace
            import pytest
            from shout_backend import Shout
            from shout_conformance import ShoutConformance
            headrace.register("Shout", Shout)

            class WithTests(ShoutConformance):
                @pytest.mark.parametrize("k", [1, 2])
                def test_the_requests(self, k):
                    assert self.make_item(k) == {"data": "another"}

            del ShoutConformance
        """,
    )
    done = pytest_in("-rf")
    assert f"2 failed, {len(rules())} passed" in done.stdout
    assert "WithTests::test_the_requests[2]" in done.stdout
    assert "2 failed" in pytest_in("test_shout.py::WithTests::test_the_requests").stdout


@pytest.mark.first(
    "write a backend of your own and certify it: one test per rule, and a certificate"
)
def test_a_broken_rule_fails_once_and_those_it_blocks_are_skipped(
    shout, pytest_in, no_fresh_process
):
    text = (shout / "shout_backend.py").read_text("utf-8")
    (shout / "shout_backend.py").write_text(text.replace('request["result"] =', "ignored ="))
    done = pytest_in("-rs")
    assert done.returncode == 1
    assert "rule 'runs' failed: item 0 of a batch of 4 got no 'result'" in done.stdout
    assert " 1 failed" in done.stdout
    told = re.findall(r"SKIPPED \[(\d+)\].*: it cannot be judged before (.*)", done.stdout)
    assert [by for _, by in told] == ["'runs' holds"]  # once, with their number
    assert f"{told[0][0]} skipped" in done.stdout
    assert int(told[0][0]) > 10
    # Alone, a rule that cannot be judged is no success.
    alone = pytest_in("test_shout.py::ShoutConformance::order-kept")
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


def test_an_expected_failure_is_shown_with_its_reason(shout, pytest_in, no_fresh_process):
    text = (shout / "shout_backend.py").read_text("utf-8")
    (shout / "shout_backend.py").write_text(text.replace("Source:", "Origin:"))
    (shout / "test_shout.py").write_text(
        textwrap.dedent(EXCEPTED % '"docstring-sections": "a lawyer wrote it"')
    )
    done = pytest_in("-rx")
    assert "a lawyer wrote it (the docstring lacks Source:)" in done.stdout
    # Rules that need it are judged all the same.
    assert f"{len(rules()) - 1} passed, 1 xfailed" in done.stdout
    assert done.returncode == 0


def test_what_fails_beside_an_expected_failure_is_no_success(shout, pytest_in, no_fresh_process):
    text = (shout / "shout_backend.py").read_text("utf-8")
    (shout / "shout_backend.py").write_text(text.replace("Raises:", "Throws:"))
    (shout / "test_shout.py").write_text(
        textwrap.dedent(EXCEPTED % '"docstring-sections": "a lawyer wrote it"')
    )
    done = pytest_in()
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "rule 'docstring-raises' blocked" in done.stdout
    assert "it cannot be told from the fault of 'docstring-sections'" in done.stdout


def test_an_expected_failure_that_passes_is_a_failure(shout, pytest_in, no_fresh_process):
    (shout / "test_shout.py").write_text(textwrap.dedent(EXCEPTED % '"order-kept": "it is hard"'))
    done = pytest_in()
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "it is listed in expected_failures, and holds" in done.stdout


@pytest.mark.parametrize(
    ("excepted", "said"),
    [
        (
            '"order-keep": "it is hard"',
            "names 'order-keep', which is no rule. Did you mean 'order-kept'",
        ),
        ('"order-kept": " "', "gives no reason for 'order-kept'"),
    ],
)
def test_an_exception_that_explains_nothing_is_refused(
    shout, pytest_in, no_fresh_process, excepted, said
):
    (shout / "test_shout.py").write_text(textwrap.dedent(EXCEPTED % excepted))
    done = pytest_in()
    assert done.returncode != 0
    assert said in done.stdout


# On a machine that lacks the device.

ON_A_GPU = """
    import pytest
    import headrace
    from shout_backend import Shout
    from shout_conformance import ShoutConformance

    class OnAGpu(Shout):
        __doc__ = Shout.__doc__

        def init(self, options, context):
            raise RuntimeError("no kernel image is available")

    headrace.register("OnAGpu", OnAGpu, replace=True)

    {marks}
    class Gpu(ShoutConformance):
        {inside}
        expression = "OnAGpu"

        def unavailable(self):
            return "no CUDA device"

    del ShoutConformance
"""
BUILT = set(rules()) - {
    *("resolves", "attributes", "options-described", "options-strict", "options-schema", "items"),
    *("docstring-sections", "docstring-keys", "docstring-batch", "docstring-raises"),
    *("imports-lazily", "methods", "private-names"),
}


def on_a_gpu(shout, *, marks="", inside="", module=""):
    text = textwrap.dedent(ON_A_GPU).format(marks=marks, inside=inside)
    (shout / "test_shout.py").write_text(text + f"\n{module}\n")


def test_what_cannot_be_built_here_is_skipped_and_the_class_is_judged(
    shout, pytest_in, no_fresh_process
):
    on_a_gpu(shout)
    done = pytest_in("-v", "-rs")
    assert done.returncode == 0, done.stdout
    for identifier in rules():
        outcome = "SKIPPED" if identifier in BUILT else "PASSED"
        assert f"test_shout.py::Gpu::{identifier} {outcome}" in done.stdout
    assert f"{len(rules()) - len(BUILT)} passed, {len(BUILT)} skipped" in done.stdout
    assert "no CUDA device" in done.stdout


def test_a_class_that_is_wrong_fails_without_the_device(shout, pytest_in, no_fresh_process):
    path = shout / "shout_backend.py"
    path.write_text(path.read_text("utf-8").replace("Source:", "Origin:"))
    on_a_gpu(shout)
    done = pytest_in("-v")
    assert "::docstring-sections FAILED" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    "place",
    [
        {"marks": "@pytest.mark.timeout(50)"},
        {"inside": "pytestmark = pytest.mark.timeout(50)"},
        {"inside": "pytestmark = [pytest.mark.timeout(50)]"},
        {"module": "pytestmark = pytest.mark.timeout(50)"},
    ],
    ids=["decorator", "class", "list", "module"],
)
def test_marks_of_a_class_and_its_module_count_for_its_tests(shout, pytest_in, place):
    on_a_gpu(shout, **place)
    count = len(rules())
    without = pytest_in("--collect-only", "-q", "-m", "not timeout").stdout
    assert f"{count} deselected" in without
    assert "Gpu::" not in without
    alone = pytest_in("--collect-only", "-q", "-m", "timeout").stdout
    assert alone.count("test_shout.py::Gpu::") == count


def test_marks_are_inherited_and_do_what_they_do_elsewhere(shout, pytest_in):
    on_a_gpu(
        shout,
        marks='@pytest.mark.skip(reason="a mark of the class")',
        module="class Other(Gpu):\n    expression = 'OnAGpu'",
    )
    done = pytest_in("-rs")
    assert f"{2 * len(rules())} skipped" in done.stdout
    assert "a mark of the class" in done.stdout


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


def command_without_pytest(installed, *args):
    """Run the command in a process of its own: the rules are plain functions."""
    program = (
        "import sys; sys.modules['pytest'] = None; sys.argv[0] = 'headrace'\n"
        "from headrace.__main__ import main; main()"
    )
    return run("-c", program, *args, PYTHONPATH=str(installed))


@pytest.fixture
def command(installed, no_fresh_process):
    """Run the command in this process; give what it prints and its exit status."""

    def run_command(*args):
        registry.refresh()
        done = CliRunner().invoke(app, ["conformance", *args], prog_name="headrace")
        return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, returncode=done.exit_code)

    yield run_command
    registry.refresh()


@pytest.mark.first(
    "write a backend of your own and certify it: one test per rule, and a certificate"
)
def test_a_backend_is_certified_by_name(installed):
    out = str(installed / "out.json")
    done = command_without_pytest(installed, "conformance", "Shout", "--certificate", out)
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
        "right-answers": "not_applicable",
    }
    assert all(rule["reason"] for rule in certificate["rules"])
    for identifier in rules():
        assert f" {identifier} " in done.stdout


@pytest.mark.parametrize("name", ["shout", "headrace-shout", "Headrace_Shout"])
def test_a_backend_without_a_class_is_not_certified(installed, command, name):
    done = command(name, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(c["backend"], c["certified"]) for c in found["certificates"]] == [
        *(("Shout", True), ("Whisper", False)),
    ]
    assert "headrace.conformance" in found["certificates"][1]["problem"]
    assert found["certified"] is False


def test_a_qualified_name_and_an_unknown_one(installed, command):
    done = command("shout:Whisper")
    assert done.returncode == 1
    assert "Whisper (headrace-shout 1.5): NOT CERTIFIED" in done.stdout
    assert "1 of 1 backend not certified" in done.stderr
    unknown = command("Shuot")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "Did you mean 'Shout'?" in unknown.stderr
    nowhere = command("Shout", "--certificate", "no/such/folder.json")
    assert nowhere.returncode == 2
    folder = command("Shout", "--certificate", str(installed))
    assert (folder.returncode, folder.stdout) == (2, "")  # before anything is judged
    assert "this is a folder" in folder.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no file")
def test_a_certificate_that_cannot_be_written_is_told_before_anything_is_judged(command):
    done = command("Shout", "--certificate", "/proc/out.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the certificate '/proc/out.json' cannot be written" in done.stderr


def test_a_device_that_is_lacking_is_said_first_and_is_no_certificate(installed, command):
    path = installed / "shout_conformance.py"
    path.write_text(CONFORMANCE + '\n    def unavailable(self):\n        return "no CUDA device"\n')
    done = command("Shout", "--certificate", str(installed / "out.json"))
    assert done.returncode == 1
    first = done.stdout.splitlines()[0]
    assert first.startswith("Shout (headrace-shout 1.5): NOT CERTIFIED, no CUDA device")
    assert f"{len(BUILT)} not judged" in done.stdout
    assert " 0 failed" in done.stdout
    written = json.loads((installed / "out.json").read_text("utf-8"))
    (certificate,) = written["certificates"]
    assert written["certified"] is certificate["certified"] is False
    assert next(iter(certificate.items())) == ("unavailable", "no CUDA device")
    outcomes = {rule["id"]: rule["outcome"] for rule in certificate["rules"]}
    assert {one for one, outcome in outcomes.items() if outcome == "not_judged"} == BUILT
    assert {outcome for one, outcome in outcomes.items() if one not in BUILT} == {"passed"}
    assert {r["detail"] for r in certificate["rules"] if r["id"] in BUILT} == {"no CUDA device"}


def test_the_command_prints_a_broken_rule_once_and_what_it_blocks_as_a_number(installed, command):
    text = (installed / "shout_backend.py").read_text("utf-8")
    (installed / "shout_backend.py").write_text(text.replace('request["result"] =', "ignored ="))
    done = command("Shout", "--certificate", str(installed / "out.json"))
    assert done.returncode == 1
    (certificate,) = json.loads((installed / "out.json").read_text("utf-8"))["certificates"]
    blocked = [one for one in certificate["rules"] if one["outcome"] == "blocked"]
    assert {one["blocked_by"] for one in blocked} == {"runs"}
    assert certificate["blocked"] == {"runs": len(blocked)}
    shown = " ".join(done.stdout.split())
    assert shown.count("got no 'result'") == 1
    assert f"{len(blocked)} further rules cannot be judged before it holds" in shown
    assert f"1 failed, {len(blocked)} blocked" in shown
    assert not [one["id"] for one in blocked if f" {one['id']} " in done.stdout]


def test_the_entry_point_of_a_class_may_have_blanks_and_an_extra(installed, command):
    points = installed / "headrace_shout-1.5.dist-info" / "entry_points.txt"
    text = points.read_text().replace("conformance:Shout", "conformance : Shout")
    points.write_text(text.rstrip() + " [fast]\n")
    done = command("Shout", "--json")
    (one,) = json.loads(done.stdout)["certificates"]
    assert (one["problem"], one["certified"], done.returncode) == (None, True, 0)


def test_of_two_distributions_with_one_name_the_one_that_is_asked_for_is_judged(installed, command):
    info = installed / "headrace_other-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-other\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(
        "[headrace.backends]\nShout = other_backend:Shout\n"
        "[headrace.conformance]\nShout = other_conformance:ShoutConformance\n"
    )
    # The other one is wrong, so that the two are told apart by what is found.
    write(
        installed,
        other_backend=BACKEND.replace('request["result"] =', "ignored ="),
        other_conformance=CONFORMANCE,
    )
    found = {}
    for name in ("shout:Shout", "other:Shout"):
        done = command(name, "--json")
        (one,) = json.loads(done.stdout)["certificates"]
        assert (one["certified"], done.returncode) in ((True, 0), (False, 1))
        failed = {rule["id"] for rule in one["rules"] if rule["outcome"] == "failed"}
        found[name] = (one["distribution"], one["version"], one["expression"], failed)
    assert found == {
        "shout:Shout": ("headrace-shout", "1.5", "shout:Shout(marks=2)", set()),
        "other:Shout": ("headrace-other", "2.0", "other:Shout(marks=2)", {"runs"}),
    }
    both = json.loads(command("Shout", "--json").stdout)["certificates"]
    assert [(one["distribution"], one["certified"]) for one in both] == [
        *(("headrace-other", False), ("headrace-shout", True)),
    ]


@pytest.mark.parametrize(
    ("conformance", "said"),
    [
        ("nothing_there:X", "cannot be imported: ModuleNotFoundError"),
        ("shout_conformance:Other", "cannot be imported: AttributeError"),
        ("shout_backend:Shout", "no subclass of headrace_testing.BackendConformance"),
    ],
)
def test_a_conformance_class_that_cannot_be_used_is_said(installed, command, conformance, said):
    points = installed / "headrace_shout-1.5.dist-info" / "entry_points.txt"
    points.write_text(
        points.read_text("utf-8").replace("shout_conformance:ShoutConformance", conformance)
    )
    done = command("Shout")
    assert done.returncode == 1
    assert said in done.stdout


def test_the_class_must_certify_the_backend_it_is_offered_for(installed, command):
    text = CONFORMANCE.replace('"Shout(marks=2)"', '"Identity"')
    (installed / "shout_conformance.py").write_text(text)
    done = command("Shout")
    assert done.returncode == 1
    assert "certifies Identity, the entry point promises Shout" in done.stdout


def test_a_plugin_that_is_not_usable_is_said(installed, command):
    metadata = installed / "headrace_shout-1.5.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text("utf-8").replace("headrace>=0.1", "headrace>=99"))
    done = command("headrace-shout")
    assert done.returncode == 1
    assert "it requires headrace" in done.stdout


def test_pytest_hands_the_share_of_the_long_rules_on(pytester):
    pytester.makepyfile(test_share="from headrace_testing.core_words import IdentityConformance")
    ended = pytester.runpytest_subprocess("--conformance-share", "2", "-k", "same-later")
    ended.stdout.fnmatch_lines(["*share is 2.0, and is above 0 and at most 1*"])
    ended = pytester.runpytest_subprocess("--conformance-share", "0.01", "-k", "same-later")
    ended.assert_outcomes(passed=1)
