"""``headrace bench`` and ``Benchmark``: what they send, give and leave."""

from __future__ import annotations

import json
import sys
import threading
from functools import partial
from io import StringIO
from pathlib import Path

import matplotlib as mpl
import pytest
from processes import run_process
from typer.testing import CliRunner

import headrace
import headrace_observe
from headrace_cli.app import app
from headrace_cli.for_plugins import WrongArgument
from headrace_observe.bench.inner_load import of_node
from headrace_observe.bench.load import ClosedLoop
from headrace_observe.commands.arguments import percent
from headrace_observe.commands.printing import print_table
from headrace_observe.memory import read_dump

SHORT = ["--seconds", "0.05", "--warm-up", "0"]
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from headrace_cli import main; main()"
)


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def measured(*args):
    done = run("bench", *args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_file_of_arrivals_is_drawn_and_every_batch_of_it_counted(tmp_path):
    (tmp_path / "times.txt").write_text("0\n0.01\n0.02\n")
    load = ("Identity", "--data", "uint8:4", "--arrivals", tmp_path / "times.txt", "--warm-up", 0)
    plot = tmp_path / "load.svg"
    point = measured(*load, "--plot", plot)["configurations"][0]["points"][0]
    assert (point["ok"], point["batch_size"]["main"]["histogram"]) == (3, {"1": 3})
    assert "<svg" in plot.read_text()


def test_every_picture_says_what_the_clock_covers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")  # text stays text
    Path("times.json").write_text('{"main": {"1": 1.0}}')
    random = ("Identity", "--data", "uint8:4", *SHORT)
    goal = ("--goal", "max throughput", "--range", "max=1", "--trials", 1)
    known = ("Identity", "--times", "times.json", "--requests", 20)
    commands = (
        (("bench", *random, "--clients", "1,2", "--rate", 400), ["call of pipe", "intended"]),
        (("tune", *random, *goal), ["call of pipe"]),
        (("simulate", *known, "--clients", 1), ["virtual"]),
    )
    for command, clocks in commands:
        plot = tmp_path / f"{command[0]}.{'html' if command[0] == 'bench' else 'svg'}"
        done = run(*command, "--plot", plot)
        assert done.exit_code == 0, done.output
        text = plot.read_text()
        assert [(clock, text.count(clock)) for clock in clocks] == [(clock, 1) for clock in clocks]
        assert text.count("The clock: ") == len(clocks)
        if command[0] == "tune":
            assert "The clock of 40 clients: from the call of pipe" in done.stdout
    written = Path("tuned.toml").read_text()
    assert "call of pipe" in written
    assert "under the load 40 clients;" in written


def test_the_figures_of_two_configurations_in_turn(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    plot = tmp_path / "load.html"
    found = measured(
        "Identity",
        tmp_path,
        "--against",
        "S[Identity,Identity]",
        "--clients",
        "1,2",
        "--rate",
        "200",
        "--plot",
        plot,
        *("--seconds", "0.3", "--warm-up", "0"),  # on a stalled machine, too, some arrive in it
    )
    first, second = found["configurations"]
    assert [p["load"] for p in first["points"]] == [
        {"kind": "closed", "clients": 1},
        {"kind": "closed", "clients": 2},
        {"kind": "open", "rate": 200.0},
    ]
    for base, other in zip(first["points"], second["points"], strict=True):
        ratio = other["throughput_rps"] / base["throughput_rps"]
        assert other["ratio"]["throughput"] == pytest.approx(ratio, rel=1e-3)
        assert base["ok"] > 0
        assert "call of pipe(request)" in base["clock"] or "intended arrival" in base["clock"]
        assert base["latency_ms"]["p50"] <= base["latency_ms"]["p99"] <= base["latency_ms"]["max"]
    assert plot.read_text().count("<svg") == 1


def test_a_configuration_may_be_measured_against_itself():
    found = measured(
        "Identity", "--data", "uint8:4", "--against", "Identity", "--clients", "1", *SHORT
    )
    first, second = found["configurations"]
    assert (len(first["points"]), len(second["points"])) == (1, 1)
    base, other = first["points"][0], second["points"][0]
    assert other["ratio"]["throughput"] == pytest.approx(
        other["throughput_rps"] / base["throughput_rps"], rel=1e-3
    )


def test_toml_files_in_front_of_the_inputs_are_configurations(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text('backend = "Identity"')
    (tmp_path / "c.bin").write_bytes(b"abc")
    args = ("a.toml", "b.toml", "c.bin")
    one, two, data = (str(tmp_path / name) for name in args)
    load = ("--clients", "1", *SHORT)
    for found in (
        measured(one, two, data, *load),
        measured(one, two, "--data", "uint8:4", *load),
    ):
        assert [made["config"] for made in found["configurations"]] == [one, two]
    # With nothing else to send it is an INPUT, as for `headrace run`.
    assert len(measured(one, two, *load)["configurations"]) == 1


def test_a_file_of_arrivals_that_ends_in_the_warm_up_is_measured_whole(tmp_path):
    (tmp_path / "times.txt").write_text("0\n0.002\n0.01\n")
    found = measured("Identity", "--data", "uint8:4", "--arrivals", tmp_path / "times.txt")
    (point,) = found["configurations"][0]["points"]
    assert (point["ok"], point["stable"]) == (3, False)


@pytest.mark.slow
def test_times_of_batches_are_saved_and_other_probes_stay(tmp_path):
    config = tmp_path / "own.toml"
    config.write_text('backend = "Identity"\nmax = 4\n[global]\nprobes = ["Remember"]\n')
    times = tmp_path / "times.jsonl"
    found = measured(config, "--data", "uint8:4", "--clients", "3", "--save-times", times, *SHORT)
    assert found["configurations"][0]["points"][0]["ok"] > 0
    memory = read_dump(times)
    assert {(one.node, one.code) for one in memory.visits} == {("main", "ok")}
    assert run("simulate", config, "--times", times, "--clients", "2").exit_code == 0


def test_a_table_says_what_the_clock_covers():
    done = run("bench", "Identity", "--data", "uint8:4", "--clients", "1", *SHORT)
    assert done.exit_code == 0
    assert "req/s" in done.stdout
    assert any(line.strip().startswith("1 client ") for line in done.stdout.splitlines())
    assert "The clock of 1 client: from the call of pipe(request) to its return" in done.stdout


@pytest.mark.parametrize("word", ["Identity", "Process[Identity]"])
def test_cpu_time_of_processes_that_is_in_no_figure_is_told(word, monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    done = run("bench", word, "--data", "uint8:4", "--clients", "1", *SHORT)
    assert done.exit_code == 0, done.output
    told = "without those of Process: psutil counts these" in done.stderr.replace("\n", " ")
    assert told == word.startswith("Process")


def test_what_a_pipeline_advises_stands_once_below_the_table(monkeypatch):
    stats, text = headrace.Pipeline.stats, "callers waited for 'main': instance_num = \"auto\""

    def advising(pipe):
        told = stats(pipe)
        if pipe.config.plan().nodes["main"].expression == "Identity":
            told["nodes"]["main"]["advice"] = text
        return told

    monkeypatch.setattr(headrace.Pipeline, "stats", advising)
    args = ("Identity", "--data", "uint8:4", "--clients", "1,2", *SHORT)
    assert run("bench", *args).stderr.count(text) == 1
    several = (*args, "--against", "S[Identity,Identity]")
    assert f"Identity: {text}" in run("bench", *several).stderr.splitlines()
    first, second = measured(*several)["configurations"]
    assert (first["advice"], second["advice"]) == ({"main": text}, {})


def test_failures_are_counted_by_code_and_end_with_one():
    done = run("bench", "S[NoSuchWord,Identity]", "--data", "uint8:4", *SHORT)
    assert (done.exit_code, "NoSuchWord" in done.output) == (2, True)
    done = run("bench", "DecodeMat", "--data", "uint8:40", "--clients", "1", "--json", *SHORT)
    (point,) = json.loads(done.stdout)["configurations"][0]["points"]
    assert (done.exit_code, point["ok"], list(point["failed"])) == (1, 0, ["input"])
    said = f"{point['failed']['input']} requests failed with the code input, one of them: "
    assert said in done.stderr
    assert "backend 'DecodeMat', instance 0" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            [],
            "the pipeline describes no inputs, so no rows can be made: give INPUT files, or --data",
        ),
        (["--data", "f:1"], "expected dtype:shape"),
        (["--data", "uint8", "--clients", "0"], "--clients: expected whole numbers above 0"),
        (["--data", "uint8", "--clients", "1,10001"], "each is a thread, at most 10000"),
        (["--data", "uint8", "--clients", "9" * 400], "--clients: expected whole numbers above 0"),
        (["--data", "uint8", "--seconds", "inf"], "expected at most 1000000000, got inf"),
        (["--data", "uint8", "--warm-up", "1e400"], "expected at most 1000000000, got inf"),
        (["--data", "uint8", "--stable", "much"], "--stable: expected a percentage"),
        (["--data", "uint8", "--plot", "a.gif"], "--plot a.gif: expected a name that ends in .png"),
        (["--data", "uint8", "--plot", "no/a.png"], "--plot no/a.png: its folder does not exist"),
        (["--data", "uint8", "--arrivals", "none.txt"], "the arrivals in none.txt cannot be read"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_built(args, message):
    done = run("bench", "Identity", *args)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_percentage_is_a_share():
    assert [percent(text, "--x") for text in ("5%", " 0.5 ", "100%")] == [0.05, 0.005, 1.0]
    for wrong in ("0%", "100.1%", "nan", "-1", "5%%", ""):
        with pytest.raises(WrongArgument, match="as 5%; got"):
            percent(wrong, "--x")


def test_an_input_that_cannot_be_read_is_named(tmp_path):
    (link := tmp_path / "link").symlink_to(tmp_path / "nowhere")
    done = run("bench", "Identity", str(link))
    told = f"error: {link}: it cannot be read: No such file or directory\n"
    assert (done.exit_code, done.stderr) == (2, told)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_built(
    tmp_path, monkeypatch
):
    plain = Path.open

    def refuse(path, mode="r", **options):
        if mode == "xb":  # root may write anywhere
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, mode, **options)

    monkeypatch.setattr(Path, "open", refuse)
    tuned = tmp_path / "tuned.toml"
    done = run("tune", "Identity", "--data", "uint8", "--goal", "min p99", "-o", tuned)
    assert done.exit_code == 2
    assert f"--output {tuned}: it cannot be written: Permission denied" in done.stderr
    assert "trying" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_two_options_do_not_write_one_file(tmp_path):
    file, load = tmp_path / "out.html", ("--data", "uint8", "--clients", "1")
    (link := tmp_path / "link.html").symlink_to(file)
    for args in (
        ("bench", "Identity", *load, "--plot", file, "--save-times", link),
        ("tune", "Identity", *load, "--goal", "min p99", "--output", file, "--plot", link),
    ):
        done = run(*args)
        assert done.exit_code == 2
        assert f"error: {args[-2]} {link}: {args[-4]} writes this file, too" in done.stderr
    assert not file.exists()


def test_a_seed_below_zero_is_refused_where_it_is_given():
    done = run("simulate", "Identity", "--times", "times.json", "--rate", "1", "--seed", "-5")
    assert done.exit_code == 2
    assert "'--seed'" in done.stderr


@pytest.mark.parametrize("columns", [20, 80, 130, 400])
def test_a_terminal_of_any_width_shows_every_figure(monkeypatch, columns):
    headings = ["load", "requests per second", *(f"figure {k}" for k in range(9)), "config"]
    rows = [[f"{r}{k}" * 6 for k in range(len(headings))] for r in "ab"]
    terminal = StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "50")
    monkeypatch.setenv("TERM", "dumb")
    print_table(headings, rows, keys=(0, 11))
    lines = terminal.getvalue().splitlines()
    for cells in (headings, *rows):
        assert [cell for cell in cells if not any(f" {cell} " in line for line in lines)] == []
    if columns >= 80:
        assert max(map(len, lines)) <= columns
        named = [line for line in lines if rows[1][0] in line]
        assert all(line.startswith(f" {rows[1][0]} ") and rows[1][11] in line for line in named)
        assert (len(named) == 1) == (columns == 400)


def test_no_command_writes_over_what_it_reads(tmp_path):
    config, picture, found = tmp_path / "a.toml", tmp_path / "b.png", tmp_path / "c.html"
    config.write_text('backend = "Identity"\n')
    for path in (picture, found):
        path.write_text("{}")
    (link := tmp_path / "link.toml").symlink_to(config)
    for args, option in (
        (("bench", config, "--data", "uint8:4", "--save-times", link), "--save-times"),
        (("bench", config, tmp_path, "--plot", picture), "--plot"),
        (("trace", link, picture, "-o", config), "--output"),
        (("trace", config, f"{tmp_path}/*.png", "-o", picture), "--output"),
        (("tune", link, picture, "--goal", "min p99", "-o", config), "--output"),
        (("simulate", config, "--times", found, "--rate", "1", "--plot", found), "--plot"),
    ):
        done = run(*args)
        assert done.exit_code == 2
        assert f"{option} {args[-1]}: it would overwrite" in done.stderr
    assert (config.read_text(), picture.read_text(), found.read_text()) == (
        'backend = "Identity"\n',
        "{}",
        "{}",
    )


def test_an_interrupt_leaves_complete_figures_and_130(tmp_path):
    (tmp_path / "stop.py").write_text(
        "import os, signal, headrace\n"
        "@headrace.register('Stop')\n"
        "class Stop:\n"
        "    calls = 0\n"
        "    def forward(self, batch):\n"
        "        Stop.calls += 1\n"
        "        if Stop.calls == 50:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        for request in batch:\n"
        "            request['result'] = request['data']\n"
    )
    (tmp_path / "stop.toml").write_text('import = ["stop.py"]\nbackend = "Stop"\n')
    args = ["bench", "stop.toml", "--data", "uint8:4", "--clients", "1", "--seconds", "60"]
    done = run_process(
        [sys.executable, "-c", MAIN, *args, "--warm-up", "0", "--json", "--save-times", "t.json"],
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 130, done.stderr
    found = json.loads(done.stdout)
    (point,) = found["configurations"][0]["points"]
    assert found["interrupted"]
    assert point["interrupted"]
    assert point["ok"] >= 40
    assert len(read_dump(tmp_path / "t.json").visits) >= 40


def test_a_benchmark_from_python_counts_what_was_asked_for():
    with headrace_observe.Benchmark({"backend": "Identity", "max": 4}) as bench:
        with pytest.raises(ValueError, match="add_input"):
            bench.benchmark()
        with pytest.raises(ValueError, match="add_input"):
            bench.run_once()
        with pytest.raises(TypeError, match=r"a request is a dict.*got int"):
            bench.add_input(5)
        bench.add_input({"data": 1})
        bench.add_input({"data": 2})
        assert bench.run_once({"data": 3})["result"] == 3
        assert bench.run_once() == {"data": 1, "result": 1}
        point = bench.benchmark(clients=3, total=50, warm_up=7)
        assert len(point.window.latencies) == 50
        batches = point.to_dict()["batch_size"]["main"]["histogram"]
        assert sum(int(size) * count for size, count in batches.items()) == 50
        assert bench.pipeline.stats()["nodes"]["main"]["ok"] == 59
        with pytest.raises(ValueError, match="clients=0"):
            bench.benchmark(clients=0)
    with pytest.raises(headrace.errors.ClosedError):
        bench.run_once({"data": 1})
    shown = str(bench.benchmark(total=3, warm_up=0))
    assert "3 failed, closed: the pipeline is closed; the clock: " in shown


@pytest.mark.parametrize("method", ["start", "join"])
@pytest.mark.parametrize("inner", [False, True])
def test_clients_of_a_measurement_that_is_given_up_send_no_more(method, inner, monkeypatch):
    entered, opened, loads = threading.Event(), threading.Event(), []
    usual = getattr(ClosedLoop, method)

    class Held(headrace.Backend):
        def forward(self, batch):
            entered.set()
            assert opened.wait(60)
            batch[0]["result"] = None

    def interrupted(load):
        loads.append(load)
        if method == "start":
            usual(load)
        assert entered.wait(60)
        raise KeyboardInterrupt

    headrace.register("Held", Held)
    with headrace_observe.Benchmark({"backend": "Held"}) as bench:
        bench.add_input({"data": 1})
        monkeypatch.setattr(ClosedLoop, method, interrupted)
        node = partial(of_node, Held().forward, [{"data": 1}], 1, 1000, "main")
        measure = node if inner else partial(bench.benchmark, total=1000, warm_up=0)
        with pytest.raises(KeyboardInterrupt):
            measure()
        monkeypatch.undo()
        opened.set()
        loads[0].join()
    assert loads[0].notes[0].count == 1


def test_a_pipeline_that_was_given_stays_open():
    with headrace.pipe({"backend": "Identity"}) as pipe:
        with headrace_observe.Benchmark(pipe) as bench:
            bench.add_input({"data": 1})
            bench.benchmark(total=3, warm_up=0)
        assert pipe({"data": 1})["result"] == 1
