"""``headrace tune``: goals, ranges, searches, results and the file that is written."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from array import array
from collections import Counter

import pytest
from distributions import tomllib
from typer.testing import CliRunner

import headrace
from headrace.errors import InputError
from headrace_cli.app import app
from headrace_formats import write_toml
from headrace_observe.bench.measurement import Point
from headrace_observe.bench.notes import Window
from headrace_observe.bench.rows import result
from headrace_observe.tune.goals import read_goal
from headrace_observe.tune.search import search
from headrace_observe.tune.space import Dimension, as_layer, space_of
from headrace_observe.tune.trials import Trials


def figures(throughput=100.0, p99=40.0, failed=0.0):
    rest = dict.fromkeys(("mean", "p50", "p90", "max"), 10.0)
    return {"throughput": throughput, "p99": p99, "failed": failed, "cpu": 1.0, **rest}


def test_a_goal_ranks_what_keeps_its_limits_above_all_else():
    goal = read_goal("max throughput; p99 < 0.05s; failed <= 1%")
    assert [(one.figure, one.value) for one in goal.limits] == [("p99", 50.0), ("failed", 0.01)]
    ordered = [
        None,
        figures(1000, 100),
        figures(10, 60),
        figures(10, 40),
        figures(20, 49),
        figures(30, 49, failed=0.01),
    ]
    ranks = [goal.rank(one) for one in ordered]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
    least = read_goal("min p99; throughput > 50/s")
    assert least.rank(figures(60, 10)) > least.rank(figures(500, 11)) > least.rank(figures(40, 1))


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("max throughput; p98 < 50ms", 17, "unknown figure 'p98'. Did you mean"),
        ("max speed", 5, "unknown figure 'speed'"),
        ("max throughput; p99 < 50kg", 17, "the unit of p99 is us or ms or s"),
        ("max throughput; p99 50", 17, "expected 'max FIGURE'"),
        ("max throughput; min p99", 17, "only one figure"),
        ("p99 < 50ms", 1, "it has no figure to maximize or minimize"),
        ("max throughput; failed < 200%", 17, "failed is a share of the requests"),
        ("max throughput; failed < 5", 17, "failed is a share of the requests"),
        ("max throughput; failed > 100%", 17, "failed is a share of the requests"),
        ("max throughput; failed < 0%", 17, "write failed <= 0% for none"),
        ("max throughput; p99 <= 0ms", 17, "p99 cannot be below 0"),
        ("max p50; throughput < 0", 10, "throughput cannot be below 0"),
        ("max throughput; failed <= 100%", 17, "failed is a share of the requests"),
        ("max throughput; p99 > 0ms", 17, "every result keeps it: p99 is never below 0"),
        ("max throughput; failed >= 0", 17, "every result keeps it: failed is never below 0"),
        ("min p50; p99 < 50ms; p99 > 60ms", 22, "nothing keeps it and 'p99 < 50ms', too"),
        ("min p50; p99 > 0.06s; p99 < 50ms", 23, "nothing keeps it and 'p99 > 0.06s', too"),
    ],
)
def test_a_goal_that_cannot_be_read_is_refused_with_place_and_words(text, column, message):
    with pytest.raises(InputError) as caught:
        read_goal(text)
    said = str(caught.value)
    assert f"at column {column}: " in said
    assert message in said
    assert "Figures are throughput, mean, p50, p90, p99, max, failed, cpu" in said
    shown, caret = said.splitlines()[1:3]
    assert shown == f"  {text}"
    assert caret.index("^") == column + 1


@pytest.mark.parametrize(
    ("limit", "share", "kept"),
    [
        ("failed < 1%", 0.01, False),
        ("failed <= 1%", 0.01, True),
        ("failed > 0%", 0.0, False),
        ("failed < 1%", 0.009, True),
    ],
)
def test_a_result_on_a_limit_keeps_it_only_where_the_limit_says_equal(limit, share, kept):
    goal = read_goal(f"max throughput; {limit}")
    assert (goal.excess(figures(failed=share)) == 0) is kept
    assert (goal.rank(figures(failed=share)) > 0) is kept


def nodes_of(config):
    return headrace.explain(config)["nodes"]


def test_ranges_name_keys_of_nodes():
    nodes = nodes_of(
        {"a": {"backend": "Identity", "next": "b", "max": 7}, "b": {"backend": "Identity"}}
    )
    found = space_of(nodes, ["a.max=1..16", "b.instance_num=1,4", "global.threads=1..8"], 5)
    assert [(d.name, d.values, d.start) for d in found] == [
        ("a.max", (1, 2, 3, 4, 6, 8, 12, 16), 6),
        ("b.instance_num", (1, 4), 1),
        ("global.threads", (1, 2, 3, 4, 6, 8), 4),
    ]
    assert as_layer(found, (8, 4, 2), one_node=False) == {
        "a": {"max": 8},
        "b": {"instance_num": 4},
        "global": {"threads": 2},
    }
    assert {d.name for d in space_of(nodes, [], 5)} == {
        f"{n}.{k}" for n in "ab" for k in ("instance_num", "max", "batching_timeout")
    }


@pytest.mark.parametrize(
    ("least", "most", "keys", "sizes", "start"),
    [
        (1, None, {}, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 1),
        (1, None, {"max": 30}, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 32),
        (1, 8, {}, (1, 2, 3, 4, 6, 8), 8),
        (3, 10, {}, (3, 4, 6, 8, 10), 10),
        (3, 10, {"max": 4}, (3, 4, 6, 8, 10), 4),
        (4, 4, {}, None, None),
        (1, 1, {}, None, None),
    ],
)
def test_without_ranges_what_the_classes_take_is_searched_from_what_they_have(
    least, most, keys, sizes, start, monkeypatch
):
    class Ranged(headrace.Backend):
        min, max = least, most

        def forward(self, batch):
            pass

    headrace.register("RangedToTune", Ranged)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "4")
    found = space_of(nodes_of({"backend": "RangedToTune", **keys}), [], 1)
    expected = [("main.instance_num", ("auto", 1, 2, 3, 4), "auto")]
    if sizes is not None:
        expected.append(("main.max", sizes, start))
    if most != 1:
        expected.append(("main.batching_timeout", (0, 1, 2, 4, 8), 0))
    assert [(d.name, d.values, d.start) for d in found] == expected


@pytest.mark.parametrize(
    ("keys", "ranges", "values", "start"),
    [
        ({}, [], ("auto", 1, 2, 3), "auto"),
        ({"instance_num": "auto"}, [], ("auto", 1, 2, 3), "auto"),
        ({"instance_num": 2}, [], ("auto", 1, 2, 3), 2),
        ({"device": ["a", "b"], "instance_num": 2}, [], (1, 2, 3), 2),
        ({}, ["instance_num=auto,1,2"], ("auto", 1, 2), "auto"),
        ({"instance_num": 4}, ["instance_num=2,auto,1"], ("auto", 1, 2), 2),
        ({"instance_num": 4}, ["instance_num=auto"], ("auto",), "auto"),
        ({"instance_num": "auto"}, ["instance_num=1..4"], (1, 2, 3, 4), 3),
    ],
)
def test_numbers_of_instances_are_searched_from_auto_where_none_is_written(
    keys, ranges, values, start, monkeypatch
):
    class Carries(headrace.Backend):
        auto_instances = classmethod(lambda cls, options, device, threads: threads)
        max = 1

        def forward(self, batch):
            """Is never called."""

    headrace.register("CarriesToTune", Carries)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "3")
    (found,) = space_of(nodes_of({"backend": "CarriesToTune", **keys}), ranges, 3)
    assert (found.name, found.values, found.start) == ("main.instance_num", values, start)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max", "expected KEY=LOW..HIGH"),
        ("a.mox=1..2", "'mox' is not searched(?s:.*)Did you mean 'max'"),
        ("max=1..2", "which node"),
        ("c.max=1..2", "there is no node 'c'(?s:.*)There are: a, b"),
        ("bb.max=1..2", "Did you mean 'b'"),
        ("a.max=8..2", "expected LOW..HIGH"),
        ("a.max=0..2", "max is at least 1"),
        ("a.max=auto,1", "expected LOW..HIGH or A,B,C in whole numbers"),
        ("a.instance_num=auto..4", "expected LOW..HIGH"),
        ("a.instance_num=auto,0", "instance_num is at least 1"),
        ("a.threads=1..2", r"threads is a key of \[global\]"),
    ],
)
def test_a_range_that_means_nothing_is_refused(text, message):
    nodes = nodes_of({"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "Identity"}})
    with pytest.raises(InputError, match=message):
        space_of(nodes, [text], 5)


SPACE = [
    Dimension("main", "max", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), 1),
    Dimension("main", "instance_num", (1, 2, 3, 4), 1),
    Dimension("main", "batching_timeout", (0, 1, 2, 4, 8), 0),
]


def saturating(values):
    """More in a batch pays less and less, a third instance gains nothing, waiting costs."""
    most, instances, wait = values
    return min(instances, 2 + 0.05 * (4 - instances)) * most / (4 + 0.5 * most) - 0.02 * wait


def peaked(values):
    """Too large batches and too many instances harm."""
    most, instances, wait = values
    return 100 - abs(most - 12) - 5 * abs(instances - 3) - abs(wait - 2)


def together(values):
    """A ridge: more in a batch pays only with more waiting, and either alone harms."""
    most, instances, wait = (one.values.index(v) for one, v in zip(SPACE, values, strict=True))
    return 100 + 3 * min(most, 6) - 8 * abs(most - 2 * wait) - 10 * abs(instances - 1)


@pytest.mark.parametrize("surface", [saturating, peaked, together])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_search_finds_nearly_the_best_of_the_grid_in_a_quarter_of_the_runs(surface, seed):
    grid = list(itertools.product(*(one.values for one in SPACE)))
    tried = []

    def evaluate(values):
        tried.append(values)
        return surface(values)

    search(SPACE, evaluate, len(grid) // 4, seed=seed)
    assert tried[0] == (1, 1, 0)
    assert len(tried) == len(set(tried)) <= len(grid) // 4
    assert max(map(surface, tried)) >= 0.98 * max(map(surface, grid))


def test_a_search_ends_when_all_has_been_tried():
    tried = []
    search(SPACE[1:2], lambda values: tried.append(values) or 0.0, 50)
    assert sorted(tried) == [(1,), (2,), (3,), (4,)]


def point(throughput, p99_ms, failed=(), seconds=1.0):
    """Return a window with so many requests of that latency."""
    count = round(throughput * seconds)
    window = Window(5.0, 5.0 + seconds, array("d", [p99_ms / 1000] * count), Counter(failed))
    return Point({"kind": "closed", "clients": 1}, "all of it", window)


def test_what_fails_is_a_result_and_the_frontier_is_what_none_beats():
    def run(values):
        if values == (16, 1, 0):
            raise MemoryError("out of memory")
        return {1: point(10, 5), 2: point(20, 6), 3: point(15, 8), 4: point(30, 90)}[values[0]]

    tried = Trials(SPACE, read_goal("max throughput; p99 < 7ms"), run)
    for most in (16, 1, 2, 3, 4):
        tried.evaluate((most, 1, 0))
    assert [trial.values[0] for trial in tried.frontier()] == [1, 2, 4]
    assert tried.best.values[0] == 2
    rows = tried.to_dict(interrupted=False)
    assert rows["reached"]
    assert rows["trials"][0]["error"] == "MemoryError: out of memory"
    hard = Trials(SPACE, read_goal("max throughput; p99 < 4ms"), run)
    for most in (16, 1, 2):
        hard.evaluate((most, 1, 0))
    assert hard.how_close() == (
        "nothing reached the goal; the closest, main.max=1, main.instance_num=1, "
        "main.batching_timeout=0, misses p99 < 4ms (it has 5 ms)"
    )


@pytest.mark.parametrize(
    ("failed", "said"), [((), "measure longer, with --seconds"), (["input"] * 7, "7 failed")]
)
def test_what_answers_no_request_reaches_no_goal(failed, said):
    nothing = point(0, 1, failed)
    for goal in ("max throughput", "min p99"):
        tried = Trials(SPACE, read_goal(goal), lambda values: nothing)
        tried.evaluate((1, 1, 0))
        assert not tried.reached(tried.best)
        assert tried.how_close() == f"no configuration answered a request: {said}"
    nothing.window.errors.update(dict.fromkeys(failed, "no picture"))
    assert tried.how_close().endswith("7 failed, one of them: no picture" if failed else said)


def test_what_looks_best_is_measured_again_and_its_windows_count_together():
    lucky = {2: iter((40, 10, 10)), 3: iter((30, 31, 32)), 4: iter((20, 21, 22))}
    asked = []

    def run(values):
        asked.append(values[0])
        return point(next(lucky[values[0]]), 10 * values[0])

    tried = Trials([Dimension("main", "max", (2, 3, 4), 2)], read_goal("max throughput"), run)
    tried.search(12)
    assert sorted(asked[:3]) == [2, 3, 4]  # all there are
    assert sorted(asked[3:]) == [2, 3, 4]  # a quarter of twelve, each of the three that look best
    assert tried.best.values == (3,)
    assert [len(trial.runs) for trial in tried.done] == [2, 2, 2]
    assert tried.best.point["throughput_rps"] == 30.5
    first = next(trial for trial in tried.done if trial.values == (2,))
    assert first.point["ok"] == 50
    assert first.point["throughput_rps"] == 25.0


def test_what_fails_when_it_is_measured_again_is_not_the_best():
    seen = Counter()

    def run(values):
        seen[values] += 1
        if values == (4,) and seen[values] > 1:
            raise MemoryError("out of memory")
        return point(10 * values[0], 5)

    tried = Trials([Dimension("main", "max", (2, 3, 4), 2)], read_goal("max throughput"), run)
    tried.search(8)
    assert tried.best.values == (3,)
    failed = next(trial for trial in tried.done if trial.values == (4,))
    assert failed.error == "MemoryError: out of memory"
    assert failed.point is None


@pytest.mark.parametrize("surface", [saturating, peaked, together])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_of_the_runs_does_not_decide(surface, seed):
    """Each run is off by 1 % (one standard deviation), so that the best of 50 looks 2 % too good."""
    draw = random.Random(seed).gauss
    runs = []

    def run(values):
        runs.append(values)
        seconds = 1 / (surface(values) * draw(1, 0.01))
        return point(10 / seconds, 1, seconds=seconds)

    tried = Trials(SPACE, read_goal("max throughput"), run)
    grid = list(itertools.product(*(one.values for one in SPACE)))
    tried.search(len(grid) // 4, seed=seed)
    assert len(runs) == len(grid) // 4
    assert len(tried.done) < len(runs)
    assert surface(tried.best.values) >= 0.98 * max(map(surface, grid))


def test_windows_together_are_one_window():
    points = [point(10, 5, ["input"]), point(30, 50)]
    for one, cores in zip(points, (1.0, 2.0), strict=True):
        one.nodes = {"main": Counter({4: 2})}
        one.usage = {"cpu": {"cores": cores, "source": "this process", "usable": 2}, "gpu": []}
    found = Point.of_all(points).to_dict()
    assert (found["ok"], found["failed"], found["seconds"]) == (40, {"input": 1}, 2.0)
    assert found["throughput_rps"] == 20.0
    assert found["latency_ms"]["p50"] == 50.0  # of all forty, not between those of the two
    assert found["batch_size"]["main"]["histogram"] == {"4": 4}
    assert found["cpu"]["cores"] == 1.5


def test_the_file_is_read_as_it_was_meant(tmp_path):
    table = {"extends": 'a "b".toml', "max": 8, "infer": {"max": 2, "S::x": [1, "two"]}}
    file = tmp_path / "made.toml"
    (tmp_path / 'a "b".toml').write_text('[infer]\nbackend = "Identity"\n')
    file.write_text(write_toml({k: v for k, v in table.items() if k != "max"}, "one\ntwo"))
    text = file.read_text()
    assert text.startswith("# one\n# two\nextends = ")
    assert '"S::x" = [1, "two"]' in text


def test_values_of_any_kind_are_read_back():
    table = {
        "a": [{"b c": 1, "d": [True, -0.5]}, {}],
        "e": 'x\x7f\u0001"\\\n',
        "f": [math.inf, -math.inf],
        "g": {"h-1": {"i": 1e300}},
    }
    assert tomllib.loads(write_toml(table, "")) == table


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def of_notes(built):
    class TuneBuilt(headrace.Backend):
        def init(self, options, context):
            built.append(self)

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    return TuneBuilt


QUICK = ["--data", "uint8:4", "--seconds", "0.1", "--warm-up", "0", "--clients", "2"]


def test_a_plot_that_cannot_be_drawn_is_told_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    built = []
    headrace.register("TuneBuilt", of_notes(built))
    done = run("tune", "TuneBuilt", "--goal", "min p99", *QUICK, "--plot", "f.svg")
    assert done.exit_code == 2
    assert "a plot needs matplotlib" in done.stderr
    assert 'pip install "headrace-observe[plot]"' in done.stderr
    assert built == []


def test_the_command_writes_the_best_as_a_file_that_extends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "line.toml").write_text(
        '[a]\nbackend = "Identity"\nnext = "b"\n[b]\nbackend = "Identity"\n'
    )
    args = ["--range", "a.max=1,4", "--range", "b.instance_num=1..2", "--trials", "3", "--json"]
    goal = "max throughput; p99 < 100s"
    done = run("tune", "configs/line.toml", "--goal", goal, *QUICK, *args, "--plot", "f.svg")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert len(found["trials"]) == 3
    assert found["trials"][0]["values"] == {"a.max": 1, "b.instance_num": 1}
    (best,) = [trial for trial in found["trials"] if trial["best"]]
    made = headrace.explain("tuned.toml")["nodes"]
    assert made["a"]["keys"]["max"]["value"] == best["values"]["a.max"]
    assert made["b"]["keys"]["instance_num"]["value"] == best["values"]["b.instance_num"]
    assert made["a"]["next"] == ["b"]
    assert (tmp_path / "f.svg").exists()


@pytest.mark.first("measure, trace and tune: the best options as a file")
def test_the_command_begins_with_auto_and_writes_it_where_it_is_the_best(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headrace.register("TuneBuilt", of_notes([]))
    (tmp_path / "line.toml").write_text('backend = "TuneBuilt"\n')
    args = ["--goal", "max throughput", *QUICK, "--trials"]
    done = run("tune", "line.toml", *args, "1")
    assert done.exit_code == 0, done.output
    assert "trying main.instance_num=auto" in done.stderr
    assert "The best is in tuned.toml: main.instance_num=auto" in done.stdout
    key = headrace.explain("tuned.toml")["nodes"]["main"]["keys"]["instance_num"]
    assert key == {"value": "auto", "origin": "node"}
    done = run("tune", "line.toml", *args, "3", "--range", "main.instance_num=1,auto,2", "--json")
    found = json.loads(done.stdout)
    assert found["space"] == {"main.instance_num": ["auto", 1, 2]}
    assert {t["values"]["main.instance_num"] for t in found["trials"]} == {"auto", 1, 2}
    assert found["trials"][0]["values"]["main.instance_num"] == "auto"


def test_the_file_is_refused_where_its_paths_would_be_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aside").mkdir()
    (tmp_path / "own.py").write_text("import headrace\nheadrace.register('TuneOwn', len)\n")
    base = ["--goal", "max throughput", *QUICK, "--trials", "1"]
    for more in ("import=own.py", f"import={tmp_path / 'own.py'}"):
        args = ["TuneOwn", *base, "--set", more, "-o", "aside/tuned.toml"]
        done = run("tune", *args)
        made = tmp_path / "aside" / "tuned.toml"
        if more == "import=own.py":
            assert done.exit_code == 2
            assert (
                "the paths in --set and in an expression would start in its folder" in done.stderr
            )
            assert not made.exists()
        else:
            assert done.exit_code == 0, done.output
            assert headrace.explain(str(made))["nodes"]["main"]["expression"] == "TuneOwn"


def test_a_goal_out_of_reach_says_how_close_it_came_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    goal = "max throughput; throughput > 1000000000/s"
    done = run("tune", "Identity", "--goal", goal, *QUICK, "--range", "max=1..2", "--trials", "2")
    assert done.exit_code == 1
    assert "nothing reached the goal; the closest, main.max=" in done.stderr
    assert "misses throughput > 1000000000/s (it has" in done.stderr
    assert not (tmp_path / "tuned.toml").exists()


def test_a_configuration_that_cannot_be_built_is_a_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ["--range", "max=1,4", "--trials", "2", "--set", "min=2", "--set", "batching_timeout=1"]
    args += ["--seconds", "0.5"]  # on a busy machine, too, a request is answered in it
    done = run("tune", "Identity", "--goal", "min p99", *QUICK, *args, "--json")
    found = json.loads(done.stdout)
    assert "ConfigError" in found["trials"][0]["error"]
    assert found["trials"][1]["point"]["ok"] > 0


def test_values_above_what_the_built_model_takes_are_not_tried(tmp_path, monkeypatch):
    """Only `init` knows how many rows such a model takes: `explain` says no end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "import headrace\n"
        "class TakesFour(headrace.Backend):\n"
        "    def init(self, options, context):\n"
        "        self.max = 4\n"
        "    def forward(self, batch):\n"
        "        for request in batch:\n"
        "            request['result'] = request['data']\n"
        "headrace.register('TakesFour', TakesFour)\n"
    )
    (tmp_path / "line.toml").write_text(
        'import = ["model.py"]\nbackend = "S[Identity,TakesFour]"\n'
    )
    args = ["--range", "max=1,4,8,32", "--trials", "4", "--json"]
    done = run("tune", "line.toml", "--goal", "max throughput", *QUICK, *args)
    assert done.exit_code == 0, done.output
    tried = [trial["values"]["main.max"] for trial in json.loads(done.stdout)["trials"]]
    assert {*tried} == {1, 4}
    assert "main.max: 8, 32 not tried, what is built there takes at most 4" in done.stderr


def test_a_row_says_what_became_of_its_configuration():
    trial = {"best": True, "frontier": False, "reached": True, "runs": 2, "error": "E: no\nroom"}
    answered, failing, slow = (
        {"ok": ok, "failed": failed} for ok, failed in ((3, {}), (0, {"backend": 1}), (0, {}))
    )
    assert result({**trial, "point": answered}) == "best, reached, 2 runs"
    nothing = {**trial, "best": False, "reached": False, "runs": 1}
    assert result({**nothing, "point": failing}) == ""
    assert result({**nothing, "point": slow}) == "no request ended in time"
    assert result({**nothing, "point": None}) == "E: no\nroom"


def test_an_interrupt_leaves_the_best_until_then_and_130(tmp_path, monkeypatch):
    from headrace_observe.commands import tune as command

    monkeypatch.chdir(tmp_path)
    real, calls = command._measured, itertools.count()

    def interrupted(*args, **options):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(command, "_measured", interrupted)
    args = ["--range", "max=1,2", "--trials", "2", "--json"]
    done = run("tune", "Identity", "--goal", "max throughput", *QUICK, *args)
    assert done.exit_code == 130
    found = json.loads(done.stdout)
    assert found["interrupted"]
    assert "interrupted: this is what was measured until then\n" in done.stderr
    assert [trial["values"] for trial in found["trials"]] == [{"main.max": 1}]
    assert headrace.PipelineConfig.load("tuned.toml").to_dict()["max"] == 1
