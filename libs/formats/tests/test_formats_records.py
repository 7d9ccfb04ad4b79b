"""Files of records, beside what the libraries of their formats read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from headrace_formats import FormatError
from headrace_formats.records import (
    arrow_rows,
    csv_rows,
    json_lines,
    numpy_rows,
    parquet_rows,
    text_lines,
)

TABLE = pa.table(
    {
        "id": [1, 2, None],
        "vector": pa.array([[0.5, 1], [2, 3], [4, 5]], pa.list_(pa.float32())),
        "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        "words": [["a"], [], None],
    }
)


def in_parquet(path):
    pq.write_table(TABLE, path, row_group_size=2)
    return parquet_rows(path)


def in_file(path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as out:
        out.write_table(TABLE)
    return arrow_rows(path)


def in_stream(path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as out:
        out.write_table(TABLE, max_chunksize=1)
    return arrow_rows(path)


@pytest.mark.parametrize("write", [in_parquet, in_file, in_stream])
def test_rows_of_arrow_are_those_of_its_library(tmp_path, write):
    rows = list(write(tmp_path / "x"))
    assert [row["vector"].dtype for row in rows] == [np.float32] * 3
    assert [row["fixed"].dtype for row in rows] == [np.int64] * 3
    plain = [{**row, **{key: row[key].tolist() for key in ("vector", "fixed")}} for row in rows]
    assert plain == TABLE.to_pylist()


def test_lines_of_json(tmp_path):
    (tmp_path / "x").write_bytes('\ufeff{"a": "é"}\r\n\n[1]\n{"a": NaN}\n{"a": 1}'.encode())
    first, listed, no_number, last = json_lines(tmp_path / "x")
    assert (first, last) == ({"a": "é"}, {"a": 1})
    assert [type(listed), type(no_number)] == [FormatError] * 2


def test_rows_of_csv_are_texts(tmp_path):
    (tmp_path / "x").write_bytes(b'a,b\r\n1,"x\ny"\r\n\r\n2\r\n3,""\r\n')
    first, short, last = csv_rows(tmp_path / "x")
    assert (first, last) == ({"a": "1", "b": "x\ny"}, {"a": "3", "b": ""})
    assert str(short) == "it has 1 cells, the first line 2"
    (tmp_path / "x").write_bytes(b"a\n\xff\n")
    with pytest.raises(FormatError, match="no CSV in UTF-8"):
        list(csv_rows(tmp_path / "x"))


def test_lines_of_a_text(tmp_path):
    (tmp_path / "x").write_bytes(b"one\r\n\n\xff\nlast")
    first, empty, wrong, last = text_lines(tmp_path / "x")
    assert [first, empty, last] == [{"data": "one"}, {"data": ""}, {"data": "last"}]
    assert isinstance(wrong, FormatError)


def test_rows_of_an_array_may_be_changed(tmp_path):
    array = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    np.save(tmp_path / "x.npy", array)
    rows = [row["data"] for row in numpy_rows(tmp_path / "x.npy")]
    rows[0][:] = 7
    np.testing.assert_array_equal(rows[1:], array[1:])
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), array)


@pytest.mark.parametrize("array", [np.array(3), np.array(["a", None], object)])
def test_an_array_without_rows_of_numbers_is_refused(tmp_path, array):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(FormatError):
        list(numpy_rows(tmp_path / "x.npy"))


@pytest.mark.parametrize("read", [parquet_rows, arrow_rows, numpy_rows])
def test_another_file_is_refused(tmp_path, read):
    (tmp_path / "x").write_bytes(b"something else")
    with pytest.raises(FormatError):
        list(read(tmp_path / "x"))
