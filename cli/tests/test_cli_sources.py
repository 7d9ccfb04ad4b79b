"""What commands take and write: expressions, --set, --output, --build, completion, usage errors."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest
from processes import run_process
from typer.testing import CliRunner

import headrace
from headrace._language.registry.registry import registry
from headrace_cli.app import app
from headrace_cli.console import print_data
from headrace_cli.inputs import Input
from headrace_cli.results.files import Output, suffix_of

LOG: list[str] = []


class Say(headrace.Backend):
    """Gives its option and what it was told."""

    class Options(headrace.Options):
        word: str | int | float | bool | list[int] = "none"
        file: headrace.FilePath | None = None

    def init(self, options, context):
        LOG.append("init")
        self.word = options.word

    def warm_up(self):
        LOG.append("warm_up")

    def forward(self, batch):
        for request in batch:
            request["result"] = [self.word, request["data"].decode()]

    def close(self):
        LOG.append("close")


class Raise(headrace.Backend):
    """Cannot be built."""

    def init(self, options, context):
        raise RuntimeError("no such device")

    def forward(self, batch):
        """Never called."""


class Cling(Say):
    """Cannot be closed."""

    def close(self):
        raise RuntimeError("it clings")


class Give(headrace.Backend):
    """Gives what Python makes of the data."""

    def forward(self, batch):
        for request in batch:
            request["result"] = eval(request["data"], {"np": pytest.importorskip("numpy")})


@pytest.fixture(autouse=True)
def backends(tmp_path, monkeypatch):
    LOG.clear()
    for cls in (Say, Raise, Cling, Give):
        headrace.register(cls.__name__, cls, replace=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "1")


@pytest.fixture
def write(tmp_path):
    def write(**files):
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def says(*args):
    return CliRunner().invoke(app, list(args), prog_name="headrace")


# CONFIG


def test_an_expression_stands_in_the_place_of_a_file(write):
    write(a_txt="x")
    result = says("run", "S[Say(word=hello)]", "a.txt", "-q")
    assert (result.exit_code, result.stdout) == (0, 'a.txt\t["hello", "x"]\n')
    assert says("check", "S[Say]").stdout.startswith("ok: 1 node, 1 instance; ")


def test_what_is_neither_file_nor_expression_says_how_it_was_read(write):
    write(a_txt="x")
    for command in (("run", "line.tml", "a.txt"), ("check", "line.tml"), ("explain", "line.tml")):
        result = says(*command)
        assert result.exit_code == 2
        assert "'line.tml' is no file, so it was read as an expression\n" in result.stderr
    assert "'.' is a folder, not a TOML file" in says("check", ".").stderr
    assert "so it was read as an expression" in says("check", "a" * 5000).stderr
    for wrong in ("wrd=1", "max=x", "global.probes=['No']"):  # Say is what was meant
        said = says("check", "Say", "--set", wrong)
        assert (said.exit_code, "read as an expression" in said.stderr) == (2, False)
    write(line_toml='backend = "Say"\n')
    for near in ("line", "line.tml"):
        said = says("check", near).stderr
        assert f"{near!r} is no file (did you mean 'line.toml'?), so it was read" in said


@pytest.mark.parametrize(
    ("table", "command"),
    [("models", "headrace serve --check --models"), ("sources", "headrace video")],
)
def test_a_file_for_another_command_says_so(write, table, command):
    write(other_toml=f'[{table}.one]\nconfig = "one.toml"\n')
    for given in (["check", "other.toml"], ["explain", "other.toml"]):
        said = says(*given).stderr
        assert f"[{table}] is a table of files for `{command} other.toml`" in said
        assert "backend" not in said
    write(own_toml=f'[{table}]\nbackend = "Say"\nmxa = 1\n')
    assert "of files for" not in says("check", "own.toml").stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_refused_as_a_file_and_not_read_as_an_expression(tmp_path):
    os.mkfifo(tmp_path / "made")
    result = says("check", "made")
    assert result.exit_code == 2
    assert result.stderr == "error: cannot read 'made': it is a pipe or a device, not a TOML file\n"


def test_an_error_cannot_steer_the_terminal(write):
    write(a_txt="exec('raise ValueError(\"\x1b[31mred\")')")
    result = says("run", "Give", "a.txt", "-q")
    assert result.exit_code == 1
    assert r"ValueError: \x1b[31mred" in result.stderr
    first = says("check", "x\x1b[2J.toml").stderr.splitlines()[0]
    assert first == "error: no such file: 'x\\x1b[2J.toml'"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("3", 3),
        ("2.5", 2.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("a,b=c", "a,b=c"),
        ("2024-01-02", "2024-01-02"),
        ("", ""),
        ("$${HOME}$", "${HOME}$"),
        ("3\nmax = 4", "3\nmax = 4"),
    ],
)
def test_a_value_that_is_set_is_toml_else_text(text, word, write):
    write(a_txt="x", line_toml='backend = "Say"\nword = "of the file"\n')
    result = says("run", "line.toml", "a.txt", "--json", "--set", f"word={text}")
    assert json.loads(result.stdout)["result"] == [word, "x"]


def test_what_is_set_wins_over_the_file_and_the_last_over_the_first(write):
    write(graph_toml='[a]\nbackend = "Say"\nword = 1\n"Say::word" = 2\n')
    expected = {
        "a.word=3": 2,
        "a.Say::word=4": 4,
        "global.word=5": 2,
    }
    for text, word in expected.items():
        result = says("explain", "graph.toml", "--json", "--set", "a.Say::word=9", "--set", text)
        value = json.loads(result.stdout)["nodes"]["a"]["tree"]["options"]["word"]["value"]
        assert value == (9 if word == 2 else word)


@pytest.mark.parametrize(
    "text",
    [
        "word=5",
        "one.word=5",
        "one.Say::word=5",
        "Say::word=5",
        '"Say::word"=5',
        "one.'Say::word'=5",
    ],
)
def test_a_key_of_the_only_node_wins_over_what_its_table_says(text, write):
    write(one_toml='[one]\nbackend = "Say"\nword = 1\n', over_toml='extends = "one.toml"\n')
    for file in ("one.toml", "over.toml"):
        result = says("explain", file, "--json", "--set", text, "--set", "threads=3")
        found = json.loads(result.stdout)
        assert found["nodes"]["one"]["tree"]["options"]["word"]["value"] == 5
        assert found["threads"] == 3


def test_a_key_of_the_only_node_is_found_in_whatever_way_its_file_is_named(
    write, monkeypatch, tmp_path
):
    one = '[one]\nbackend = "Say"\nword = 1\n'
    write(far__one_toml=b"\xef\xbb\xbf" + one.encode(), far__over_toml='extends = "one.toml"\n')
    Path("link.toml").symlink_to("far/over.toml")
    monkeypatch.setenv("HOME", str(tmp_path / "far"))
    monkeypatch.setenv("FOLDER", "far")
    monkeypatch.delenv("NAME", raising=False)
    write(
        variable_toml='extends = "${FOLDER}/${NAME:-one}.toml"\n',
        home_toml='extends = "~/one.toml"\n',
    )
    for file in ("far/one.toml", "link.toml", "variable.toml", "home.toml", "~/over.toml"):
        result = says("explain", file, "--json", "--set", "word=5")
        options = json.loads(result.stdout)["nodes"]["one"]["tree"]["options"]
        assert (file, options["word"]["value"]) == (file, 5)


@pytest.mark.parametrize("text", ["word=5", "main.word=5", "main.Say::word=5"])
def test_the_node_without_a_table_may_be_named(text, write):
    write(line_toml='backend = "Say"\nword = 1\n', over_toml='extends = ["line.toml"]\n')
    for what in ("line.toml", "over.toml", "Say"):
        result = says("explain", what, "--json", "--set", text)
        found = json.loads(result.stdout)
        assert found["nodes"]["main"]["tree"]["options"]["word"]["value"] == 5


def test_a_key_of_the_pipeline_is_set_where_the_file_has_it(write):
    shared, node = "[global]\nthreads = 2\nword = 1\n", 'backend = "Say"\n'
    write(one_toml=f"{node}{shared}", tables_toml=f"{shared}[a]\n{node}[b]\n{node}")
    write(over_toml='extends = "tables.toml"\n[global]\nmax = 2\n')
    for file, name in (("one.toml", "main"), ("tables.toml", "b"), ("over.toml", "a")):
        result = says("explain", file, "--json", "--set", "threads=3", "--set", "word=5")
        found = json.loads(result.stdout)
        assert found["threads"] == 3
        assert found["nodes"][name]["tree"]["options"]["word"]["value"] == 5


def test_what_a_file_extends_cannot_be_set_for_the_file_itself_would_be_left_out(write):
    write(line_toml='backend = "Say"\nword = 1\n', base_toml='[a]\nbackend = "Identity"\n')
    result = says("check", "line.toml", "--set", "extends=base.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--set extends=base.toml: what line.toml extends cannot be changed" in result.stderr
    assert says("check", "Say", "--set", "extends=line.toml").exit_code == 0


def test_a_path_that_is_set_starts_here_and_one_in_the_file_there(write):
    write(there__line_toml='backend = "Say"\nfile = "own.txt"\n', there__own_txt="", own_txt="")
    assert says("check", "there/line.toml").exit_code == 0
    assert says("check", "there/line.toml", "--set", "file=own.txt").exit_code == 0
    assert says("check", "there/line.toml", "--set", "file=there/own.txt").exit_code == 0
    assert says("check", "there/line.toml", "--set", "file=gone.txt").exit_code == 2


@pytest.mark.parametrize("text", ["word", "=3", "backend.x=3"])
def test_what_sets_nothing_is_refused(text, write):
    result = says("check", "Say", "--set", text)
    assert result.exit_code == 2
    assert "--set" in result.stderr


def test_what_is_set_of_a_node_that_is_not_there_is_refused_with_the_nearest(write):
    write(two_toml='[front]\nbackend = "Say"\nnext = "back"\n\n[back]\nbackend = "Say"\n')
    for name, meant in (("frnt", "Did you mean 'front'?"), ("x", "There are: front, back.")):
        result = says("check", "two.toml", "--set", f"{name}.max=2")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"error: --set: there is no node {name!r}. {meant}\n"
    added = ("--set", "more.backend=Identity", "--set", "back.next=more")
    assert says("check", "two.toml", *added).exit_code == 0


# check --build


def test_check_builds_warms_up_and_closes_when_it_is_asked_to():
    assert says("check", "Say").exit_code == 0
    assert LOG == []
    result = says("check", "Say", "--build")
    assert result.exit_code == 0
    assert result.stdout.startswith("ok: 1 node, 1 instance, built and warm in ")
    assert LOG == ["init", "warm_up", "close"]
    built = json.loads(says("check", "Say", "--build", "--json").stdout)["built"]
    assert built["nodes"]["main"]["instance_num"] == 1


def test_check_gives_what_backends_warn_of_while_they_are_built(write):
    write(
        warns_py="import headrace\n"
        "class Warns(headrace.Backend):\n"
        "    def init(self, options, context):\n"
        "        context.logger.warning('the scale of %s is guessed', 'x')\n"
        "        context.logger.info('nothing of note')\n"
        "    def forward(self, batch):\n"
        "        batch[0]['result'] = 1\n"
        "headrace.register('Warns', Warns)\n",
        warns_toml='import = ["warns.py"]\nbackend = "Warns"\ninstance_num = 2\n',
    )
    assert "warning: the scale of x is guessed" in says("check", "warns.toml", "--build").stderr
    found = json.loads(says("check", "warns.toml", "--build", "--json").stdout)["warnings"]
    of_backends = [one["message"] for one in found if one["code"] == "backend_warning"]
    assert of_backends == ["the scale of x is guessed"]


def test_check_says_that_a_max_is_cut_by_what_was_built(write):
    """Only `init` of such a model knows how many rows it takes."""
    write(
        rows_py="import headrace\n"
        "class TakesFour(headrace.Backend):\n"
        "    def init(self, options, context):\n"
        "        self.max = 4\n"
        "    def forward(self, batch):\n"
        "        for request in batch:\n"
        "            request['result'] = request['data']\n"
        "headrace.register('TakesFour', TakesFour)\n",
        rows_toml='import = ["rows.py"]\nbackend = "S[Identity,TakesFour]"\nmax = 8\n',
    )
    result = says("check", "rows.toml", "--build")
    assert result.exit_code == 0
    (line,) = (one for one in result.stderr.splitlines() if "max" in one)
    assert line == (
        "warning: node 'main': max = 8, and TakesFour takes at most 4: no batch has more. Write max = 4"
    )
    found = json.loads(says("check", "rows.toml", "--build", "--json").stdout)
    assert [one["code"] for one in found["warnings"] if one["code"] == "max_cut"] == ["max_cut"]
    assert not [
        one
        for one in json.loads(says("check", "rows.toml", "--json").stdout)["warnings"]
        if one["code"] == "max_cut"
    ]


def test_check_says_what_cannot_be_closed():
    result = says("check", "Cling", "--build")
    assert result.exit_code == 0
    assert result.stderr == "warning: closing Cling failed: RuntimeError: it clings\n"


def test_check_says_what_cannot_be_built():
    result = says("check", "Raise", "--build")
    assert result.exit_code == 2
    assert "RuntimeError: no such device [node 'main', backend 'Raise'" in result.stderr
    found = json.loads(says("check", "Raise", "--build", "--json").stdout)
    assert (found["ok"], found["error"]["code"]) == (False, "setup")


def test_check_sees_a_library_that_only_computing_needs(site):
    site.backend(
        "headrace-far", "Far", "hrt_far", requires=("headrace>=0.1,<0.2", "no-such-library>=2")
    )
    result = says("check", "Far", "--json")
    assert result.exit_code == 0
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning["code"] == "missing_dependency"
    assert "headrace-far" in warning["message"]
    assert "no-such-library>=2, which is not installed" in warning["message"]
    assert 'pip install "no-such-library>=2"' in warning["hint"]
    found = json.loads(says("plugins", "list", "--check", "--json").stdout)
    assert ("headrace-far", "missing_dependency") in [
        (one["distribution"], one["kind"]) for one in found["findings"]
    ]


MODULES = {
    "plain": "import os\nfrom io import BytesIO as Buffer\ntry:\n    import nothing_of_the_kind\nexcept ImportError:\n    pass\n"
    "def grey(data): ...\nclass Shade: ...\nround, (flat, *rest) = 1, (2, 3)\nfor turn in (): pass\nraise SystemError('imported')\n",
    "starred": "from os import *\n",
    "lazy": "def __getattr__(name): ...\n",
    "made": "globals()['late'] = len\n",
    "box/__init__": "",
    "box/inner": "def grey(data): ...\n",
    "full/__init__": "globals()['late'] = len\n",
    "full/inner/__init__": "",
}
"""Modules by their paths. Only the import of some tells which names they have."""


@pytest.mark.parametrize(
    ("function", "near"),
    [
        ("plain:gray", "grey"),
        ("plain:Shades.of", "Shade"),
        ("box.inner:gray", "grey"),
        ("box:iner", "inner"),
        ("builtins:lenn", "len"),
        *(
            (f"plain:{name}", None)
            for name in ["grey", "Shade.no", "os", "Buffer", "round", "flat", "rest", "turn"]
        ),
        ("box:inner.grey", None),
        *((f"{module}:gray", None) for module in ("starred", "lazy", "made", "full.inner")),
        ("sys:exit", None),
    ],
)
def test_check_tells_of_a_misspelt_function_without_importing_it(
    tmp_path, monkeypatch, function, near
):
    for module, text in MODULES.items():
        path = tmp_path / f"hrt_{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    if not function.startswith(("builtins", "sys")):
        function = f"hrt_{function}"
    result = says("check", f"Fallback[S[Identity,Call({function})],Identity]", "--json")
    found = json.loads(result.stdout)
    told = [w for w in found["warnings"] if "cannot be called" in w["message"]]
    assert (result.exit_code, found["ok"], [w["suggestion"] for w in told]) == (
        0,
        True,
        [near] if near else [],
    )


# --output


def test_a_full_disk_names_the_file_that_it_has_no_room_for(write, monkeypatch):
    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    write(in__number_txt="1")
    monkeypatch.setattr(Path, "write_bytes", full)
    result = says("run", "Give", "in", "--output", "out", "-q")
    told = f"error: reading or writing failed: No space left on device: {Path('out/number.json')}\n"
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", told)
    assert list(Path("out").iterdir()) == []


def test_an_output_without_a_name_writes_nothing_here(write):
    write(in__number_txt="1")
    result = says("run", "Give", "in/number.txt", "--output", "")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--output: the name of the folder is empty" in result.stderr
    assert [one.name for one in Path().iterdir() if one.suffix != ".txt"] == ["in"]


def test_each_kind_of_result_gets_its_file(write):
    numpy = pytest.importorskip("numpy")
    write(
        in__array_txt="np.arange(6, dtype='u1').reshape(2, 3)",
        in__deep__image_txt=r"b'\x89PNG\r\n\x1a\n123'",
        in__bytes_txt="b'123'",
        in__masked_txt="np.ma.array([1, 2], mask=[0, 1])",
        in__number_txt="np.float32(0.5)",
        in__table_txt="{'a': np.ones(2), 'b': float('nan')}",
        in__texts_txt="np.array(['a', '\\udc80', None], object)",
    )
    result = says("run", "Give", "in", "--output", "out", "-q")
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == [
        "in/array.txt\tout/array.npy",
        "in/bytes.txt\tout/bytes.bin",
        "in/deep/image.txt\tout/deep/image.png",
        "in/masked.txt\tout/masked.json",
        "in/number.txt\tout/number.json",
        "in/table.txt\tout/table.json",
        "in/texts.txt\tout/texts.json",
    ]
    assert numpy.load(io.BytesIO(Path("out/array.npy").read_bytes())).tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert Path("out/deep/image.png").read_bytes() == b"\x89PNG\r\n\x1a\n123"
    assert json.loads(Path("out/table.json").read_text("utf-8")) == {"a": [1.0, 1.0], "b": None}
    assert json.loads(Path("out/masked.json").read_text("utf-8")) == [1, None]
    assert json.loads(Path("out/number.json").read_text("utf-8")) == 0.5
    assert json.loads(Path("out/texts.json").read_text("utf-8")) == ["a", "\udc80", None]
    assert len([name for _, _, names in os.walk("out") for name in names]) == 7


def test_json_names_the_files_and_failures_write_none(write):
    write(in__a_txt="1/0", in__b_txt="'text'")
    result = says("run", "Give", "in", "-o", "out", "--json", "-q")
    first, second = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert first["error"]["code"] == "backend"
    assert second == {"path": "in/b.txt", "output": "out/b.json"}
    assert [path.name for path in Path("out").iterdir()] == ["b.json"]


def test_inputs_of_one_name_get_files_of_their_own(write):
    write(in__a_jpg="1", in__a_png="2", in__a_png_json="3", other__a_jpg="4")
    result = says("run", "Give", "in", "other", "-o", "out", "-q")
    assert [line.partition("\t")[2] for line in result.stdout.splitlines()] == [
        "out/a.json",
        "out/a.png.json",
        "out/a.png.json.json",
        "out/a.jpg.json",
    ]
    for index, name in enumerate(("a", "a.png", "a.png.json", "a.jpg"), 1):
        assert json.loads(Path(f"out/{name}.json").read_text("utf-8")) == index


def test_a_name_that_is_too_long_with_its_suffix_fails_alone(write):
    write(in__a_json="1", in__c_json="3")
    longest = f"in/{'b' * 251}"  # with .json it has 256 characters, and file systems take 255
    Path(longest).write_text("2", encoding="utf-8")
    result = says("run", "Give", "in", "-o", "out", "-q")
    assert result.stdout == "in/a.json\tout/a.json\nin/c.json\tout/c.json\n"
    assert f"{longest}: error: request: its result cannot be written" in result.stderr
    assert result.exit_code == 1


def test_an_input_is_never_written_over(write):
    write(a_json="1", in__b_json="2")
    assert says("run", "Give", "a.json", "-o", ".", "-q").stdout == "a.json\ta.json.json\n"
    assert says("run", "Give", "*.json", "-o", ".", "-q").exit_code == 0
    assert Path("a.json").read_text("utf-8") == "1"
    for source, folder in (
        ("in", "in"),
        ("in", "in/below"),
        ("in*", "in/below"),
        ("in/*", "in/below"),
    ):
        result = says("run", "Give", source, "-o", folder)
        assert result.exit_code == 2
        assert "whose files are the inputs" in result.stderr
    assert says("run", "Give", "in/**/*.json", "-o", "in/below", "-q").exit_code == 0
    assert says("run", "Give", "a.json", "-o", "a.json").exit_code == 2


def test_a_result_is_counted_when_ctrl_c_comes_right_after_its_line(write, monkeypatch):
    def print_and_interrupt(line):
        print_data(line)
        if line.startswith("b.txt"):
            raise KeyboardInterrupt

    monkeypatch.setattr("headrace_cli.results.printer.print_data", print_and_interrupt)
    write(a_txt="x", b_txt="y", c_txt="z")
    result = says("run", "S[Say(word=hello)]", "a.txt", "b.txt", "c.txt")
    assert (result.exit_code, len(result.stdout.splitlines())) == (130, 2)
    assert "interrupted; 2 requests: 2 ok, 0 failed, 1 not done; " in result.stderr


def test_a_result_that_cannot_be_written_is_a_failed_request(write):
    unwritable = "type('Silent', (), {'__str__': lambda *_: 1 / 0})()"
    write(a_txt=unwritable, b_txt="10**5000", c_txt="3")
    for more in ((), ("--json",), ("--output", "out")):
        result = says("run", "Give", "a.txt", "b.txt", "c.txt", *more)
        assert result.exit_code == 1
        assert "3 requests: 1 ok, 2 failed" in result.stderr
        times = result.output.count("its result cannot be written: ")
        assert times == 2


def test_an_array_that_numpy_cannot_read_is_a_failed_request(write):
    write(a_txt="type('Far', (), {'shape': (2,), 'dtype': 'f4', '__array__': lambda *_: 1 / 0})()")
    result = says("run", "Give", "a.txt", "-o", "out", "-q")
    assert result.exit_code == 1
    assert "its result cannot be written: ZeroDivisionError" in result.stderr
    assert [path.name for path in Path("out").iterdir()] == []


@pytest.mark.parametrize(
    ("suffix", "extension"),
    [(".jpg", ".jpg"), (".png", ".png"), (".webp", ".webp"), (".tif", ".tiff"), (".bmp", ".bmp")],
)
def test_the_suffix_is_that_of_the_format(suffix, extension):
    cv2, numpy = pytest.importorskip("cv2"), pytest.importorskip("numpy")
    encoded = cv2.imencode(extension, numpy.zeros((4, 4, 3), "u1"))[1].tobytes()
    assert suffix_of(encoded) == suffix


def test_names_are_those_inside_of_what_was_asked_for(tmp_path, write):
    write(x__a_txt="", x__y__b_txt="")
    output = Output("out", [])
    names = {
        Input("x/y/b.txt", root="x"): "y/b.json",
        Input("x/a.txt"): "a.json",
        Input("-"): "stdin.json",
    }
    for one, name in names.items():
        assert output.write(one, 1).as_posix() == f"out/{name}"


# Usage errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rum"], "Did you mean 'run'?"),
        (["check"], "Missing argument"),
        (["check", "a.toml", "--jsn"], "No such option"),
        (["run", "a.toml", "x", "--timeout", "soon"], "--timeout"),
        (["plugins", "lst"], "No such command"),
        (["doctor"], "Did you mean 'plugins list --check'?"),
        (["chek"], "Did you mean 'check'?"),
        (["--bad", "check"], "No such option"),
        (["run", "a.toml", "gone"], "no such file or folder"),
        (["bench", "a.toml"], "pip install headrace-observe"),
    ],
)
def test_usage_errors_are_json_too_where_that_is_asked_for(args, message, monkeypatch):
    monkeypatch.setattr(registry, "plugins", lambda **_: [])
    plain = says(*args)
    assert (plain.exit_code, plain.stdout) == (2, "")
    assert message in plain.stderr
    result = says(*args, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert message in found["error"]["message"]
    assert [problem["message"] for problem in found["problems"]] == [found["error"]["message"]]


@pytest.mark.parametrize(
    ("command", "distribution"),
    [
        ("bench", "headrace-observe"),
        ("tune", "headrace-observe"),
        ("simulate", "headrace-observe"),
        ("trace", "headrace-observe"),
        ("observe", "headrace-observe"),
        ("serve", "headrace-serve"),
        ("trt", "headrace-trt"),
    ],
)
def test_a_command_of_a_distribution_that_is_not_here_names_it(command, distribution, monkeypatch):
    monkeypatch.setattr(registry, "plugins", lambda **_: [])
    result = says(command, "line.toml")
    assert result.exit_code == 2
    assert f"pip install {distribution}" in result.stderr


# Completion


def typed(text):
    """What a shell sets that asks for what may follow ``text``."""
    return {
        "COMP_WORDS": f"headrace {text}",
        "COMP_CWORD": str(len(text.split(" "))),
        "_HEADRACE_COMPLETE": "complete_bash",
    }


def test_a_shell_completes_commands_options_and_names(monkeypatch):
    for text, name in (
        ("run --out", "--output"),
        ("plugins info Id", "Identity"),
        ("plugins ", "info"),
        ("explain --graph ", "mermaid"),
    ):
        found = CliRunner().invoke(app, [], prog_name="headrace", env=typed(text))
        assert name in found.stdout.split()
    command = [sys.executable, "-m", "headrace"]
    environ = {**os.environ, **typed("che")}
    done = run_process(command, env=environ)
    assert (done.stdout.split(), done.stderr) == (["check"], "")
    # Which shell it is would be looked for among the processes that have started this one.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    shown = says("--show-completion")
    assert shown.exit_code == 0
    assert "_HEADRACE_COMPLETE" in shown.stdout
