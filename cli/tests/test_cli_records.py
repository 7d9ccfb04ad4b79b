"""Files of records through ``headrace run``: what is a record, what is written, and how a run goes on."""

from __future__ import annotations

import csv
import fcntl
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather
from pyarrow import parquet as pq
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app

LENGTH, NEGATIVE, DECODE = (
    "Call(builtins:len)",
    "Call(numpy:negative)",
    "Call(builtins:bytes.decode)",
)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(app, ["run", *arguments])


def rows(file):
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def printed(*arguments):
    """Return what ``--json`` prints for each input: its name, and its result or the text of its error."""
    lines = [json.loads(line) for line in run(*arguments, "--json", "-q").stdout.splitlines()]
    return {row["path"]: row.get("result", row.get("error", {}).get("message")) for row in lines}


TEXTS = [{"id": f"n{k}", "text": "x" * k} for k in range(5)]


def written(name):
    """Write the texts in the format of a suffix."""
    suffix, path = Path(name).suffix, Path(name)
    if suffix in {".jsonl", ".ndjson"}:
        path.write_text("\n".join(map(json.dumps, TEXTS)) + "\n\n", encoding="utf-8")
    elif suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            table = csv.DictWriter(file, ["id", "text"])
            table.writeheader()
            table.writerows(TEXTS)
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(TEXTS), path, row_group_size=2)
    elif suffix == ".feather":
        feather.write_feather(pa.Table.from_pylist(TEXTS), path)
    else:
        table = pa.Table.from_pylist(TEXTS)
        with pa.OSFile(name, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    return name


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".csv"])
def test_each_record_is_a_request(suffix):
    name = written(f"in{suffix}")
    always = ["--data", "text", *(["--records"] if suffix == ".csv" else [])]
    assert printed(LENGTH, name, *always) == {f"{name}:{k + 1}": k for k in range(5)}
    assert printed(LENGTH, name, *always, "--key", "id") == {f"n{k}": k for k in range(5)}


def test_the_other_columns_are_keys_of_the_request():
    def joined(batch):
        for request in batch:
            request["result"] = [request["data"], request["more"]]

    body = {"forward": lambda self, batch: joined(batch)}
    headrace.register("JoinsKeys", type("JoinsKeys", (headrace.Backend,), body), replace=True)
    Path("in.jsonl").write_text('{"data": "a", "more": [1, 2]}\n', encoding="utf-8")
    assert printed("JoinsKeys", "in.jsonl") == {"in.jsonl:1": ["a", [1, 2]]}


def test_a_column_that_names_each_record_is_there_or_the_record_fails():
    Path("in.jsonl").write_text('{"id": 7, "data": "a"}\n{"data": "bc"}\n', encoding="utf-8")
    assert run(LENGTH, "in.jsonl", "--key", "id", "--out", "out.jsonl").exit_code == 1
    assert rows("out.jsonl") == [{"id": "7", "result": 1}]
    (failed,) = rows("out.errors.jsonl")
    assert failed["id"] == "in.jsonl:2"
    assert failed["error"]["message"] == "there is no column 'id', which --key names"


def test_a_line_of_a_text_and_a_row_of_an_array_are_records_where_you_say_so():
    Path("in.txt").write_text("one\ntwo two\n\n", encoding="utf-8")
    assert printed(LENGTH, "in.txt", "--records") == {"in.txt:1": 3, "in.txt:2": 7, "in.txt:3": 0}
    assert printed(LENGTH, "in.txt") == {"in.txt": 13}
    np.save("in.npy", np.arange(6).reshape(2, 3))
    assert printed(NEGATIVE, "in.npy", "--records") == {
        "in.npy:1": [0, -1, -2],
        "in.npy:2": [-3, -4, -5],
    }
    assert printed(NEGATIVE, "in.npy") == {"in.npy": [[0, -1, -2], [-3, -4, -5]]}


def test_what_is_found_in_a_folder_is_one_input():
    Path("in").mkdir()
    Path("in/a.jsonl").write_text('{"data": "a"}\n{"data": "b"}\n', encoding="utf-8")
    assert list(printed(LENGTH, "in").values()) == [28]
    assert list(printed(LENGTH, "in/*.jsonl").values()) == [1, 1]


def test_a_record_that_is_none_fails_alone():
    lines = ['{"text": "abc"}', "{", "[1]", '{"other": 1}', '{"text": "ab"}']
    Path("in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = printed(LENGTH, "in.jsonl", "--data", "text")
    assert (found["in.jsonl:1"], found["in.jsonl:5"]) == (3, 2)
    assert found["in.jsonl:2"].startswith("it is no JSON")
    assert found["in.jsonl:3"] == "it is no object of JSON"
    assert found["in.jsonl:4"] == "there is no column 'text', which --data names"


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", [], "there is no record in it"),
        ("a,b\n1\n", ["--records"], None),
        ("a,a\n1,2\n", ["--records"], "does not give each column a name of its own"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused(content, arguments, message):
    name = "in.csv" if arguments else "in.jsonl"
    Path(name).write_text(content, encoding="utf-8")
    done = run(LENGTH, name, *arguments)
    assert done.exit_code == (1 if message is None else 2)
    assert (message or "it has 1 cells, the first line 2") in done.stderr


def test_a_parquet_that_is_none_is_refused():
    Path("in.parquet").write_bytes(b"no")
    done = run(LENGTH, "in.parquet")
    assert done.exit_code == 2
    assert "it is no Parquet" in done.stderr


def test_records_of_an_unknown_suffix_are_refused():
    Path("in.dat").write_bytes(b"a")
    done = run(LENGTH, "in.dat", "--records")
    assert done.exit_code == 2
    assert "nothing that is installed reads records of 'in.dat'" in done.stderr


# Files of results


VECTORS = np.array([[0.5, -1], [2, 3], [4, 5]], np.float32)


def vectors():
    np.save("in.npy", VECTORS)
    return [NEGATIVE, "in.npy", "--records"]


def test_numbers_are_written_as_numbers():
    for name in ("out.jsonl", "out.parquet", "out.npy"):
        assert run(*vectors(), "--out", name).exit_code == 0
    assert [row["result"] for row in rows("out.jsonl")] == (-VECTORS).tolist()
    table = pq.read_table("out.parquet").to_pydict()
    assert table == {"path": [f"in.npy:{k}" for k in (1, 2, 3)], "result": (-VECTORS).tolist()}
    read = np.load("out.npy")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, -VECTORS)
    assert not Path("out.parquet.rows").exists()
    assert not Path("out.errors.jsonl").exists()


def test_a_csv_refuses_what_has_no_cell_and_columns_give_it_some():
    done = run(*vectors(), "--out", "out.csv")
    assert done.exit_code == 2
    assert "no cell in a CSV: ndarray [2]. --columns" in done.stderr
    Path("out.csv").unlink()
    assert run(*vectors(), "--out", "out.csv", "--columns").exit_code == 0
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    assert table[0] == ["path", "result_0", "result_1"]
    assert [list(map(float, row[1:])) for row in table[1:]] == (-VECTORS).tolist()


def test_a_dict_has_a_column_for_each_of_its_values():
    Path("in.jsonl").write_text(
        '{"data": "{\\"a\\": 1, \\"b\\": {\\"c\\": [true, null]}}"}\n', encoding="utf-8"
    )
    assert run("Call(json:loads)", "in.jsonl", "--out", "out.csv", "--columns").exit_code == 0
    assert Path("out.csv").read_text(encoding="utf-8") == "path,a,b_c_0,b_c_1\nin.jsonl:1,1,True,\n"


def test_a_failed_row_of_an_array_is_nan_and_one_of_whole_numbers_is_refused():
    lines = ['{"data": [1.5]}', "no", '{"data": [2.5]}']
    Path("in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert run(NEGATIVE, "in.jsonl", "--out", "out.npy").exit_code == 1
    np.testing.assert_array_equal(np.load("out.npy"), [[-1.5], [np.nan], [-2.5]])
    assert [row["path"] for row in rows("out.npy.errors.jsonl")] == ["in.jsonl:2"]
    Path("in.jsonl").write_text('{"data": [1]}\nno\n', encoding="utf-8")
    done = run(NEGATIVE, "in.jsonl", "--out", "whole.npy")
    assert done.exit_code == 2
    assert "no number stands for it" in done.stderr


# Runs that go on


def test_an_array_goes_on_at_its_last_whole_row():
    assert run(*vectors(), "--out", "out.npy").exit_code == 0
    whole = Path("out.npy").read_bytes()
    for torn in (len(whole) - 1, len(whole) - 8, len(whole) - 13, len(whole)):
        Path("out.npy").write_bytes(whole[:torn])
        assert run(*vectors(), "--out", "out.npy", "--resume").exit_code == 0
        assert Path("out.npy").read_bytes() == whole


def test_what_has_failed_is_run_again_where_you_say_so():
    for name, content in (("a", b"fine"), ("b", b"\xff")):
        Path(name).write_bytes(content)
    assert run(DECODE, "a", "b", "--out", "out.jsonl").exit_code == 1
    Path("b").write_bytes(b"mended")
    assert run(DECODE, "a", "b", "--out", "out.jsonl", "--resume").exit_code == 1
    assert [row["path"] for row in rows("out.jsonl")] == ["a"]
    done = run(DECODE, "a", "b", "--out", "out.jsonl", "--resume", "--failed")
    assert done.exit_code == 0
    assert [row["result"] for row in rows("out.jsonl")] == ["fine", "mended"]
    assert not Path("out.errors.jsonl").exists()


@pytest.mark.parametrize("change", ["configuration", "input", "file"])
def test_results_of_something_else_are_not_mixed(change):
    Path("in.jsonl").write_text('{"data": "a"}\n', encoding="utf-8")
    Path("code.py").write_text("def f(text):\n    return text * 2\n", encoding="utf-8")
    config = Path("x.toml")
    config.write_text(
        'import = ["code.py"]\nbackend = "Call(builtins:str.upper)"\n', encoding="utf-8"
    )
    assert run("x.toml", "in.jsonl", "--out", "out.jsonl").exit_code == 0
    same = run("x.toml", "in.jsonl", "--out", "out.jsonl", "--resume", "--set", "instance_num=2")
    assert same.exit_code == 0
    if change == "configuration":
        text = config.read_text(encoding="utf-8").replace("upper", "lower")
        config.write_text(text, encoding="utf-8")
    elif change == "input":
        Path("in.jsonl").write_text('{"data": "b"}\n{"data": "c"}\n', encoding="utf-8")
    else:
        Path("code.py").write_text("def f(text):\n    return text * 3\n", encoding="utf-8")
    done = run("x.toml", "in.jsonl", "--out", "out.jsonl", "--resume")
    assert done.exit_code == 2
    assert f"made with another {change}" in done.stderr
    assert rows("out.jsonl") == [{"path": "in.jsonl:1", "result": "A"}]
    assert run("x.toml", "in.jsonl", "--out", "out.jsonl", "--resume-anyway").exit_code == 0


def test_a_second_run_on_the_same_file_is_refused():
    Path("a").write_bytes(b"a")
    with Path("out.jsonl.run").open("w", encoding="utf-8") as file:
        file.write('{"process": 4711}\n')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run(LENGTH, "a", "--out", "out.jsonl")
    assert done.exit_code == 2
    assert "process 4711 writes it" in done.stderr
    assert run(LENGTH, "a", "--out", "out.jsonl").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns"], "--columns is about a file of results"),
        (["--failed"], "--failed is about a file of results"),
        (["--resume-anyway"], "--resume is about a file of results"),
        (["--out", "out.jsonl", "--failed"], "--failed runs again what has failed before"),
        (["--out", "out.npy", "--failed", "--resume"], "an array has one row for each input"),
    ],
)
def test_options_that_need_another_one_are_refused(arguments, message):
    Path("a").write_bytes(b"a")
    done = run(LENGTH, "a", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
