"""``headrace certify``: rows alone, beside others and beside other instances, and a reference."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
import threading
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from pages import Page
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app


class Answers(headrace.Backend):
    """Gives for each request what a function of its data, its place and the batch gives."""

    max = None
    answer = staticmethod(lambda number, place, batch: number)

    def init(self, options, ctx):
        self.ctx = ctx

    def forward(self, batch):
        numbers = [int(request["data"]) for request in batch]
        for place, request in enumerate(batch):
            request["result"] = self.answer(numbers[place], place, numbers)


class Other(headrace.Backend):
    """Writes another output than ``result``."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]
            request["other"] = request.pop("result")


@pytest.fixture
def certify(tmp_path, monkeypatch):
    """Certify a backend that answers by a function; give the exit status, the JSON, and the output ``result``."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        Path(f"{number}.txt").write_text(str(number))

    def run(answer, *arguments, config="CertifyAnswers", rows=("0.txt", "1.txt", "2.txt")):
        backend = type("CertifyAnswers", (Answers,), {"answer": staticmethod(answer)})
        headrace.register("CertifyAnswers", backend, replace=True)
        given = [config, *rows, "--json", "--repeat", "20", *arguments]
        done = CliRunner().invoke(app, ["certify", *given])
        sys.stderr.write(done.stderr)
        document = json.loads(done.stdout) if done.stdout else {}
        return done.exit_code, document, document.get("outputs", {}).get("result")

    return run


def test_a_row_is_tried_at_each_place_of_each_size_and_on_each_instance(certify):
    lock, tried, alone = threading.Lock(), set(), count()

    def answer(number, place, batch):
        with lock:
            tried.add((number, place, len(batch)))
            if batch == [0]:
                next(alone)
        return {"text": str(number), "boxes": [np.float32(number), float("nan")]}

    status, document, result = certify(answer, "--set", "max=4", "--set", "instance_num=2")
    assert (status, document["agrees"], result["verdict"]) == (0, True, "equal")
    assert (document["compared"], document["sizes"]) == ("batches", [1, 2, 3, 4])
    assert document["instances"] == 2
    sizes = range(1, 5)
    assert tried == {(n, place, size) for size in sizes for place in range(size) for n in range(3)}
    assert next(alone) >= 20


@pytest.mark.parametrize("line", [False, True])
def test_each_instance_that_auto_gives_is_tried(certify, line, monkeypatch):
    carries = classmethod(lambda cls, options, device, threads: threads)
    monkeypatch.setattr(Answers, "auto_instances", carries)
    monkeypatch.setattr(Answers, "wide", True)
    Path("line.toml").write_text(
        '[a]\nbackend = "CertifyAnswers"\nnext = "b"\n[b]\nbackend = "Identity"\n'
    )
    where = ["--set", "a.instance_num=auto"] if line else ["--set", "instance_num=auto"]
    config = "line.toml" if line else "CertifyAnswers"
    status, document, _ = certify(
        lambda number, place, batch: number, *where, "--set", "global.threads=6", config=config
    )
    assert (status, document["agrees"]) == (0, True)
    assert document["instances"] == (4 if line else 7)


def test_of_many_rows_eight_are_tried_at_each_place_and_each_in_each_size(certify):
    lock, batches = threading.Lock(), []

    def answer(number, place, batch):
        with lock:
            batches.append((place, tuple(batch)))
        return number + (len(batch) == 3)

    names = [f"row{number}.txt" for number in range(20)]
    for number, name in enumerate(names):
        Path(name).write_text(str(number))
    arguments = ("--set", "max=12", "--set", "instance_num=2", "--repeat", "0")
    _, document, result = certify(answer, *arguments, rows=names)
    assert document["sizes"] == [*range(1, 13)]
    assert (result["sizes"], result["sizes_beside_instances"]) == ([3], [3])
    ran = [batch for place, batch in batches if place == 0]
    for size in range(1, 13):
        some = [batch for batch in ran if len(batch) == size]
        assert {number for batch in some for number in batch} == {*range(20)}
        assert all(len({batch[place] for batch in some}) >= 8 for place in range(size))
    wanted = {1: 20 + 20, 2: 10, 3: 2 * 8}  # alone first; what disagrees runs again
    assert all(sum(len(b) == size for b in ran) == wanted.get(size, 8) for size in range(1, 13))


def test_data_that_a_backend_leaves_behind_is_no_output(certify):
    class Leaves(Answers):
        def forward(self, batch):
            for place, request in enumerate(batch):
                request["result"] = int(request["data"])
                request["data"] = place

    headrace.register("CertifyLeaves", Leaves, replace=True)
    status, document, _ = certify(Answers.answer, "--set", "max=3", config="CertifyLeaves")
    assert (status, [*document["outputs"]]) == (0, ["result"])


@pytest.mark.parametrize(
    ("answer", "sizes"),
    [
        (lambda number, place, batch: number + (len(batch) > 2), [3, 4]),
        (lambda number, place, batch: number + place // 3, [4]),
        (lambda number, place, batch: max(batch), [2, 3, 4]),
        (lambda number, place, batch: {"text": "ab"[len(batch) == 2]}, [2]),
        (lambda number, place, batch: np.zeros(2 + (len(batch) == 4)), [4]),
        (lambda number, place, batch: np.zeros(2, "f4" if len(batch) < 3 else "f8"), [3, 4]),
        (lambda number, place, batch: np.float32("nan" if len(batch) == 3 else 1), [3]),
    ],
)
def test_an_output_that_depends_on_its_batch_is_named_with_the_sizes(certify, answer, sizes):
    status, document, result = certify(answer, "--set", "max=4", "--ulp", "8")
    assert (status, document["agrees"]) == (1, False)
    assert (result["verdict"], result["sizes"]) == ("dependent", sizes)
    assert result["example"]["size"] in sizes


def test_only_sizes_that_the_node_allows_are_tried(certify):
    seen = set()

    def answer(number, place, batch):
        seen.add(len(batch))
        return number

    assert certify(answer, "--set", "batch_sizes=[2,5]")[1]["sizes"] == [2, 5]
    assert seen == {2, 5}
    assert certify(answer)[1]["sizes"] == [1]  # the bound where neither node nor backend has one


def test_an_instance_that_gives_other_results_is_found(certify):
    class Second(Answers):
        def forward(self, batch):
            super().forward(batch)
            for request in batch:
                request["result"] += self.ctx.instance_index

    headrace.register("CertifySecond", Second, replace=True)
    arguments = ("--set", "max=2", "--set", "instance_num=2")
    status, _, result = certify(Answers.answer, *arguments, config="CertifySecond")
    assert status == 1
    assert (result["sizes"], result["sizes_beside_instances"]) == ([], [1, 2])


def test_floats_may_be_a_few_units_of_the_last_place_apart(certify):
    def answer(number, place, batch):
        value = np.full(4, 1 + number, np.float32)
        for _ in range(place):
            value[1] = np.nextafter(value[1], np.float32(np.inf))
        return value

    status, _, result = certify(answer, "--set", "max=3")
    assert (status, result["verdict"], result["sizes"]) == (1, "dependent", [2, 3])
    assert result["relative"] == pytest.approx(2 * np.finfo(np.float32).eps)
    status, _, result = certify(answer, "--set", "max=3", "--ulp", "1")
    assert (status, result["verdict"], result["sizes"]) == (1, "dependent", [3])
    status, _, result = certify(answer, "--set", "max=3", "--ulp", "2")
    assert (status, result["verdict"], result["ulps"]) == (0, "within", 2.0)


def test_a_result_drawn_at_random_is_not_called_dependent(certify):
    numbers = count()
    status, _, result = certify(lambda *_: next(numbers), "--set", "max=2")
    assert (status, result["verdict"], result["repeats_apart"]) == (1, "random", 20)


def test_a_result_that_the_next_run_overwrites_is_found(certify):
    buffer = np.zeros(1)

    def answer(number, place, batch):
        buffer[0] = number
        return buffer

    assert certify(answer)[0] == 1


def test_a_row_that_fails_only_beside_others_is_found(certify):
    def answer(number, place, batch):
        if len(batch) == 3:
            raise ValueError("three")
        return number

    status, document, result = certify(answer, "--set", "max=3")
    assert (status, result["verdict"], result["sizes"]) == (1, "dependent", [3])
    assert document["outputs"]["error"]["sizes"] == [3]


def test_a_row_that_fails_alone_is_named(certify, capsys):
    assert certify(lambda number, *_: 1 // (2 - number))[:2] == (1, {})
    assert "2.txt fails alone: CertifyAnswers raised ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("factor", "arguments", "status"),
    [
        ("1.0", ("--rtol", "0", "--atol", "0"), 0),
        ("1.0005", (), 0),
        ("1.0005", ("--rtol", "1e-4"), 1),
        ("1.0005", ("--rtol", "0", "--atol", "0.01"), 0),
        ("1.5", (), 1),
    ],
)
def test_rows_alone_are_compared_with_a_reference(certify, factor, arguments, status):
    Path("right.py").write_text(f"def right(data):\n    return (1 + int(data)) * {factor}\n")
    Path("right.toml").write_text('import = ["right.py"]\nbackend = "Call(right:right)"\n')
    given = ("--reference", "right.toml", *arguments)
    found, document, result = certify(lambda number, *_: np.float32(1 + number), *given)
    assert (found, document["agrees"]) == (status, not status)
    assert result["verdict"] == "equal"
    assert result["reference"]["agrees"] == (not status)
    assert result["reference"]["rows"] == ([0, 1, 2] if status else [])
    assert result["reference"]["max_abs"] == pytest.approx(3 * (float(factor) - 1))
    assert result["reference"]["max_rel"] == pytest.approx(1 - 1 / float(factor))
    program = Path("right.py").read_bytes()
    assert [*document["reference"]["files"].values()] == [hashlib.sha256(program).hexdigest()]


def test_a_row_for_which_the_reference_has_no_result_differs(certify):
    class Some(Answers):
        def forward(self, batch):
            for request in batch:
                request["result" if int(request["data"]) else "other"] = int(request["data"])

    headrace.register("CertifySome", Some, replace=True)
    status, _, result = certify(lambda number, *_: number, "--reference", "CertifySome")
    assert (status, result["reference"]["rows"]) == (1, [0])


def test_several_nodes_are_sent_lists(certify):
    Path("two.toml").write_text(
        '[first]\nbackend = "Identity"\nnext = "second"\n[second]\nbackend = "CertifyAnswers"\nmax = 3\n'
    )
    status, document, result = certify(lambda number, *_: number, config="two.toml")
    assert (status, document["compared"], document["sizes"]) == (0, "lists", [1, 2, 3])
    assert result["verdict"] == "equal"
    text = Path("two.toml").read_text(encoding="utf-8").replace("next", "max = 3\nnext")
    Path("two.toml").write_text(text, encoding="utf-8")
    status, _, result = certify(lambda number, _, batch: len(batch), config="two.toml")
    assert (status, result["verdict"]) == (1, "dependent")


def test_each_byte_of_a_model_and_of_its_weights_counts(certify):
    onnx = pytest.importorskip("onnx")
    numbers = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    values = [onnx.helper.make_tensor_value_info(name, 1, [4]) for name in "xy"]
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([add], "add", values[:1], values[1:], [numbers])
    settings = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(onnx.helper.make_model(graph), "add.onnx", **settings)

    class Model(Answers):
        class Options(headrace.Options):
            model: headrace.FilePath

    headrace.register("CertifyModel", Model, replace=True)

    def digests(*arguments):
        given = ("--set", "model=add.onnx", *arguments)
        status, document, _ = certify(Answers.answer, *given, config="CertifyModel")
        assert (status, document["external_data"]) == (0, True)
        files = {Path(path).name: found for path, found in document["files"].items()}
        content = {name: Path(name).read_bytes() for name in ("add.onnx", "w.bin")}
        assert files == {name: hashlib.sha256(one).hexdigest() for name, one in content.items()}
        return document["config_sha256"], files

    before = digests()
    weights = bytearray(Path("w.bin").read_bytes())
    weights[-1] ^= 1
    Path("w.bin").write_bytes(weights)
    after = digests()
    assert after[0] == before[0]
    assert {name for name in after[1] if after[1][name] != before[1][name]} == {"w.bin"}
    model = Path("add.onnx").read_bytes()
    Path("add.onnx").write_bytes(model.replace(b"add", b"adz", 1))
    assert digests()[1]["add.onnx"] != before[1]["add.onnx"]
    assert digests("--set", "max=2")[0] != before[0]


def test_the_file_of_output_is_the_json(certify):
    status, document, _ = certify(lambda number, *_: number, "--output", "found.json")
    assert (status, json.loads(Path("found.json").read_text(encoding="utf-8"))) == (0, document)
    assert document["rows"] == ["0.txt", "1.txt", "2.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("Identity", "0.txt"),
        ("Identity", "missing.txt", "0.txt"),
        ("Identity",),
        ("Identity", "0.txt", "1.txt", "--ulp", "-1"),
        ("Identity", "0.txt", "1.txt", "--output", "0.txt"),
        ("Identity", "0.txt", "1.txt", "--reference", "CertifyOther"),
        ("NoSuchBackend", "0.txt", "1.txt"),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(certify, arguments):
    headrace.register("CertifyOther", Other, replace=True)
    assert CliRunner().invoke(app, ["certify", *arguments]).exit_code == 2


def test_the_table_names_what_is_wrong(certify):
    certify(lambda number, place, batch: number + (len(batch) in {2, 3, 4, 6}))
    done = CliRunner().invoke(app, shlex.split("certify CertifyAnswers 0.txt 1.txt --set max=6"))
    assert done.exit_code == 1
    assert re.search(r"result +dependent +inf +2-4,6 +- +0 +-", done.stdout)
    assert re.search(r"result of \d.txt, at place \d of [2346], is the furthest apart", done.stdout)


def test_the_table_names_the_rows_that_the_reference_has_otherwise(certify):
    certify(lambda number, *_: 1.5)
    Path("right.toml").write_text('backend = "Call(builtins:int)"\n')
    told = ("certify", "CertifyAnswers", "0.txt", "1.txt", "--reference", "right.toml")
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 1
    assert "result of 0.txt, 1.txt differs from the reference by up to 1.5." in done.stdout
    done = CliRunner().invoke(app, [*told[:-1], "Identity"])
    assert "result of 0.txt, 1.txt differs from the reference." in done.stdout


def test_the_readme_shows_the_examples_of_the_help():
    shown = Page("plugins/observe/README.md", "Certify").commands
    told = CliRunner().invoke(app, ["certify", "--help"], env={"COLUMNS": "200"}).stdout
    assert len(shown) == 2
    assert [line for line in shown if line not in told] == []  # test_observe_examples runs those
