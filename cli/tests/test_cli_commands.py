"""The commands that look: check, explain, plugins; and what they load."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import run_process
from typer.testing import CliRunner

import headrace
from headrace._language.registry.registry import registry
from headrace_cli.app import app
from headrace_cli.commands.plugins import list_


def headrace_says(*args, **env):
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(arg) for arg in args], env=env, prog_name="headrace")


def python(*args, path=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    """Run an interpreter of its own."""
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, *args]
    return subprocess.run(
        command, env=env, stdout=stdout, stderr=stderr, text=True, check=False, timeout=240
    )


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "pipeline.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def distributions_below(folder):
    """Return a ``distributions`` that sees nothing but those in a folder."""
    from importlib.metadata import distributions

    return lambda **_: distributions(path=[str(folder)])


def only(monkeypatch, *plugins):
    monkeypatch.setenv("HEADRACE_PLUGINS", ",".join(plugins))
    headrace.plugins.refresh()


CLONE = "in a clone of Headrace, after ./dev wheels: pip install --find-links dist"
GOOD = '''
from pydantic import Field
import headrace


class Scale(headrace.Backend):
    """Multiply by a factor.

    More about it.
    """

    class Options(headrace.Options):
        """Options."""

        factor: float = Field(2.0, gt=0, description="What to multiply by.")
        mode: None = Field(None, description="A mode.")
        name_it: int = Field(description="Needed.")

    def forward(self, batch):
        """Multiply."""
'''


def add(site, name, backend="Scale", code=GOOD, target="Scale", requires=("headrace>=0.1",)):
    """Lay out an installed distribution with one backend, in a module of its own."""
    module = f"hrt_{name.rpartition('-')[2]}"
    points = f"[headrace.backends]\n{backend} = {module}:{target}\n"
    site.add(name, points, {module: code}, requires)


@pytest.fixture
def good(site, monkeypatch):
    """The plugin `good` with the backend `Scale`, the only one that is allowed."""
    add(site, "headrace-good")
    only(monkeypatch, "good")


# The command as a whole.


def test_version():
    result = headrace_says("--version")
    assert (result.exit_code, result.stdout) == (0, f"headrace {headrace.__version__}\n")


def test_a_group_lists_its_commands_with_whole_sentences():
    for group in ("new", "plugins", "observe"):
        listed = headrace_says(group, "--help").stdout.partition("Commands:")[2]
        assert listed.count(".") >= 2
        assert "..." not in listed, listed


def test_a_wrong_choice_is_told_in_one_sentence():
    said = headrace_says("new", "backend", "Q", "--kind", "imag")
    assert said.exit_code == 2
    assert "'--kind': 'imag' is not one of 'image', 'text', 'array'" in said.stderr


@pytest.mark.parametrize("command", [(), ("run",), ("check",), ("explain",), ("plugins",)])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(command, flag):
    result = headrace_says(*command, flag)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: headrace")
    assert not re.search(r"[{<]\w+[}>\[]", result.stdout.partition("\n\n")[0])


def test_without_the_conformance_kit_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "headrace_testing", None)
    result = headrace_says("conformance", "Identity")
    assert result.exit_code == 2
    assert 'pip install "headrace[testing]"' in result.stderr


def test_python_dash_m():
    done = python("-m", "headrace", "--version")
    assert (done.returncode, done.stdout) == (0, f"headrace {headrace.__version__}\n")


def test_plugins_list_loads_neither_pydantic_nor_rich_nor_a_plugin(site, monkeypatch):
    only(monkeypatch, *(f"fake{index}" for index in range(8)))
    for index in range(8):
        add(site, f"headrace-fake{index}", f"F{index}", "raise SystemExit('imported')")
    code = (
        "import sys\n"
        "from headrace_cli.app import app\n"
        "try:\n    app(['plugins', 'list'])\n"
        "finally:\n"
        "    heavy = {'numpy', 'pydantic', 'rich', 'asyncio', 'pluggy'} & set(sys.modules)\n"
        "    print(sorted(heavy), file=sys.stderr)\n"
    )
    done = python("-c", code, path=site.folder)
    assert done.returncode == 0
    assert done.stderr == "[]\n"
    assert done.stdout.count("headrace-fake") == 8


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("headrace_cv", "headrace_ort")),
    reason="not installed: headrace-cv, headrace-ort",
)
@pytest.mark.parametrize(
    "command", [("check",), ("explain",), ("plugins", "list", "--check"), ("--help",)]
)
def test_no_heavy_library_is_loaded(command, config, tmp_path, monkeypatch):
    only(monkeypatch, "cv", "ort")
    (tmp_path / "model.onnx").write_bytes(b"not looked at")
    path = config('backend = "S[DecodeMat,Mat2Tensor,OnnxTensor]"\nmodel = "model.onnx"\n')
    args = [*command, str(path)] if command[0] in ("check", "explain") else list(command)
    heavy = {"cv2", "numpy", "onnxruntime", *(("pydantic",) if command == ("--help",) else ())}
    code = (
        "import sys\n"
        "from headrace_cli.app import app\n"
        f"try:\n    app({args!r})\n"
        "finally:\n"
        f"    print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = python("-c", code)
    assert done.stderr.splitlines()[-1] == "[]"  # before it there may be warnings
    assert done.returncode == 0


# check


def test_check_ok(config):
    result = headrace_says("check", config('backend = "Identity"\ninstance_num = 2\n'))
    version = headrace.__version__
    assert result.exit_code == 0
    assert result.stdout == f"ok: 1 node, 2 instances; asks for headrace {version}\n"
    assert result.stderr == ""


def test_check_shows_all_problems_with_carets(config):
    result = headrace_says("check", config('backend = "S[Identty,Calll(2)]"\n'))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "problems in the configuration\n1. " in result.stderr
    assert "    S[Identty,Calll(2)]\n      ^^^^^^^\n" in result.stderr
    assert "Did you mean 'Identity'?" in result.stderr
    assert "Did you mean 'Call'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_check_json(config):
    result = headrace_says("check", config('backend = "S[Identty]"\n'), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 2
    assert result.stderr == ""
    assert found["ok"] is False
    problem = found["problems"][0]
    assert (problem["code"], problem["suggestion"]) == ("unknown_backend", "Identity")
    result = headrace_says("check", config('backend = "Identity"\n'), "--json")
    assert json.loads(result.stdout) == {
        "ok": True,
        "problems": [],
        "warnings": [],
        "nodes": ["main"],
    }


def test_check_warns_of_a_min_that_nothing_waits_for(config):
    text = 'backend = "Identity"\nmin = 2\nmax = 4\n'
    result = headrace_says("check", config(text))
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: ")
    assert "at least 2 requests" in result.stderr
    found = json.loads(headrace_says("check", config(text), "--json").stdout)
    assert [w["code"] for w in found["warnings"]] == ["min_without_wait"]
    for cure in ("pad = true\n", "batching_timeout = 5\n"):
        assert headrace_says("check", config(text + cure)).stderr == ""


def test_explain_says_where_in_the_file_a_warning_is_about(config):
    file = config('backend = "Identity"\nmin = 2\nmax = 4\n')
    printed = headrace_says("check", file).stderr.splitlines()[0]
    assert printed.startswith(f"warning: {file}:")
    assert printed.replace(": ", " ", 1) in headrace_says("explain", file).stdout


def test_check_counts_the_instances_behind_a_second_door_once(config):
    text = '[a]\nbackend = "Identity"\ninstance_num = 3\nnext = "b"\n'
    file = config(text + '[b]\nbackend = "Forward[node.a]"\n')
    assert headrace_says("check", file).stdout.startswith("ok: 2 nodes, 3 instances; ")
    nodes = headrace.explain(file)["nodes"]
    assert [nodes[name]["alias_of"] for name in ("a", "b")] == [None, "a"]
    assert "b  an alias of 'a', 1 instance, batches of" in headrace_says("explain", file).stdout


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["check", "wrong.toml"], "unknown_backend"),
        (["run", "wrong.toml", "wrong.toml"], "unknown_backend"),
        (["run", "right.toml", "none.jpg"], "argument"),
        (["explain", "wrong.toml"], "unknown_backend"),
        (["explain", "S["], "syntax"),
        (["explain", "right.toml", "--graph", "png"], "argument"),
        (["explain", "Identty", "--graph", "dot"], "unknown_backend"),
        (["plugins", "info", "Identty"], "unknown_backend"),
        (["conformance", "Identty"], "unknown_backend"),
        (["new", "backend", "not a name"], "name"),
    ],
)
def test_an_error_is_json_too(command, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.toml").write_text('backend = "Identty"\n', encoding="utf-8")
    (tmp_path / "right.toml").write_text('backend = "Identity"\n', encoding="utf-8")
    result = headrace_says(*command, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert [problem["code"] for problem in found["problems"]] == [code]
    assert {"code", "type", "message"} == set(found["error"])
    plain = headrace_says(*command)
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert f"error: {found['error']['message']}" in plain.stderr


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("name", ["Gruß", "\u2192", "byte\udcff"])
def test_stdout_of_any_encoding_takes_any_name_and_json_stays_json(charset, name):
    done = CliRunner(charset=charset).invoke(app, ["plugins", "info", name, "--json"])
    assert (done.exit_code, done.exception.__class__) == (2, SystemExit)
    printed = json.loads(done.stdout_bytes.decode("utf-8"))  # JSON is UTF-8 by its standard
    assert repr(name) in printed["error"]["message"]


def test_a_drawing_is_written_with_escapes_where_the_encoding_lacks_letters(tmp_path):
    path = tmp_path / "größe\udcff.toml"
    try:
        path.write_text('backend = "Identity"\n', encoding="utf-8")
    except OSError:
        pytest.skip("the file system takes text alone")
    for charset, shown in (("ascii", r"gr\xf6\xdfe\udcff.toml"), ("utf-8", r"größe\udcff.toml")):
        done = CliRunner(charset=charset).invoke(app, ["explain", str(path)])
        assert done.exit_code == 0
        assert shown.encode() in done.stdout_bytes


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8"])
def test_a_name_that_is_no_text_goes_out_as_it_came_in(tmp_path, charset):
    name = os.fsencode(tmp_path) + b"/gr\xf6\xc3\xb6.txt"
    try:
        Path(os.fsdecode(name)).write_text("1234", encoding="utf-8")
    except OSError:
        pytest.skip("the file system takes text alone")
    command = ["run", "Call(builtins:len)", os.fsdecode(name)]
    done = CliRunner(charset=charset).invoke(app, command)
    shown = name if charset == "utf-8" else name.replace(b"\xc3\xb6", rb"\xf6")
    shown = name.replace(b"\xc3\xb6", b"\xf6") if charset == "latin-1" else shown
    assert done.stdout_bytes == shown + b"\t4\n"  # as `ls` and `find` write it
    done = CliRunner(charset=charset).invoke(app, [*command, "--json"])
    read = json.loads(done.stdout_bytes.decode("utf-8"))  # JSON stays JSON, and gives the name back
    assert os.fsencode(read["path"]) == name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "command",
    [["explain", "Identity"], ["schema"], ["plugins", "info", "S"], ["--version"], ["--help"]],
)
def test_what_cannot_be_written_is_an_error_without_a_traceback(command):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = python("-m", "headrace", *command, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: reading or writing failed: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_messages_that_cannot_be_written_change_neither_results_nor_status(tmp_path):
    (tmp_path / "input").write_text("x", encoding="utf-8")
    missing = tmp_path / "missing"
    missing.symlink_to(tmp_path / "nowhere")
    inputs = [str(missing), str(tmp_path / "input")]
    statuses, given = [], []
    for command in (["run", "Identity", *inputs], ["check", "Nobody"]):
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            done = python("-m", "headrace", *command, stderr=full)
        statuses.append(done.returncode)
        given.append(done.stdout)
    assert statuses == [1, 2]
    assert given == [f"{inputs[1]}\tbytes [1]\n", ""]


@pytest.mark.skipif(os.name != "posix", reason="asks for what a shell says of SIGPIPE")
@pytest.mark.parametrize(
    "command", [["explain", "Identity"], ["check", "Nobody", "--json"], ["--help"]]
)
def test_a_reader_that_went_away_is_told_by_the_status(command):
    read, write = os.pipe()
    os.close(read)
    try:
        done = python("-m", "headrace", *command, stdout=write)
    finally:
        os.close(write)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor in a shell")
def test_a_closed_stdout_is_no_error():
    text = f"{sys.executable} -m headrace explain Identity >&-"
    done = run_process(["sh", "-c", text])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors in a shell")
def test_what_was_closed_never_becomes_a_file_to_which_libraries_print(tmp_path):
    (tmp_path / "opened.py").write_text(
        "import os\ndef devices(data):\n    return [os.fstat(one).st_rdev for one in range(3)]\n",
        encoding="utf-8",
    )
    (tmp_path / "input").touch()
    command = f"{sys.executable} -m headrace run 'Call(opened:devices)' input -o out"
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=tmp_path, check=False)
    nowhere = Path(os.devnull).stat().st_rdev
    assert done.returncode == 0
    assert json.loads((tmp_path / "out/input.json").read_text("utf-8")) == [nowhere] * 3


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_system_without_room_for_a_thread_is_told(more, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    result = headrace_says("check", "Identity", *more)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: can't start new thread: ")
    assert not more or json.loads(result.stdout)["error"]["code"] == "threads"


def test_no_import_runs_no_code(config, tmp_path):
    (tmp_path / "own.py").write_text("raise AssertionError('it ran')", encoding="utf-8")
    path = config('import = ["own.py"]\nbackend = "Identity"\n')
    for command in (("check",), ("explain",), ("run",)):
        rest = [path] if command == ("run",) else []
        result = headrace_says(*command, path, *rest, "--no-import")
        assert result.exit_code == 2
        assert "not allowed" in result.stderr
    assert "it ran" in headrace_says("check", path).stderr


def test_json_before_the_command_is_told_where_it_stands():
    for group in ([], ["new"]):
        done = CliRunner().invoke(app, [*group, "--json", "check"], prog_name="headrace")
        where = " ".join(["headrace", *group, "COMMAND --json"])
        assert done.exit_code == 2
        assert f"No such option: --json; it stands after the command: {where}\n" in done.stderr


@pytest.mark.parametrize("command", ["run", "check", "explain"])
@pytest.mark.parametrize(
    ("option", "key"), [("--max", "max"), ("--instance-num", "instance_num"), ("--model", "model")]
)
def test_a_key_in_place_of_an_option_is_told_how_keys_are_given(command, option, key, config):
    done = CliRunner().invoke(
        app, [command, str(config('backend = "Identity"\n')), option, "4"], prog_name="headrace"
    )
    assert done.exit_code == 2
    assert f"No such option: {option}; keys and options of the configuration" in done.stderr
    assert f"--set {key}=VALUE\n" in done.stderr
    near = CliRunner().invoke(
        app, [command, str(config('backend = "Identity"\n')), "--jso"], prog_name="headrace"
    )
    assert "--json" in near.stderr
    assert "VALUE" not in near.stderr


def test_traceback_is_shown_on_demand_only(config):
    path = config('backend = "Identty"\n')
    assert "Traceback" not in headrace_says("explain", path).stderr
    assert "Traceback" in headrace_says("--traceback", "explain", path).stderr
    done = headrace_says("explain", "--traceback", path)
    assert done.exit_code == 2
    assert "it stands before the command" in done.stderr
    assert "Traceback" in headrace_says("explain", path, HEADRACE_TRACEBACK="1").stderr


# explain


def test_explain_draws_a_tree_with_origins(config):
    text = 'backend = "S[Identity,Call(math:sqrt)]"\nmax = 4\n'
    result = headrace_says("explain", config(text))
    assert result.exit_code == 0
    assert "main  1 instance, batches of 1 to 4, run by its callers" in result.stdout
    assert "max = 4  (node)" in result.stdout
    assert 'function = "math:sqrt"  (inline)' in result.stdout
    assert f"Identity  headrace {headrace.__version__}, batches of 1 or more" in result.stdout
    assert "asks for" in result.stdout


def test_what_auto_gives_a_node_is_explained_checked_and_run(config, tmp_path):
    @headrace.register("CliCarries", replace=True)
    class Carries(headrace.Backend):
        wide = True
        auto_instances = classmethod(lambda cls, options, device, threads: threads)

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    path = config('backend = "CliCarries"\n')
    auto = ("--set", "instance_num=auto", "--set", "global.threads=3")
    said = headrace_says("explain", path, *auto).stdout
    assert "main  4 instances, " in said
    assert 'instance_num = "auto"  (node)' in said
    assert "auto: 3 of one thread, and one of 3 for a request alone" in said
    assert "auto:" not in headrace_says("explain", path).stdout
    assert "ok: 1 node, 4 instances" in headrace_says("check", path, *auto).stdout
    assert (
        "main (4 instances)" in headrace_says("explain", path, *auto, "--graph", "mermaid").stdout
    )
    (tmp_path / "in.txt").write_text("a")
    ran = headrace_says("run", path, str(tmp_path / "in.txt"), *auto)
    assert ran.exit_code == 0, ran.stderr


def test_explain_hides_defaults_unless_all_are_asked_for(config):
    path = config('backend = "S[Identity,Call(math:sqrt)]"\nmax = 4\n')
    node = headrace.explain(str(path))["nodes"]["main"]
    values = {**node["keys"], **node["tree"]["children"][1]["options"]}
    defaults = {key for key, one in values.items() if one["origin"] == "default"}
    assert {"batched", "queue_size"} <= defaults
    said = {"max", "function"}
    short, whole = (headrace_says("explain", path, *more).stdout for more in ((), ("--all",)))
    for text, there in ((short, said), (whole, said | defaults)):
        assert {key for key in values if f"── {key} = " in text} == there
    assert short.endswith(f"\n{len(defaults)} defaults are hidden: --all shows them.\n")
    assert "hidden" not in whole
    everything = headrace_says("explain", path, "--all", "--json").stdout
    assert everything == headrace_says("explain", path, "--json").stdout


def test_explain_json_is_exactly_what_python_gives(config):
    path = config('backend = "Call(math:sqrt)"\nfunction = "math:cos"\n')
    found = json.loads(headrace_says("explain", path, "--json").stdout)
    assert found["warnings"][0]["span"] == [0, 8]
    assert found == headrace.explain(str(path))
    expression = "S[Identity,(or)Identity]"
    found = json.loads(headrace_says("explain", expression, "--json").stdout)
    assert found == headrace.explain({"backend": expression})


def test_explain_of_an_expression():
    result = headrace_says("explain", "S[Identity,(or)Identity]")
    assert result.exit_code == 0
    assert result.stdout.startswith("S[Identity,(or)Identity]  (headrace ")
    assert "(or)Identity  headrace" in result.stdout


def test_lines_of_a_tree_are_not_cut_when_nobody_sees_a_terminal():
    inner = ",".join(["Identity"] * 100)
    result = headrace_says("explain", f"S[{inner}]")
    assert result.stdout.startswith(f"S[{inner}]  (headrace ")


# plugins


def test_a_plugin_without_backends_is_not_judged(site, monkeypatch):
    site.add("headrace-hooks", "[headrace.plugins]\nhooks = hrt_hooks\n", {"hrt_hooks": GOOD})
    only(monkeypatch, "hooks")
    for name in ("hooks", "headrace-hooks"):
        result = headrace_says("conformance", name)
        assert result.exit_code == 2
        assert (
            result.stderr == "error: headrace-hooks brings no backends, so there is none to judge\n"
        )


def test_what_is_no_backend_is_told_as_what_it_is_and_not_judged():
    result = headrace_says("conformance", "greedy")
    told = "'greedy' is a batch policy of headrace, and only backends are judged"
    assert (result.exit_code, result.stderr) == (2, f"error: {told}\n")


def test_list_without_plugins(monkeypatch):
    monkeypatch.setattr(registry, "plugins", lambda **_: [])
    result = headrace_says("plugins", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "pip install headrace-cv" in result.stderr
    assert json.loads(headrace_says("plugins", "list", "--json").stdout)["plugins"] == []


def test_list(site, monkeypatch):
    add(site, "headrace-good")
    add(site, "headrace-new", "New", requires=("headrace>=99",))
    only(monkeypatch, "good", "new")
    result = headrace_says("plugins", "list")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split()[:2] == ["DISTRIBUTION", "VERSION"]
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["headrace-good", "1.0", ">=0.1", "ok", "Scale"] in rows
    assert "it requires headrace >=99" in result.stdout
    found = json.loads(headrace_says("plugins", "list", "--json").stdout)["plugins"]
    states = {record["distribution"]: record["state"] for record in found}
    assert states["headrace-good"] == "ok"
    assert states["headrace-new"] == "incompatible"
    assert headrace_says("plugins").stdout == result.stdout
    assert json.loads(headrace_says("plugins", "--json").stdout)["plugins"] == found
    assert headrace_says("plugins", "--json", "info").exit_code == 2  # no option that nobody reads


def test_info_of_a_backend(good):
    for name in ("Scale", "good:Scale"):
        result = headrace_says("plugins", "info", name)
        assert result.exit_code == 0
        assert "Multiply by a factor." in result.stdout
        assert "factor: float (> 0), default 2.0\n        What to multiply by." in result.stdout
        assert "name_it: int, required" in result.stdout
        assert "  range   1 to unbounded, before the node's keys\n" in result.stdout
    found = json.loads(headrace_says("plugins", "info", "Scale", "--json").stdout)
    (backend,) = found["backends"]
    assert found["plugins"] == []
    assert (backend["distribution"], backend["reads"]) == ("headrace-good", ["data"])
    assert [option["name"] for option in backend["options"]] == ["factor", "mode", "name_it"]


@pytest.mark.parametrize("name", ["good", "headrace-good", "Headrace_Good"])
def test_info_of_a_plugin(name, good):
    result = headrace_says("plugins", "info", name)
    assert result.exit_code == 0
    assert result.stdout == (
        "headrace-good 1.0: ok, requires headrace >=0.1\n  Scale  Multiply by a factor.\n"
    )


def test_info_of_a_backend_that_gave_its_distribution_the_name(site, monkeypatch):
    add(site, "headrace-scale")
    only(monkeypatch, "scale")
    assert headrace_says("plugins", "info", "Scale").stdout.startswith("Scale: headrace-scale 1.0")
    for name in ("scale", "headrace-scale", "headrace_scale"):
        assert headrace_says("plugins", "info", name).stdout.startswith("headrace-scale 1.0: ok")


def test_info_of_a_backend_without_a_docstring_shows_that_of_nobody_else(site, monkeypatch):
    bare = "import headrace\nclass Bare(headrace.Backend):\n    def forward(self, batch): ...\n"
    add(site, "headrace-bare", "Bare", bare, "Bare")
    only(monkeypatch, "bare")
    (backend,) = json.loads(headrace_says("plugins", "info", "Bare", "--json").stdout)["backends"]
    assert (backend["error"], backend["doc"]) == (None, "")


def test_info_of_core():
    result = headrace_says("plugins", "info", "headrace")
    assert result.exit_code == 0
    assert "Identity" in result.stdout


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Identty", "Identity"), ("goood", "good"), ("nope:Identity", "headrace:Identity")],
)
def test_info_of_what_is_unknown_names_the_nearest(name, meant, good):
    result = headrace_says("plugins", "info", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Did you mean {meant!r}?" in result.stderr


def test_the_check_finds_nothing_wrong(good):
    result = headrace_says("plugins", "list", "--check")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("ok: ")


@pytest.mark.parametrize("name", ["headrace-trt", "trt", "headrace_serve"])
@pytest.mark.parametrize("command", [("plugins", "info"), ("conformance",)])
def test_a_known_distribution_that_is_not_installed_is_told_as_such(
    command, name, site, monkeypatch
):
    monkeypatch.setattr("importlib.metadata.distributions", distributions_below(site.folder))
    result = headrace_says(*command, name)
    distribution = "headrace-serve" if "serve" in name else "headrace-trt"
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {distribution} is not installed\n  Install it: pip")


def test_the_check_counts_what_is_disabled(site, monkeypatch):
    monkeypatch.setattr("importlib.metadata.distributions", distributions_below(site.folder))
    add(site, "headrace-good")
    only(monkeypatch, "")
    result = headrace_says("plugins", "list", "--check")
    assert result.exit_code == 0
    assert result.stdout.endswith("; 1 of them disabled by HEADRACE_PLUGINS\n")


@pytest.mark.parametrize(
    ("word", "name", "remedy"),
    [
        ("goood", "goood", "Did you mean 'good'?"),
        ("headrace-goood", "goood", "Did you mean 'good'?"),
        ("-trt", "trt", f"Install it: pip install headrace-trt, or {CLONE} headrace-trt"),
        ("-torchh", "torchh", "Did you mean 'torch'?"),
        ("-", "-", "Installed are: good."),
    ],
)
def test_a_slip_in_the_list_of_allowed_plugins_is_told(word, name, remedy, site, monkeypatch):
    monkeypatch.setattr("importlib.metadata.distributions", distributions_below(site.folder))
    add(site, "headrace-good")
    only(monkeypatch, "good", word)
    result = headrace_says("plugins", "list", "--check")
    assert result.exit_code == 0
    reason = f"no installed plugin is called {name!r}"
    told = f"warning: HEADRACE_PLUGINS: {reason}. {remedy}\n"
    assert result.stderr == told
    finding = json.loads(headrace_says("plugins", "list", "--check", "--json").stdout)["findings"][
        -1
    ]
    assert (finding["kind"], finding["plugin"], finding["remedy"]) == (
        "unknown_plugin",
        name,
        remedy,
    )
    listed = headrace_says("plugins", "list")
    assert listed.stderr == told
    only(monkeypatch, "good")
    assert headrace_says("plugins", "list", "--check").stderr == ""
    assert headrace_says("plugins", "list").stderr == ""


def test_the_check_looks_at_what_the_libraries_of_headrace_require_too(site, monkeypatch):
    """Such a library offers nothing, so no finding is about itself."""
    libraries = {
        "headrace-shapes": ("headrace>=99", "pydantic>=1", "other; extra == 'x'", "headrace-ring"),
        "headrace-ring": ("headrace-shapes", "no-such-library>=3; extra == 'fast'"),
    }
    needs = ("headrace>=0.1", "headrace-shapes", "headrace-ring[fast]")
    add(site, "headrace-dep", requires=needs)
    for name, required in libraries.items():
        site.add(name, requires=required)
    only(monkeypatch, "dep")
    result = headrace_says("plugins", "list", "--check", "--json")
    assert result.stdout, (result.stderr, result.exit_code, result.exception)
    found = [
        (one["reason"], one["remedy"])
        for one in json.loads(result.stdout)["findings"]
        if one["distribution"] == "headrace-dep"
    ]
    assert result.exit_code == 1
    core = headrace.__version__
    assert found == [
        (
            f"headrace-shapes, which it requires, requires headrace>=99, installed is {core}",
            'Install it: pip install "headrace>=99"',
        ),
        (
            "headrace-ring, which it requires, requires no-such-library>=3, which is not installed",
            'Install it: pip install "no-such-library>=3"',
        ),
    ]
    text = headrace_says("plugins", "list", "--check").stdout
    _, _, below = text.partition("\nheadrace-dep ")
    assert below.splitlines()[1].startswith("    missing_dependency: headrace-shapes, which it")


@pytest.fixture
def one_of_each(site, monkeypatch):
    """A plugin in each state; `bad` and `lib` show theirs when they are imported."""
    add(site, "headrace-good", "Fine")
    add(site, "headrace-one", "Twin")
    add(site, "headrace-two", "Twin")
    add(site, "headrace-bad", "Bad", "1 / 0")
    add(site, "headrace-end", "End", "raise SystemExit(3)")
    add(site, "headrace-lib", "Lib", "import no_such")
    needs = ("headrace>=0.1", "no-such-distribution>=2", "pydantic<1", "other; extra == 'x'")
    add(site, "headrace-dep", "Dep", requires=needs)
    add(site, "headrace-new", "New", requires=("headrace>=99",))
    add(site, "headrace-core", "S")
    add(site, "headrace-off", "Off", "1 / 0")
    monkeypatch.setenv("HEADRACE_PLUGINS", "-off,-cv,-ort")
    headrace.plugins.refresh()


BY_METADATA = {
    "headrace-good": "ok",
    "headrace-one": "duplicate",
    "headrace-two": "duplicate",
    "headrace-dep": "missing_dependency",
    "headrace-new": "incompatible",
    "headrace-core": "duplicate",
    "headrace-off": "disabled",
}
BY_IMPORT = {
    "headrace-bad": "broken",
    "headrace-end": "broken",
    "headrace-lib": "missing_dependency",
}
BOTH = {**BY_METADATA, **BY_IMPORT}


def states(rows):
    own = [row for row in rows if row["distribution"] in BOTH]
    for row in own:
        assert (row["reason"] is None) == (row["remedy"] is None) == (row["state"] == "ok")
    return {row["distribution"]: row["state"] for row in own}


def test_list_gives_the_states_that_need_no_import(one_of_each):
    before = set(sys.modules)
    result = headrace_says("plugins", "list", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["plugins"]
    assert states(rows) == {**BY_METADATA, **dict.fromkeys(BY_IMPORT, "ok")}
    assert not [name for name in set(sys.modules) - before if name.endswith("_module")]
    text = headrace_says("plugins", "list").stdout
    assert "'Twin' is offered by headrace-one and headrace-two" in text
    assert 'pip install "no-such-distribution>=2"' in text


def test_list_opens_no_metadata_but_that_of_plugins(one_of_each, site):
    add(site, "needs-much", "Much", requires=("pydantic", "typer"))
    code = (
        "import sys; opened = []; sys.addaudithook(lambda event, args: opened.append(str(args[0])) "
        "if event == 'open' else None)\n"
        "from headrace_cli.app import app\n"
        "try:\n    app(['plugins', 'list'])\n"
        "except SystemExit:\n    pass\n"
        "print('OPENED', *[path for path in opened if path.endswith(('METADATA', 'PKG-INFO'))])"
    )
    done = python("-c", code, path=site.folder)
    assert "needs-much" in done.stdout
    opened = done.stdout.splitlines()[-1].split()[1:]
    assert len(opened) == len(set(opened)) >= 10
    names = {path.replace("\\", "/").split("/")[-2].split("-")[0] for path in opened}
    assert {name.split("_")[0] for name in names} <= {"headrace", "needs"}


def test_list_compares_versions_without_opening_metadata(site, monkeypatch):
    site.add("some_library", version="1.5")
    needs = ("headrace>=0.1", "some_library[fast]>=2", "other>1; python_version < '3'")
    add(site, "headrace-dep", requires=needs)
    only(monkeypatch, "dep")
    rows = json.loads(headrace_says("plugins", "list", "--json").stdout)["plugins"]
    (row,) = [r for r in rows if r["plugin"] == "dep"]
    assert row["state"] == "missing_dependency"
    assert row["reason"] == "it requires some_library>=2, installed is 1.5"
    assert row["remedy"] == 'Install it: pip install "some_library[fast]>=2"'


def add_build(site, name, package):
    """Lay out an installed distribution that brings a package."""
    site.add(name)
    (site.folder / f"{name.replace('-', '_')}-1.0.dist-info" / "top_level.txt").write_text(package)


def test_another_build_may_take_the_place_of_a_library_but_two_are_told(site, monkeypatch):
    for package in ("hrt_runtime", "hrt_namespace"):
        (site.folder / package).mkdir()
    (site.folder / "hrt_runtime" / "__init__.py").write_text("")
    needs = ("headrace>=0.1", "hrt-runtime", "hrt-space")
    add(site, "headrace-dep", requires=needs)
    add_build(site, "hrt-runtime-gpu", "hrt_runtime")
    add_build(site, "hrt-space", "hrt_namespace")
    add_build(site, "hrt-space-more", "hrt_namespace")
    only(monkeypatch, "dep")

    def found():
        checked = json.loads(headrace_says("plugins", "list", "--check", "--json").stdout)
        return [one for one in checked["findings"] if one["plugin"] == "dep"]

    assert found() == []
    add_build(site, "hrt-runtime", "hrt_runtime")
    (overlap,) = found()
    assert overlap["kind"] == "overlap"
    assert "hrt-runtime and hrt-runtime-gpu" in overlap["reason"]
    assert "`pip uninstall -y hrt-runtime hrt-runtime-gpu`" in overlap["remedy"]
    broken = site.folder / "hrt_broken-1.0.dist-info"
    broken.mkdir()
    (broken / "RECORD").write_text("\n")  # no path stands in its line
    # From Python 3.11 on that is an error of the standard library, and nobody is told of rivals.
    assert found() == ([] if sys.version_info >= (3, 11) else [overlap])


def test_a_module_of_its_own_that_is_not_there_is_no_missing_library(site, monkeypatch):
    site.add("headrace-bare", "[headrace.backends]\nC = hrt_none.part:C\n")
    only(monkeypatch, "bare")
    checked = json.loads(headrace_says("plugins", "list", "--check", "--json").stdout)
    (found,) = [f for f in checked["findings"] if f["plugin"] == "bare"]
    assert found["kind"] == "broken"
    assert "No module named 'hrt_none'" in found["reason"]


def test_the_check_gives_each_state_with_reason_and_remedy(one_of_each):
    result = headrace_says("plugins", "list", "--check", "--json")
    assert result.exit_code == 1
    checked = json.loads(result.stdout)
    assert checked["ok"] is False
    assert states(checked["plugins"]) == BOTH
    findings = [finding for finding in checked["findings"] if finding["distribution"] in BOTH]
    wrong = {(name, state) for name, state in BOTH.items() if state != "ok"}
    wrong -= {("headrace-two", "duplicate")}  # it is told with headrace-one
    assert {(finding["distribution"], finding["kind"]) for finding in findings} == wrong
    assert all(finding["reason"] and finding["remedy"] for finding in findings)
    dep = [finding["reason"] for finding in findings if finding["plugin"] == "dep"]
    assert dep[0] == "it requires no-such-distribution>=2, which is not installed"
    assert dep[1].startswith("it requires pydantic<1, installed is ")
    assert len(dep) == 2
    text = headrace_says("plugins", "list", "--check")
    assert text.exit_code == 1
    assert "Write one:Twin or two:Twin" in text.stdout


@pytest.mark.parametrize(("name", "state"), sorted(BOTH.items()))
def test_info_gives_the_state_of_one_plugin(name, state, one_of_each):
    result = headrace_says("plugins", "info", name, "--json")
    assert result.exit_code == 0
    assert states(json.loads(result.stdout)["plugins"]) == {name: state}
    text = headrace_says("plugins", "info", name).stdout
    assert text.startswith(f"{name} 1.0: {state}")
    if state in ("disabled", "incompatible"):
        assert "not imported" in text
        assert "cannot be imported" not in text


def test_a_plugin_in_a_state_by_name_only_can_still_be_used(one_of_each):
    explained = headrace.explain({"backend": "two:Twin(name_it=1)"})
    assert "headrace-two" in json.dumps(explained)
    listed = json.loads(headrace_says("plugins", "list", "--json").stdout)["plugins"]
    usable = {row["distribution"] for row in listed if row["usable"]}
    assert {"headrace-one", "headrace-two", "headrace-dep"} <= usable
    assert not {"headrace-new", "headrace-off"} & usable
    checked = json.loads(headrace_says("plugins", "list", "--check", "--json").stdout)["findings"]
    (twice,) = [one for one in checked if one["backend"] == "Twin"]
    assert (twice["kind"], twice["plugin"], twice["others"]) == (
        "duplicate",
        "one",
        ["headrace-two"],
    )


def test_schema_prints_a_json_schema_that_accepts_a_configuration():
    import jsonschema

    schema = json.loads(python("-m", "headrace", "schema").stdout)
    line = headrace_says("schema", "--json").stdout
    assert (line.count("\n"), json.loads(line)) == (1, schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate({"backend": "Identity", "max": 4})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"backend": "Identity", "max": "many"})


def test_list_prints_what_programs_are_told(site):
    add(site, "headrace-good")
    done = python("-m", "headrace", "plugins", "list", "--json", path=site.folder)
    headrace.plugins.refresh()
    same = [plugin.to_dict() for plugin in headrace.plugins.installed()]
    rows = json.loads(done.stdout)["plugins"]
    for row, reported in zip(rows, json.loads(json.dumps(same)), strict=True):
        if row["usable"]:  # what is not installed for it, or offered twice, the command finds
            row |= {"state": "ok", "reason": None, "remedy": None}
        assert row == {**reported, "certificate": None}


ODD = """
import headrace
class Odd(headrace.Backend):
    async def forward(self, batch): ...
"""


def test_the_check_says_whose_class_breaks_the_contract(site, monkeypatch):
    add(site, "headrace-contract", "Odd", ODD, "Odd")
    only(monkeypatch, "contract")
    result = headrace_says("plugins", "list", "--check", "--json")
    (finding,) = [f for f in json.loads(result.stdout)["findings"] if f["kind"] != "disabled"]
    assert result.exit_code == 1
    assert (finding["distribution"], finding["backend"]) == ("headrace-contract", "Odd")
    assert finding["kind"] == "broken"
    assert "forward is asynchronous" in finding["reason"]
    assert finding["remedy"].startswith("Ask its author for a fix.")


def test_ctrl_c_while_the_command_is_still_being_imported_ends_without_a_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = python("-m", "headrace", "--version", path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_list_in_a_narrow_terminal_breaks_no_name(site, monkeypatch, width):
    names = [f"Backend{k}" for k in range(20)]
    points = "".join(f"{name} = hrt_good:Scale\n" for name in names)
    site.add("headrace-good", f"[headrace.backends]\n{points}", {"hrt_good": GOOD})
    only(monkeypatch, "good")
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    list_()
    said = screen.getvalue()
    assert max(map(len, said.splitlines())) <= width
    assert re.findall(r"Backend\d+", said) == names
