"""Commands that plugins bring, and what the list says of what their hooks name."""

from __future__ import annotations

import importlib
import json
import re
import sys

import pytest
import typer
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_cli.installed import plugin_commands
from headrace_cli.names import COMMANDS as OWN_COMMANDS
from headrace_cli.names import GROUPS

HOOKS = """
from headrace.hookspecs import hookimpl

@hookimpl
def headrace_commands():
    return {commands!r}
"""

COMMANDS = '''
"""Heavy: only loaded when a command is called."""
import errno
import sys
import typer
from typing import Annotated
import headrace

app = typer.Typer(help="Train models.")

@app.command()
def fit(epochs: int = 3, name: Annotated[str, typer.Argument()] = "x"):
    """Fit a model."""
    print(f"fit {name} {epochs}")

@app.command()
def fail():
    raise typer.Exit(7)

def label(folder: str, limit: int = 100) -> int:
    """Label the images of a folder."""
    print(f"label {folder} {limit}")
    return 0 if limit else 4

def wrong():
    headrace.parse("A[")

def crash():
    raise RuntimeError("crashed")

def leave():
    sys.exit(9)

def interrupted():
    raise KeyboardInterrupt

def abort():
    raise typer.Abort

def unheard():
    raise BrokenPipeError(errno.EPIPE, "the reader went away")

def unreadable(thing: "int | str"):
    pass

nothing = 3
'''


def says(*args):
    return CliRunner().invoke(app, list(args), prog_name="headrace")


def commands(site, name="headrace-train", module="hrt_train", **paths):
    hooks = HOOKS.format(commands=paths)
    points = f"[headrace.plugins]\nhooks = {module}_hooks\n"
    site.add(name, points, {f"{module}_hooks": hooks, module: COMMANDS})


@pytest.fixture
def train(site):
    names = (
        "label",
        "wrong",
        "crash",
        "leave",
        "interrupted",
        "abort",
        "unheard",
        "unreadable",
        "nothing",
    )
    paths = {name: f"hrt_train:{name}" for name in names}
    commands(site, train="hrt_train:app", absent="hrt_train:no", gone="hrt_gone:x", **paths)


def test_help_lists_the_commands_of_plugins_without_importing_them(train):
    result = says("--help")
    assert result.exit_code == 0
    section = result.output.partition("Other plugins:")[2]
    lines = [" ".join(line.split()) for line in section.splitlines()]
    assert "label Label the images of a folder. (headrace-train)" in lines
    assert "train Train models. (headrace-train)" in lines
    assert "crash Comes with headrace-train." in lines  # it says nothing of itself
    assert "gone Comes with headrace-train." in lines  # its module is missing
    assert "hrt_train" not in sys.modules


def test_help_lists_every_known_command_in_one_group():
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted([*OWN_COMMANDS, *plugin_commands.KNOWN_COMMANDS])
    sections = re.split(r"\n(?=\S.*:\n)", says("--help").output)
    listed = {one.partition(":")[0]: one for one in sections}
    for title in ("Start", "Run and serve", "Extend"):
        for name in set(GROUPS[title]) & set(OWN_COMMANDS):
            assert f"\n  {name} " in listed[title]


@pytest.mark.parametrize("name", ["gpus", "inspect", "why"])
def test_a_command_that_moved_says_where_to(name):
    result = says(name, "--json")
    assert result.exit_code == 2
    assert f"write headrace observe {name}." in result.stderr
    assert f"write headrace observe {name}." in json.loads(result.stdout)["error"]["message"]


def test_the_commands_of_core_ask_no_plugin(train):
    assert says("--version").exit_code == 0
    assert says("check", "--help").exit_code == 0
    assert "hrt_train_hooks" not in sys.modules


@pytest.mark.parametrize(
    ("args", "status", "output"),
    [
        (["train", "fit", "--epochs", "5", "y"], 0, "fit y 5\n"),
        (["train", "fail"], 7, ""),
        (["train", "fit", "--epochs", "much"], 2, None),
        (["label", "here"], 0, "label here 100\n"),
        (["label", "here", "--limit", "0"], 4, "label here 0\n"),
        (["label", "--", "-x"], 0, "label -x 100\n"),
        (["label"], 2, None),
        (["leave"], 9, ""),
        (["interrupted"], 130, None),
        (["abort"], 1, None),
        (["unheard"], 141, ""),
        (["train:label", "here"], 0, "label here 100\n"),
    ],
)
def test_a_command_gets_its_arguments_and_gives_its_exit_status(train, args, status, output):
    result = says(*args)
    assert (result.exit_code, result.stdout) == (status, output if output is not None else "")


def test_an_interrupt_of_a_command_is_told_in_one_line(train):
    assert says("interrupted").stderr == "interrupted\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("label --li", ["--limit"]),
        ("train fi", ["fit"]),
        ("gone --", None),  # the module cannot be imported
        ("lable --", None),
        ("plugins lst --", None),
    ],
)
def test_a_shell_completes_what_commands_of_plugins_take(train, text, found):
    words = {"COMP_WORDS": f"headrace {text}", "COMP_CWORD": str(len(text.split()))}
    env = {**words, "_HEADRACE_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], prog_name="headrace", env=env)
    assert (result.exit_code, result.stderr) == (0, "")
    assert found is None or result.stdout.split() == found


def test_a_command_whose_plugin_is_not_allowed_says_why(site, monkeypatch):
    commands(site, name="headrace-observe", module="hrt_observe", bench="hrt_observe:label")
    assert says("bench", "here").stdout == "label here 100\n"
    monkeypatch.setenv("HEADRACE_PLUGINS", "-observe")
    result = says("bench", "here")
    assert result.exit_code == 2
    assert (
        "The command 'bench' comes with headrace-observe, which cannot be used: "
        "HEADRACE_PLUGINS=-observe does not allow it."
    ) in result.stderr
    assert "Did you mean" not in result.stderr


def test_help_of_a_command_is_its_own(train):
    result = says("label", "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage: headrace label [OPTIONS]")
    assert "Label the images of a folder." in result.output
    assert "Train models." in says("train", "--help").output


SORT = """
from typing import Annotated, Literal
import typer

def sort(
    folder: str,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE")] = None,
    limit: Annotated[float, typer.Option(min=0.0)] = 1.0,
    name: list[str] = ["a"],
    by: Literal["size", "date"] = "size",
    rate: Annotated[int, typer.Option(metavar="HZ")] = 1,
):
    \"""Sort files.\"""

app = typer.Typer(rich_markup_mode=None)
app.command("first")(sort)
app.command("second")(sort)
"""


@pytest.mark.parametrize("words", [("sort",), ("sorts", "second")])
def test_help_names_what_arguments_and_options_stand_for_and_no_types_of_python(site, words):
    commands(site, sort="hrt_sort:sort", sorts="hrt_sort:app")
    (site.folder / "hrt_sort.py").write_text(SORT)
    shown = says(*words, "--help").output
    assert shown.startswith(f"Usage: headrace {' '.join(words)} [OPTIONS] FOLDER [FILE]...\n")
    assert not re.search(r"<|list\[|range", shown)
    for option in ("--limit N", "--name TEXT", "--by size|date", "--rate HZ"):
        assert f"{option} " in shown


GROUPED = """
from typing import Annotated
import typer

def pack(
    folder: str,
    level: Annotated[int, typer.Option(rich_help_panel="How small")] = 1,
    quiet: bool = False,
    name: Annotated[str, typer.Option(rich_help_panel="What it makes")] = "a",
    slow: Annotated[bool, typer.Option("--slow", rich_help_panel="How small")] = False,
):
    \"""Pack files.\"""
"""


def test_help_lists_options_in_the_groups_that_they_name(site):
    commands(site, pack="hrt_pack:pack")
    (site.folder / "hrt_pack.py").write_text(GROUPED)
    groups = options_by_group(says("pack", "--help").output)
    assert groups == {
        "Arguments": [],
        "How small": ["--level", "--slow"],
        "What it makes": ["--name"],
        "Other options": ["--quiet", "-h"],
    }


def options_by_group(shown):
    groups = {}
    for line in shown.splitlines():
        if title := re.fullmatch(r"(\w.*):", line):
            options = groups.setdefault(title[1], [])
        elif option := re.match(r"  (-[\w-]+)", line):
            options.append(option[1])
    return groups


def test_a_command_of_click_itself_is_run(site):
    pytest.importorskip("click")
    code = "import click\n@click.command()\n@click.option('--n', default=1)\ndef go(n):\n"
    code += "    click.echo(n)\n    click.get_current_context().exit(n)\n"
    commands(site, go="hrt_click:go")
    (site.folder / "hrt_click.py").write_text(code)
    result = says("go", "--n", "3")
    assert (result.exit_code, result.stdout) == (3, "3\n")
    assert says("go", "--m").exit_code == 2
    assert says("go", "--help").output.startswith("Usage: headrace go")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "cannot import 'hrt_train:no': AttributeError"),
        ("gone", "No module named 'hrt_gone'"),
        ("unreadable", "no command can be made of 'hrt_train:unreadable'"),
        ("nothing", "no command can be made of 'hrt_train:nothing'"),
        ("wrong", "A["),
    ],
)
def test_what_is_broken_or_wrong_is_one_message_and_exit_status_2(train, name, words):
    result = says(name)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_an_error_of_the_command_itself_is_not_hidden(train):
    result = says("crash")
    assert isinstance(result.exception, RuntimeError)
    assert result.exit_code == 1


def test_an_unknown_command_names_the_nearest_and_what_is_broken(train, site, monkeypatch):
    site.add("headrace-bad", "[headrace.plugins]\nh = hrt_bad\n", {"hrt_bad": "1 / 0"})
    result = says("lable")
    assert result.exit_code == 2
    assert "No such command 'lable'. Did you mean 'label'?" in result.stderr
    assert "headrace-bad cannot be used: its hooks failed: ZeroDivisionError" in result.stderr
    assert "Did you mean 'check'?" in says("chekc").stderr
    monkeypatch.setitem(plugin_commands.KNOWN_COMMANDS, "zebra", "headrace-zoo")
    assert "Did you mean 'zebra'?" in says("zbera").stderr
    assert "comes with headrace-zoo" in says("zebra").stderr
    assert says("--nope").exit_code == 2


@pytest.mark.parametrize(
    "code", ["1 / 0", "raise SystemExit(3)", HOOKS.format(commands={"a b": "json:dumps"})]
)
def test_a_broken_plugin_breaks_neither_help_nor_the_others(train, site, code):
    site.add("headrace-bad", "[headrace.plugins]\nh = hrt_bad\n", {"hrt_bad": code})
    result = says("--help")
    assert result.exit_code == 0
    assert "label" in result.output
    assert says("label", "x").exit_code == 0
    checked = json.loads(says("plugins", "list", "--check", "--json").stdout)
    assert [f["kind"] for f in checked["findings"] if f["plugin"] == "bad"] == ["broken"]


def test_a_command_of_core_wins_and_the_check_says_so(site):
    commands(site, check="hrt_train:label", label="hrt_train:label")
    assert "Check a configuration" in says("check", "--help").output
    assert "train:check" in says("--help").output
    assert says("train:check", "x").stdout == "label x 100\n"
    checked = says("plugins", "list", "--check")
    assert checked.exit_code == 1
    assert (
        "    duplicate: the command 'check' is never used: headrace itself has one of that name\n"
        "    Ask its author for another name."
    ) in checked.stdout


def test_two_plugins_with_one_command_are_an_error_and_the_qualifier_chooses(site):
    commands(site, label="hrt_train:label")
    commands(site, name="headrace-other", module="hrt_other", label="hrt_other:label")
    result = says("label", "x")
    assert result.exit_code == 2
    assert "headrace-other and headrace-train" in result.stderr
    assert "other:label or train:label" in result.stderr
    assert says("other:label", "x").stdout == "label x 100\n"
    listed = says("--help").output
    assert "other:label" in listed
    assert "train:label" in listed
    assert (
        "is offered by headrace-other and headrace-train"
        in says("plugins", "list", "--check").stdout
    )


def test_a_disabled_plugin_has_no_commands(train, monkeypatch):
    monkeypatch.setenv("HEADRACE_PLUGINS", "-train")
    headrace.plugins.refresh()
    assert "headrace-train" not in says("--help").output
    assert says("label", "x").exit_code == 2


EVERYTHING = """
from headrace.hookspecs import hookimpl

@hookimpl
def headrace_batch_policies():
    return {{"Mine": "{module}:Mine", "Theirs": "{module}:Theirs", "greedy": "{module}:Mine"}}
@hookimpl
def headrace_dispatch_policies():
    return {{"Mine": "{module}:Mine", "None1": "{module}:none"}}
@hookimpl
def headrace_probes():
    return {{"Probe": "{module}:Probe", "NoProbe": "{module}:Mine", "Odd": "{module}:Odd"}}
@hookimpl
def headrace_commands():
    return {{"fine": "{module}:fine", "heavy": "{module}_heavy:x"}}

from headrace.policies import BatchPolicy, DispatchPolicy
class Mine(BatchPolicy): pass
class Theirs(DispatchPolicy): pass
class Probe:
    def batch_done(self, *args): pass
class Odd(Probe):
    class Options: pass
def fine(): pass
text = "x"
"""


POINTS = """
[headrace.plugins]
h = {module}
[headrace.rewriters]
older = {module}:fine
Wrong = {module}:text
"""


def test_the_check_checks_everything_that_plugins_name(site):
    for name in ("all", "more"):
        module = f"hrt_{name}"
        code = EVERYTHING.format(module=module)
        heavy = "import hrt_no_such_library"
        points = POINTS.format(module=module)
        site.add(f"headrace-{name}", points, {module: code, f"{module}_heavy": heavy})
    found = json.loads(says("plugins", "list", "--check", "--json").stdout)["findings"]
    mine = sorted((f["kind"], f["reason"]) for f in found if f["plugin"] == "all")
    expected = [
        ("broken", "the batch policy 'Theirs': 'hrt_all:Theirs' is no BatchPolicy"),
        ("broken", "the dispatch policy 'Mine': 'hrt_all:Mine' is no DispatchPolicy"),
        ("broken", "the dispatch policy 'None1': cannot import 'hrt_all:none': AttributeError"),
        (
            "broken",
            "the probe 'NoProbe': 'hrt_all:Mine' is no class with batch_done or request_done",
        ),
        ("broken", "the probe 'Odd': 'hrt_all:Odd' has an Options that is no subclass of"),
        ("broken", "the translated name 'Wrong': 'hrt_all:text' is no function"),
        ("duplicate", "the batch policy 'Mine' is offered by headrace-all and headrace-more"),
        ("duplicate", "the batch policy 'Theirs' is offered by"),
        ("duplicate", "the batch policy 'greedy' is hidden: headrace itself has one"),
        ("duplicate", "the command 'fine' is offered by"),
        ("duplicate", "the command 'heavy' is offered by"),
        ("duplicate", "the dispatch policy 'Mine' is offered by"),
        ("duplicate", "the dispatch policy 'None1' is offered by"),
        ("duplicate", "the probe 'NoProbe' is offered by"),
        ("duplicate", "the probe 'Odd' is offered by"),
        ("duplicate", "the probe 'Probe' is offered by"),
        ("duplicate", "the translated name 'Wrong' is offered by"),
        ("duplicate", "the translated name 'older' is offered by"),
        ("missing_dependency", "the command 'heavy': cannot import 'hrt_all_heavy:x': No module"),
    ]
    assert [kind for kind, _ in mine] == [kind for kind, _ in expected]
    for (_, reason), (_, begins) in zip(mine, expected, strict=True):
        assert reason.startswith(begins)
    assert all(f["remedy"] for f in found)


def test_the_check_tells_of_a_name_that_no_expression_can_hold(site):
    points = (
        "[headrace.backends]\nTwo words = hrt_odd:Odd\n2nd = hrt_odd:Odd\nOdd-1.x/y = hrt_odd:Odd\n"
    )
    code = "class Odd:\n    def forward(self, batch): pass\n"
    site.add("headrace-odd", points, {"hrt_odd": code})
    found = json.loads(says("plugins", "list", "--check", "--json").stdout)["findings"]
    assert sorted(f["backend"] for f in found if f["plugin"] == "odd") == ["2nd", "Two words"]


def test_what_hooks_name_is_used_as_the_pipeline_says(site):
    module = "hrt_all"
    code = EVERYTHING.format(module=module)
    site.add("headrace-all", f"[headrace.plugins]\nh = {module}\n", {module: code})
    with headrace.pipe({"backend": "S[Identity]", "probes": ["Probe"]}) as pipe:
        assert pipe({"data": 1})["result"] == 1


def test_info_lists_what_a_plugin_offers_and_imports_nothing_of_it(site):
    code = EVERYTHING.format(module="hrt_all")
    site.add("headrace-all", POINTS.format(module="hrt_all"), {"hrt_all": code})
    shown = says("plugins", "info", "headrace-all").stdout.splitlines()
    for line in (
        "  batch policy Mine: hrt_all:Mine",
        "  dispatch policy Mine: hrt_all:Mine",
        "  probe Probe: hrt_all:Probe",
        "  command fine: hrt_all:fine",
        "  translated name older: hrt_all:fine",
    ):
        assert line in shown
    (row,) = json.loads(says("plugins", "info", "all", "--json").stdout)["plugins"]
    assert set(row["offers"]) == {
        *("batch_policies", "dispatch_policies", "probes", "commands"),
        *("node_keys", "rewriters", "readers", "fetchers", "records", "apis"),
    }


@pytest.mark.parametrize("name", ["label", "train:label"])
def test_info_of_a_name_that_a_hook_gives_shows_its_plugin(name, train):
    result = says("plugins", "info", name)
    assert result.exit_code == 0
    assert result.stdout.startswith("headrace-train 1.0: ")
    assert "  command label: hrt_train:label\n" in result.stdout
    assert "Did you mean 'label'?" in says("plugins", "info", "labels").stderr


def test_info_of_core_shows_its_policies():
    assert (
        "  batch policy greedy: headrace.policies:Greedy"
        in says("plugins", "info", "headrace").stdout
    )
    (row,) = json.loads(says("plugins", "info", "headrace", "--json").stdout)["plugins"]
    for hook in ("batch_policies", "dispatch_policies"):
        for path in row["offers"][hook].values():
            module, _, name = path.partition(":")
            assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize("command", ["list", "info"])
@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        ("1 / 0", "broken", "ZeroDivisionError"),
        ("raise SystemExit(3)", "broken", "SystemExit: 3"),
        ("def f(", "broken", "SyntaxError"),
        ("import hrt_no_such_library", "missing_dependency", "hrt_no_such_library"),
        (HOOKS.format(commands=3), "broken", "headrace_commands() gave 3"),
        (HOOKS.format(commands={"x": 3}), "broken", "gave {'x': 3}"),
        (HOOKS.replace("commands()", "comands()").format(commands={}), "broken", "comands"),
        (HOOKS.replace("return", "raise KeyError() #"), "broken", "KeyError"),
        (HOOKS.replace("return", "return None #"), "ok", None),
    ],
)
def test_a_plugin_whose_hooks_fail_is_listed_with_its_reason(site, command, code, state, reason):
    site.add("headrace-bad", "[headrace.plugins]\nh = hrt_bad\n", {"hrt_bad": code})
    given = says("plugins", command, *(["bad"] if command == "info" else []), "--json")
    rows = json.loads(given.stdout)["plugins"]
    (row,) = [row for row in rows if row["plugin"] == "bad"]
    assert row["state"] == state
    assert reason is None or reason in row["reason"]
    assert not any(row["offers"].values())


def test_the_help_says_of_each_command_what_the_command_says_first():
    group = typer.main.get_command(app)
    context = group.make_context("headrace", [], resilient_parsing=True)
    for name, line in OWN_COMMANDS.items():
        first = group.get_command(context, name).help.partition("\n\n")[0]
        assert line.rstrip(".") in first.replace("\n", " ")
