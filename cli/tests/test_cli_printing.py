"""How results are written."""

from __future__ import annotations

import datetime as dt
import enum
import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel

from headrace_cli.printing import as_json, as_line, escaped, shown


class Array:
    """Quacks like an array."""

    def __init__(self, values, shape, dtype="float32"):
        self.values, self.shape, self.dtype = values, shape, dtype

    def tolist(self):
        return self.values


class Key:
    """No text, but has one."""

    def __str__(self):
        return "key"


class Label(enum.Enum):
    CAT = "cat"


class Model(BaseModel):
    score: float = 0.5


class Holder(BaseModel):
    array: Any


@dataclass
class Found:
    label: Label
    box: object = (1, 2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        (b"abc", "bytes [3]"),
        (memoryview(b"ab"), "bytes [2]"),
        (Array([], (3, 224, 224)), "float32 [3, 224, 224]"),
        (Array([], (11,), "torch.int64"), "int64 [11]"),
        (Array([*range(10)], (10,), "torch.int64"), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
        (Array(7, ()), "7"),
        ([1, "ä", Array([], (11,)), {"k": Array(7, ())}], '[1, "ä", "float32 [11]", {"k": 7}]'),
        (Key(), '"key"'),
        (Label.CAT, "cat"),
        (
            [Found(Label.CAT), Model(), Found],
            f'[{{"label": "cat", "box": [1, 2]}}, {{"score": 0.5}}, "{Found}"]',
        ),
    ],
)
def test_shown(value, text):
    assert shown(value) == text


def test_one_request_is_one_line():
    line = as_line("a\tb", {"x": "1\n2\r3", "y": "\x1b[31m", "z": "a\u2028b"})
    assert line == "a\\tb\t1\\n2\\r3\t\\x1b[31m\ta\\u2028b"
    assert as_line("p", {}) == "p\t"
    assert as_line("p", MappingProxyType({"x": 1, "y": "z"})) == "p\t1\tz"
    assert as_line("p", Found(Label.CAT)) == "p\tcat\t[1, 2]"
    assert escaped("ünchanged \\ text") == "ünchanged \\ text"


def test_names_and_scores_of_classes_are_fields_of_the_line():
    best = [{"label": "a b", "score": 0.123456789}, {"label": "c", "score": 2}]
    assert as_line("p", best) == "p\ta b\t0.12346\tc\t2"
    assert as_line("p", [best[0], 3]).startswith('p\t[{"label": "a b", "score": 0.12')
    assert as_line("p", []) == "p\t[]"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": Array([[1.5, 2]], (1, 2))}, {"a": [[1.5, 2]]}),
        (b"z", "eg=="),
        ((1, [2]), [1, [2]]),
        ([MappingProxyType({"a": MappingProxyType({1: float("nan")})})], [{"a": {"1": None}}]),
        ({1}, [1]),
        (Key(), "key"),
        (Label.CAT, "cat"),
        (Found(Label.CAT, Array([1], (1,))), {"label": "cat", "box": [1]}),
        ([Model(), float("nan")], [{"score": 0.5}, None]),
        ({Key(): 1}, {"key": 1}),
        ([float("nan"), float("inf"), 1.0], [None, None, 1.0]),
        (Array([float("nan")], (1,)), [None]),
        (dt.timedelta(days=1, seconds=5), "P1DT5S"),
        ([dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc)], ["2024-01-02T00:00:00Z"]),
        (deque([1, {Label.CAT}]), [1, ["cat"]]),
        ([{"a": 1}.keys(), {"a": Label.CAT}.values()], [["a"], ["cat"]]),
        ({Key(): {True: 1, dt.date(2024, 1, 2): 2}}, {"key": {"true": 1, "2024-01-02": 2}}),
        (Holder(array=Array([1], (1,))), {"array": [1]}),
        (Holder(array=dt.time(1, 2)), {"array": "01:02:00"}),
        (Holder(array=b"\xff"), {"array": "/w=="}),
        ({1: "a", "1": "b"}, {"1": "b"}),
        ({"a": {None: {1}, "null": [2**70, "\ud800"]}}, {"a": {"null": [2**70, "\ud800"]}}),
    ],
)
def test_json_holds_everything(value, plain):
    text = as_json(value)
    assert "\n" not in text
    assert json.loads(text) == plain
    assert text == json.dumps(plain, ensure_ascii=False).encode(errors="backslashreplace").decode()


def test_json_for_an_output_that_is_not_utf_8():
    assert as_json("ä😀", ascii_only=True).isascii()


def test_lines_above_a_progress_bar_are_written_as_they_are(capsys):
    from headrace_cli.progress import progress_bar

    with progress_bar(2) as (advance, print_error):
        advance()
        print_error("[red]" + "long " * 50 + "line")
        advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        "[red]" + "long " * 50 + "line\n" in err
    )  # older versions of rich cut what is blank at the end


def test_what_holds_itself_is_cut_off():
    inner = [1]
    inner.append(inner)
    value = {"a": inner, "twice": [inner, inner]}
    value["self"] = value
    cut = {"a": [1, "..."], "twice": [[1, "..."], [1, "..."]], "self": "..."}
    assert json.loads(as_json(value)) == cut
    assert json.loads(shown(value)) == cut
    found = Found(Label.CAT)
    found.box = found
    for text in (as_json(found), shown(found)):
        assert text.startswith('{"label": "cat", "box": {"label": "cat"')
        assert text.rstrip("}").endswith('"..."')


def test_what_is_nested_too_deep_is_cut_off():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert as_json(deep).strip("[]") == '"..."'
    assert shown(deep) == as_json(deep)


def test_the_command_line_shows_several_bars_at_a_time():
    pytest.importorskip("rich")
    from rich.console import Console

    from headrace_cli.progress import setup_bars

    out = io.StringIO()
    with setup_bars(Console(file=out, force_terminal=True, width=80)) as bar:
        with bar(3, "layers") as layers, bar(None, "tactics") as tactics:
            layers(2)
            tactics(5)
        with bar(4, "weights") as weights:
            weights(4)
    assert "layers" in out.getvalue()
    assert "2/3" in out.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="knows the size of a pipe of Linux")
def test_a_command_that_is_stopped_while_it_prints_loses_nothing():
    """Without a buffer, too; it is stopped while the pipe, which nobody reads, is full."""
    import fcntl
    import termios

    program = "from headrace_cli.console import print_data; print_data('x' * 300_000)"
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE) as process:
        held = 0
        while held < 60_000:
            got = fcntl.ioctl(process.stdout, termios.FIONREAD, struct.pack("i", 0))
            (held,) = struct.unpack("i", got)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == b"x" * 300_000 + b"\n"
