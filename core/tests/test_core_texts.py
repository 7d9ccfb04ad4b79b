"""Text files: what is a line, what is no part of the text, and which line an error names."""

from __future__ import annotations

import codecs

import pytest
from loading import problems

import headrace
from headrace.plugins import read_lines, read_text

NO_ENDS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029\r"
"""What `str.splitlines` takes for the end of a line, beside the two that count."""


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "lines",
    [
        ["cat", "dog"],
        ["", "a", "", "", "b"],
        ["a", ""],
        [""],
        [" ", "\t", "x "],
        ["caf\u00e9", "\U0001f40e"],
    ],
)
def test_every_line_keeps_its_number_and_its_characters(tmp_path, lines, end, mark):
    path = tmp_path / "lines.txt"
    whole = mark + "".join(line + end for line in lines).encode()
    path.write_bytes(whole)
    assert read_lines(path) == lines
    assert read_text(path) == whole.removeprefix(mark).decode()
    if lines[-1]:  # the end of the last line may be missing
        path.write_bytes(whole.removesuffix(end.encode()))
        assert read_lines(str(path)) == lines


@pytest.mark.parametrize("character", NO_ENDS, ids=ascii)
def test_no_other_character_ends_a_line(tmp_path, character):
    path = tmp_path / "lines.txt"
    line = f"{character}one{character}two{character}"
    path.write_bytes(f"{line}x\n\n{line}x\r\n{line}".encode())
    assert read_lines(path) == [f"{line}x", "", f"{line}x", line]


def test_a_file_without_text_has_no_lines(tmp_path):
    for nothing in (b"", codecs.BOM_UTF8):
        (tmp_path / "lines.txt").write_bytes(nothing)
        assert read_lines(tmp_path / "lines.txt") == []


def test_only_the_first_character_is_a_mark(tmp_path):
    (tmp_path / "lines.txt").write_bytes(codecs.BOM_UTF8 * 2 + b"a\n" + codecs.BOM_UTF8 + b"b")
    assert read_lines(tmp_path / "lines.txt") == ["\ufeffa", "\ufeffb"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("cat\ncaf\u00e9\n".encode("latin-1"), 2),
        (codecs.BOM_UTF8 + b"a\n\xff", 2),
        (b"a\r\n\r\n\xc3", 3),
        ("cat\n".encode("utf-16"), 1),
        (b"a\x85\rb\n", 1),
        (b"\n\xed\xa0\x80", 2),
    ],
)
@pytest.mark.parametrize("read", [read_text, read_lines])
def test_what_is_not_utf_8_is_an_error_with_file_and_line(tmp_path, content, line, read):
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="UTF-8") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_configuration_that_is_not_utf_8_is_told_with_its_line(tmp_path):
    path = tmp_path / "c.toml"
    path.write_bytes("# Modell\nbackend = 'Identity'\n# gr\u00f6\u00dfer\n".encode("latin-1"))
    assert f"{path}:3: " in problems(path)[0].message


def test_a_remark_with_a_line_separator_moves_no_place(tmp_path):
    path = tmp_path / "c.toml"
    text = '# one\u2028max = 0\nbackend = "Identity"\nmax = 0\n'
    for mark, end in ((b"", "\n"), (codecs.BOM_UTF8, "\r\n")):
        path.write_bytes(mark + text.replace("\n", end).encode())
        (found,) = problems(path)
        assert (found.line, found.column) == (3, 7)


def test_a_configuration_with_a_mark_and_those_it_extends_are_read(tmp_path):
    for name, text in (("base.toml", 'backend = "Identity"'), ("c.toml", 'extends = "base.toml"')):
        (tmp_path / name).write_bytes(codecs.BOM_UTF8 + text.encode())
    assert headrace.PipelineConfig.load(tmp_path / "c.toml").nodes


def test_a_path_of_windows_in_a_text_of_toml_is_told_how_it_is_written(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('backend = "Show(C:\\models\\net.onnx)"\n')
    (found,) = problems(path)
    assert (found.code, found.line) == ("toml", 1)
    assert "single quotes" in found.hint
