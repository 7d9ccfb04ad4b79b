"""``headrace run``: inputs, output, exit status, Ctrl-C."""

from __future__ import annotations

import contextlib
import csv
import errno
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from processes import run_process
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_cli.commands import run as run_module
from headrace_cli.console import WrongArgument
from headrace_cli.inputs import Input, expand
from headrace_cli.interrupts import Interrupts
from headrace_cli.results import printer as results_module
from headrace_testing import Blocking

FAILS_LATE_S = 600.0
"""A process that hangs fails its test after this; nothing else is measured in seconds."""

BACKENDS = '''
import sys
import threading
import headrace

came = threading.Event()


@headrace.register("Text")
class Text(headrace.Backend):
    """The data as text; "bad" fails."""

    def forward(self, batch):
        """Decode."""
        outcomes = []
        for request in batch:
            bad = request["data"] == b"bad"
            outcomes.append(ValueError("it is bad") if bad else None)
            if not bad:
                request["result"] = request["data"].decode()
        return outcomes


@headrace.register("Dict")
class Dict(headrace.Backend):
    """A result with several values."""

    def forward(self, batch):
        """Answer."""
        for request in batch:
            request["result"] = {"a": "x\\ty", "b": 0.5, "c": None, "d": [1, b"z"]}


@headrace.register("Long")
class Long(headrace.Backend):
    """A long text."""

    def forward(self, batch):
        """Answer."""
        for request in batch:
            request["result"] = "x" * 2000


@headrace.register("SecondFirst")
class SecondFirst(headrace.Backend):
    """The first request is done only after the second."""

    def forward(self, batch):
        """Wait for the other one."""
        for request in batch:
            if request["data"] == b"second":
                came.set()
            else:
                came.wait()
            request["result"] = request["data"].decode()


@headrace.register("Hang")
class Hang(headrace.Backend):
    """Never comes back."""

    def forward(self, batch):
        """Hang."""
        sys.stderr.write("hanging\\n")  # in one piece: other instances and the command write, too
        threading.Event().wait()


@headrace.register("Deaf")
class Deaf(headrace.Backend):
    """Does not listen to Ctrl-C."""

    def init(self, options, context):
        """Hang."""
        while True:
            try:
                print("deaf", file=sys.stderr, flush=True)
                threading.Event().wait()
            except KeyboardInterrupt:
                pass

    forward = Text.forward
'''


@pytest.fixture
def pipeline(tmp_path):
    """Write a configuration that may use the backends above."""

    def write(backend, more=""):
        (tmp_path / "own.py").write_text(BACKENDS, encoding="utf-8")
        path = tmp_path / "pipeline.toml"
        path.write_text(f'import = ["own.py"]\nbackend = "{backend}"\n{more}\n', encoding="utf-8")
        return path

    return write


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write files into a folder, which becomes the working directory's ``in``."""
    monkeypatch.chdir(tmp_path)

    def write(**contents):
        folder = tmp_path / "in"
        folder.mkdir(exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        return "in"

    return write


def run(*args, stdin=None):
    words = ["run", *map(str, args)]
    return CliRunner().invoke(app, words, input=stdin, prog_name="headrace")


@contextlib.contextmanager
def started(*args):
    """A process of its own, which does not outlive the test.

    It hears Ctrl-C although this one may have been started in the background, where shells have it
    ignored and children inherit that: a child starts with the default where its parent handles it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


# Inputs


def paths(*arguments):
    return [one.path for one in expand(list(arguments))]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("t/b.txt", "t/a/2.txt", "t/a/1.txt", "t/.hidden", "t/.dir/x.txt", "t/c.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_folder_means_its_files_sorted_without_hidden_ones(tree):
    expected = ["t/a/1.txt", "t/a/2.txt", "t/b.txt", "t/c.jpg"]
    assert paths("t") == [str(Path(path)) for path in expected]


@pytest.mark.skipif(os.name == "nt", reason="written with slashes")
def test_patterns_files_and_the_order_of_arguments(tree):
    assert paths("t/c.jpg", "t/*.txt") == ["t/c.jpg", "t/b.txt"]
    assert paths("t/**/*.txt") == ["t/a/1.txt", "t/a/2.txt", "t/b.txt"]
    assert paths("t/**") == ["t/a/1.txt", "t/a/2.txt", "t/b.txt", "t/c.jpg"]
    assert paths("t/[a]") == ["t/a/1.txt", "t/a/2.txt"]
    assert paths("t/.hidden", "-") == ["t/.hidden", "-"]


@pytest.mark.skipif(os.name == "nt", reason="links need a right of their own")
def test_a_link_that_leads_to_itself_fails_alone(tree):
    (tree / "t" / "a" / "0").symlink_to("0")
    assert paths("t") == ["t/a/0", "t/a/1.txt", "t/a/2.txt", "t/b.txt", "t/c.jpg"]
    result = run("Identity", "t", "--json")
    assert result.exit_code == 1
    first, *others = map(json.loads, result.stdout.splitlines())
    assert first["error"]["code"] == "input"
    assert first["error"]["message"].startswith("it cannot be read: ")
    assert len(others) == 4
    assert all("result" in one for one in others)


def test_a_file_whose_name_looks_like_a_pattern(tree):
    (tree / "x[1].txt").write_bytes(b"")
    assert paths("x[1].txt") == ["x[1].txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jpg"], "no such file or folder: 'none.jpg'"),
        (["t", "none/*.jpg"], "no file matches"),
        (["none/**"], "no file matches"),
        (["empty"], "no files in the folder"),
        (["-", "-"], "once only"),
        (["none", "none.*"], "'none'; no file matches the pattern 'none.*'"),
    ],
)
def test_what_names_no_input_is_refused_before_anything_is_built(tree, arguments, message):
    with pytest.raises(WrongArgument) as caught:
        run_module.check_arguments(arguments)
    assert message in str(caught.value)
    result = run("no-such.toml", *arguments)
    assert result.exit_code == 2
    message = f"no such file: 'no-such.toml'; {caught.value}"
    assert result.stderr == f"error: {message}\n"
    (tree / "no-much.toml").touch()
    assert (
        "'no-such.toml' (did you mean 'no-much.toml'?); " in run("no-such.toml", *arguments).stderr
    )


def test_a_file_where_nobody_may_look_is_not_called_missing(monkeypatch):
    def refuse(path, **more):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(WrongArgument) as caught:
        run_module.check_arguments(["closed/a.jpg"])
    assert str(caught.value) == "it cannot be looked for: Permission denied: 'closed/a.jpg'"


# Output


@pytest.mark.first("a file of a pipeline runs from the command line")
def test_a_line_per_success_and_a_summary(pipeline, files):
    result = run(pipeline("Text"), files(b=b"two", a=b"one"))
    assert result.exit_code == 0
    assert result.stdout == "in/a\tone\nin/b\ttwo\n"
    assert result.stderr.startswith("2 requests: 2 ok, 0 failed; ")
    assert "requests per second, mean batch 1.0\n" in result.stderr


def test_what_the_pipeline_advises_is_told_once_at_the_end(pipeline, files, monkeypatch):
    stats, text = headrace.Pipeline.stats, "callers waited for 'main': instance_num = \"auto\""

    def advising(pipe):
        told = stats(pipe)
        told["nodes"]["main"]["advice"] = text
        return told

    monkeypatch.setattr(headrace.Pipeline, "stats", advising)
    folder = files(a=b"x", b=b"y")
    assert run(pipeline("Text"), folder).stderr.splitlines()[1:] == [text]
    assert run(pipeline("Text"), folder, "--quiet").stderr == ""


@pytest.mark.first("a file of a pipeline runs from the command line")
def test_failed_requests_give_1_and_a_message_that_names_the_path(pipeline, files):
    result = run(pipeline("Text"), files(a=b"one", b=b"bad", c=b"three"))
    assert result.exit_code == 1
    assert result.stdout == "in/a\tone\nin/c\tthree\n"
    assert result.stderr.startswith("in/b: error: backend: Text raised ValueError: it is bad")
    assert "3 requests: 2 ok, 1 failed; " in result.stderr
    assert "Traceback" not in result.stderr


def test_the_text_of_an_error_is_no_line_of_another_input(pipeline, files):
    """A hint stays a line of its own, which is indented."""
    (pipeline("Text").parent / "forging.py").write_text(
        "import headrace\n"
        "@headrace.register('ForgingRun')\n"
        "def forging(data):\n"
        "    raise headrace.errors.InputError(data.decode(), hint='Do it.')\n"
    )
    config = pipeline("Text").parent / "forging.toml"
    config.write_text('import = ["forging.py"]\nbackend = "ForgingRun"')
    result = run(config, files(a=b"x\nin/b: error: y\r\nin/c: error: z\x1b[2J"))
    lines = result.stderr.splitlines()
    assert sum(one.startswith("in/") for one in lines) == 1
    assert r"\nin/b: error: y\r\nin/c: error: z\x1b[2J" in lines[0]
    assert "  Do it." in lines


@pytest.mark.first("a file of a pipeline runs from the command line")
def test_json_gives_one_object_per_input(pipeline, files):
    result = run(pipeline("Text"), files(a=b"one", b=b"bad"), "--json", "-q")
    assert result.exit_code == 1
    assert result.stderr == ""
    first, second = map(json.loads, result.stdout.splitlines())
    assert first == {"path": "in/a", "result": "one"}
    assert second["path"] == "in/b"
    assert (second["error"]["code"], second["error"]["type"]) == ("backend", "BackendError")
    assert "it is bad" in second["error"]["message"]


def test_a_dict_gives_its_values(pipeline, files):
    result = run(pipeline("Dict"), files(a=b""))
    assert result.stdout == 'in/a\tx\\ty\t0.5\tnull\t[1, "bytes [1]"]\n'
    result = run(pipeline("Dict"), files(a=b""), "--json")
    expected = {"a": "x\ty", "b": 0.5, "c": None, "d": [1, "eg=="]}
    assert json.loads(result.stdout) == {"path": "in/a", "result": expected}


def test_standard_input_is_one_request(pipeline):
    result = run(pipeline("Text"), "-", stdin=b"from a pipe")
    assert (result.exit_code, result.stdout) == (0, "-\tfrom a pipe\n")


def test_a_file_that_cannot_be_read_is_a_failed_request(pipeline, files, monkeypatch):
    folder = files(a=b"one", b=b"two")
    arguments = [Input("in/a"), Input("in/gone"), Input("in/b")]
    monkeypatch.setattr(run_module, "expand", lambda *_: iter(arguments))
    result = run(pipeline("Text"), folder)
    assert result.exit_code == 1
    assert result.stdout == "in/a\tone\nin/b\ttwo\n"
    assert "in/gone: error: input: it cannot be read: " in result.stderr


def test_a_file_for_which_there_is_no_memory_fails_alone(pipeline, files, monkeypatch):
    read = Path.read_bytes

    def no_memory(path):
        if path.name == "a":
            raise MemoryError
        return read(path)

    folder = files(a=b"one", b=b"two")
    monkeypatch.setattr(Path, "read_bytes", no_memory)
    result = run(pipeline("Text"), folder, "-q")
    assert (result.exit_code, result.stdout) == (1, "in/b\ttwo\n")
    told = "it cannot be read: there is no memory for its content"
    assert result.stderr == f"in/a: error: input: {told}\n"


@pytest.mark.first("a file of a pipeline runs from the command line")
def test_answers_come_in_the_order_of_the_inputs(pipeline, files):
    config = pipeline("SecondFirst", "instance_num = 2")
    result = run(config, files(a=b"first", b=b"second"))
    assert result.stdout == "in/a\tfirst\nin/b\tsecond\n"


def test_only_a_window_of_requests_is_in_memory(files, tmp_path, monkeypatch):
    headrace.register("CliBlocking", Blocking, replace=True)
    Blocking.reset()
    window, counts = run_module.LEAST_WINDOW, {"read": 0, "printed": 0}
    read, print_data = Input.read, results_module.print_data

    def counted_read(self):
        counts["read"] += 1
        assert counts["read"] - counts["printed"] <= window
        if counts["read"] >= window:
            Blocking.leave.release()
        return read(self)

    def counted_print(text):
        counts["printed"] += 1
        Blocking.leave.release()
        print_data(text)

    monkeypatch.setattr(Input, "read", counted_read)
    monkeypatch.setattr(results_module, "print_data", counted_print)
    config = tmp_path / "pipeline.toml"
    config.write_text('backend = "CliBlocking"\n', encoding="utf-8")
    result = run(config, files(**{f"f{i:03}": b"x" for i in range(100)}))
    assert result.exit_code == 0
    assert counts == {"read": 100, "printed": 100}


def test_a_small_queue_that_rejects_does_not_reject_these(pipeline, files):
    config = pipeline("Text", 'queue_size = 2\nqueue_full = "reject"')
    result = run(config, files(**{f"f{i:03}": b"x" for i in range(50)}))
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 50


def test_traceback_of_failed_requests_on_demand(pipeline, files):
    words = ["--traceback", "run", str(pipeline("Text")), files(b=b"bad")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "ValueError: it is bad" in result.stderr


# The process


def first_line(stream, *wanted):
    """Read until each text was seen, in any order; give the last line read."""
    missing = set(wanted)
    for line in stream:
        missing -= {text for text in missing if text in line}
        if not missing:
            return line
    raise AssertionError(f"it never said {missing}")


def test_a_timeout_fails_the_request_and_keeps_the_status_although_a_backend_hangs(pipeline, files):
    arguments = [files(a=b"x"), "--timeout", "0.05"]
    with started(pipeline("Hang"), *arguments) as process:
        out, err = process.communicate(timeout=FAILS_LATE_S)
    assert process.returncode == 1
    assert out == ""
    assert "in/a: error: deadline: " in err
    assert "1 request: 0 ok, 1 failed; " in err


def test_a_reader_that_goes_away_ends_it_quietly(pipeline, files):
    folder = files(**{f"f{i:03}": b"x" for i in range(500)})
    with started(pipeline("Long"), folder) as process:
        assert process.stdout.readline().startswith("in/f000\tx")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(FAILS_LATE_S) == 141


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.parametrize(
    ("instances", "number"), [(1, signal.SIGINT), (3, signal.SIGINT), (1, signal.SIGTERM)]
)
def test_ctrl_c_and_sigterm_end_it_although_a_backend_hangs(pipeline, files, instances, number):
    config = pipeline("Hang", f"instance_num = {instances}")
    with started(config, files(a=b"x", b=b"y")) as process:
        first_line(process.stderr, "hanging")
        process.send_signal(number)
        printed = first_line(process.stderr, "interrupted")
        assert process.wait(FAILS_LATE_S) == 128 + number
    assert printed.startswith("interrupted; 0 requests: 0 ok, 0 failed, ")


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_while_results_were_printed_counts_them(pipeline, files):
    config = pipeline("S[(key=path)Text,Hang]")
    others = {f"f{k:02}": b"z" for k in range(38)}  # more than are under way at a time
    with started(config, files(a=b"bad", b=b"y", **others)) as process:
        first_line(process.stderr, "in/a: error: backend", "hanging")
        process.send_signal(signal.SIGINT)
        printed = first_line(process.stderr, "interrupted")
        assert process.wait(FAILS_LATE_S) == 130
    assert printed.startswith("interrupted; 1 request: 0 ok, 1 failed, 39 not done; ")


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_a_second_ctrl_c_ends_what_does_not_listen(pipeline, files):
    with started(pipeline("Deaf"), files(a=b"x")) as process:
        first_line(process.stderr, "deaf")
        process.send_signal(signal.SIGINT)
        first_line(process.stderr, "deaf")
        process.send_signal(signal.SIGINT)
        assert process.wait(FAILS_LATE_S) == 130


DEAF = """
import sys, threading
while True:
    try:
        print("deaf", file=sys.stderr, flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_second_ctrl_c_or_sigterm_ends_any_command(tmp_path, handler):
    (tmp_path / "deaf.py").write_text(DEAF, encoding="utf-8")
    config = tmp_path / "pipeline.toml"
    config.write_text('import = ["deaf.py"]\nbackend = "Identity"\n', encoding="utf-8")
    command = [sys.executable, "-m", "headrace", "check", str(config)]
    before = signal.signal(signal.SIGINT, handler)
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    # In the background shells have Ctrl-C ignored.
    number = signal.SIGTERM if handler is signal.SIG_IGN else signal.SIGINT
    with process:
        first_line(process.stderr, "deaf")
        process.send_signal(number)
        first_line(process.stderr, "deaf")
        process.send_signal(number)
        assert process.wait(FAILS_LATE_S) == 128 + number


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_ctrl_c_while_it_builds_ends_it_as_soon_as_init_has_noticed(tmp_path):
    (tmp_path / "slow.py").write_text(
        textwrap.dedent(
            """
            import os, signal, threading
            import headrace

            @headrace.register("Polite")
            class Polite(headrace.Backend):
                owns_thread = True

                def init(self, options, context):
                    def send():
                        os.kill(os.getpid(), signal.SIGINT)
                    threading.Timer(0.0, send).start()
                    while not context.cancelled():
                        threading.Event().wait(0.01)
                    print("noticed", flush=True)
                    raise RuntimeError("given up")

                def forward(self, batch):
                    pass
            """
        )
    )
    config = tmp_path / "slow.toml"
    config.write_text('import = ["slow.py"]\nbackend = "Polite"\n')
    done = run_process(
        [sys.executable, "-m", "headrace", "run", str(config), str(config)], timeout=FAILS_LATE_S
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert done.stdout == "noticed\n"


@pytest.fixture
def sends_interrupts(monkeypatch):
    """Have SIGINT raise KeyboardInterrupt, and fail where one signal is taken for two."""
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail("taken for a second one"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends POSIX signals")
@pytest.mark.usefixtures("sends_interrupts")
def test_ctrl_c_that_does_not_wake_the_main_thread_comes_again():
    main = threading.get_ident()

    def asleep():
        frame = sys._current_frames()[main]
        waits = frame.f_code is threading.Condition.wait.__code__
        return waits and frame.f_back.f_back.f_code is wait.__code__

    def send():
        while not asleep():
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # which wakes this thread alone

    def wait():
        with Interrupts():
            threading.Thread(target=send).start()
            threading.Event().wait(FAILS_LATE_S)

    with pytest.raises(KeyboardInterrupt):
        wait()


class Dies:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.usefixtures("sends_interrupts")
def test_ctrl_c_in_a_destructor_comes_again():

    def wait():
        with Interrupts():
            Dies()
            threading.Event().wait(FAILS_LATE_S)

    with pytest.raises(KeyboardInterrupt):
        wait()


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.usefixtures("sends_interrupts")
def test_ctrl_c_that_the_garbage_collector_would_swallow_comes_again():
    sent = []
    gc.collect()  # of what other tests left: a destructor among it may swallow the interrupt that comes again

    def called(phase, about):
        if not sent:
            sent.append(phase)
            signal.raise_signal(signal.SIGINT)

    def wait():
        with Interrupts() as interrupts:
            gc.callbacks.append(called)
            gc.collect()
            threading.Event().wait(FAILS_LATE_S)
        assert interrupts.came, "it was lost"

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        gc.callbacks.remove(called)


def terminal(monkeypatch):
    """Make stdout a terminal of 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def test_a_terminal_shows_a_table_and_breaks_no_word(monkeypatch):
    screen = terminal(monkeypatch)
    results = results_module.ResultPrinter(json=False, traceback=False, output=None)
    results.result(Input("a.txt"), "one\ntwo \x1b[31m")
    results.result(Input("b.txt"), "")
    results.result(Input("c.txt"), {"text": "tea", "score": 0.5})
    results.result(Input("d.txt"), [{"label": "cat", "score": 0.123456}] * 2)
    results.result(Input("a/name/longer/than/a/third.txt"), {"n": list(range(10**9, 10**9 + 9))})
    lines = screen.getvalue().splitlines()
    assert lines[:7] == [
        "a.txt  one",
        "       two \\x1b[31m",
        "b.txt  (empty)",
        "c.txt  text: tea  score: 0.5",
        "d.txt  0.12346  cat",
        "       0.12346  cat",
        "a/name/longer/than/a/third.txt",
    ]
    assert max(map(len, lines)) <= 40
    assert re.findall(r"\d+", "".join(lines[7:])) == [str(10**9 + k) for k in range(9)]


def test_a_terminal_shows_the_first_lines_of_a_long_result(monkeypatch):
    screen = terminal(monkeypatch)
    results = results_module.ResultPrinter(json=False, traceback=False, output=None)
    results.result(Input("a"), "x\n" * 100)
    assert screen.getvalue().count("x") == 40
    assert "... and 61 lines more" in screen.getvalue()


def names_in(file):
    """Return the path of each line of a file of results."""
    text = Path(file).read_text(encoding="utf-8")
    if str(file).endswith(".csv"):
        return [row["path"] for row in csv.DictReader(io.StringIO(text))]
    return [json.loads(line)["path"] for line in text.splitlines()]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for number in range(20):
        content = b"\xff" if number == 7 else b"a line\nand another, with a comma"
        Path(f"in/{number:02}, \u00e9.txt").write_bytes(content)
    errors = Path("out.errors.jsonl" if name == "out.jsonl" else "out.csv.errors.jsonl")
    assert run("Call(builtins:bytes.decode)", "in", "--out", name).exit_code == 1
    whole, failed = Path(name).read_bytes(), errors.read_bytes()
    paths = [str(Path("in", f"{number:02}, \u00e9.txt")) for number in range(20)]
    assert names_in(name) == [path for path in paths if path != paths[7]]
    assert names_in(errors) == [paths[7]]
    lines = whole.splitlines(keepends=True)
    for torn in (0, len(lines[0]) + 1, len(whole) // 2, len(whole) - 1, len(whole)):
        Path(name).write_bytes(whole[:torn])
        errors.write_bytes(failed[: -1 if torn % 2 else None])
        done = run("Call(builtins:bytes.decode)", "in", "--out", name, "--resume")
        assert done.exit_code == 1  # one of the files is bad, in whichever run
        assert done.stdout == ""
        assert Path(name).read_bytes() == whole
        assert errors.read_bytes() == failed
    Path("in/99.txt").write_bytes(b"new")
    run("Call(builtins:bytes.decode)", "in", "--out", name, "--resume")
    assert names_in(name)[19:] == [str(Path("in", "99.txt"))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "there.jsonl"], "--resume goes on where it ends"),
        (["--out", "there.jsonl", "--resume"], "there.jsonl:1: this is no line"),
        (["--out", "in/out.csv"], "it lies in 'in'"),
        (["--resume"], "--out FILE.jsonl"),
        (
            ["--out", "folder", "--resume"],
            "expected a name that ends in .jsonl or .csv or .parquet or .npy",
        ),
    ],
)
def test_a_file_that_cannot_take_the_lines_is_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in/a").write_bytes(b"a")
    Path("there.jsonl").write_text("something else\n", encoding="utf-8")
    done = run("Identity", "in", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert Path("there.jsonl").read_text(encoding="utf-8") == "something else\n"
    assert not Path("folder").exists()
