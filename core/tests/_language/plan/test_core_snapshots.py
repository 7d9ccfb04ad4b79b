"""The texts of all errors that known mistakes get, and the plans of ordinary configurations, as they were written.

``python core/tests/_language/plan/test_core_snapshots.py`` writes the files anew. What has changed in them is then seen in the diff.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # where this runs as a program
from loading import python
from refused_expressions import REFUSED

import headrace
from headrace.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "snapshots"


class Shown(headrace.Backend):
    """Has an option of each kind."""

    __module__ = "shown"
    max = 8
    reads = ("data",)

    class Options(headrace.Options):
        size: int = 1
        text: str = "a"
        many: tuple[str, ...] = ()
        share: float = 0.5
        wide: bool = False

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


S = {"backend": "Shown"}

MISTAKES = {
    **{f"the expression {text!r}": {"backend": text} for text in REFUSED},
    "no table": {},
    "only global": {"global": {}},
    "a key and no node": {"a": 1},
    "two shapes": {**S, "x": S},
    "a key that is no text": {"main": {**S, 3: 1}},
    "an unknown backend": {"backend": "Shwon"},
    "an unknown backend, nothing near": {"backend": "Qqqqqq"},
    "an unknown option": {"backend": "Shown(siez=2)"},
    "an unknown key": {**S, "instance_nun": 2},
    "an unknown scoped key": {**S, "Show::size": 2},
    "a scoped key that is a node's": {**S, "Shown::instance_num": 2},
    "an option that is no number": {"backend": "Shown(size=x)"},
    "an option out of a list": {**S, "many": [1, 2]},
    "an option that is no truth": {"backend": "Shown(wide=perhaps)"},
    "too many positional values": {"backend": "Shown(1)"},
    "a backend with no children": {"backend": "Shown[Identity]"},
    "a container without a child": {"backend": "S"},
    "one child too many": {"backend": "BackgroundThread[Shown,Identity]"},
    "a word without its option": {"backend": "Call"},
    "a function in brackets": {"backend": "Call[math:sqrt]"},
    "a function that is not there": {"backend": "Call(math:sqrtt)"},
    "an arrow": {"backend": "Identity -> Identity"},
    "max of 0": {**S, "max": 0},
    "max below min": {**S, "min": 3, "max": 2},
    "max above the backend's": {**S, "max": 9},
    "batch_sizes above max": {**S, "max": 4, "batch_sizes": [2, 8]},
    "batch_sizes of nothing": {**S, "batch_sizes": []},
    "batch_sizes of a number": {**S, "batch_sizes": 3},
    "batching_timeout of NaN": {**S, "batching_timeout": math.nan},
    "batching_timeout below 0": {**S, "batching_timeout": -1},
    "timeout_ms of 0": {**S, "timeout_ms": 0},
    "instance_num of 0": {**S, "instance_num": 0},
    "instance_num of a text": {**S, "instance_num": "two"},
    "queue_full of no rule": {**S, "queue_full": "drop"},
    "queue_size of 0": {**S, "queue_size": 0},
    "an unknown policy": {**S, "batch_policy": "greedyy"},
    "a dispatch policy for batches": {**S, "dispatch_policy": "greedy"},
    "threads in a node": {"n": {**S, "threads": 3}},
    "threads twice": {**S, "threads": 1, "global": {"threads": 2}},
    "backend in global": {"global": S},
    "next in global": {"global": {"next": "x"}, "n": S},
    "a table in a node": {"n": {**S, "inner": {"max": 2}}},
    "no backend": {"n": {"max": 2}},
    "a node of no name": {"1x": S, "y": S},
    "an unknown next": {"a": {**S, "next": "c"}, "b": S},
    "a next that is near": {"first": {**S, "next": "secnod"}, "second": S},
    "next to itself": {"a": {**S, "next": "a"}},
    "a circle of nexts": {"a": {**S, "next": "b"}, "b": {**S, "next": "a"}},
    "a circle of forwards": {"a": {"backend": "Forward[node.b]"}, "b": {"backend": "Forward[node.a]"}},
    "a map of no text": {"a": {**S, "next": "b"}, "b": {**S, "map": 3}},
    "a map that cannot be read": {"a": {**S, "next": "b"}, "b": {**S, "map": "a[x"}},
    "a map from a stranger": {"a": {**S, "next": "b"}, "b": {**S, "map": "c[result:data]"}},
    "a map of a key that nobody writes": {"a": {**S, "next": "b"}, "b": {**S, "map": "a[box:data]"}},
    "a join without a map": {"a": {**S, "next": "b,c"}, "b": {**S, "next": "d"}, "c": {**S, "next": "d"}, "d": S},
    "an or at a root": {"a": {**S, "or": "x"}},
    "each of no key": {"a": {**S, "each": ""}},
    "each_errors of no rule": {"a": {**S, "each": "data", "each_errors": "skip"}},
    "each_errors without each": {"a": {**S, "each_errors": "none"}},
    "a forward to nobody": {"a": S, "b": {"backend": "Forward[node.c]"}},
    "a forward without node": {"a": S, "b": {"backend": "Forward[a]"}},
    "an unset variable": {**S, "text": "${HEADRACE_TEST_UNSET}"},
    "a variable that is not closed": {**S, "text": "${HOME"},
    "an empty placeholder": {**S, "text": "${}"},
    "extends of a missing file": {**S, "extends": "not_there.toml"},
    "import of a missing file": {**S, "import": "not_there.py"},
    "import of a number": {**S, "import": 3},
    "a long text": {**S, "text": "x" * 300, "siez": 1},
    "many at once": {
        "global": {"instance_nuum": 1},
        "x": {"backend": "S[Shwon,Shown(size=x),Identity[Shown]]", "max": 0, "instnce_num": 2},
        "y": {"backend": "Shown", "mx": 1},
        "z": {"backend": "Shown(", "instanc_num": 1},
    },
}  # fmt: skip

PLANS = {
    "one backend": S,
    "a sequence": {"backend": "S[Shown(size=2),Identity]", "max": 4},
    "a thread of its own": {"backend": "BackgroundThread[Shown]"},
    "several instances": {**S, "instance_num": 3, "device": "cuda:0,cuda:1"},
    "sizes": {**S, "batch_sizes": [1, 4, 8], "pad": True},
    "global and scoped keys": {"global": {"max": 4, "Shown::size": 5}, "a": S, "b": {**S, "Shown::text": "b"}},
    "a chain": {"a": {**S, "next": "b"}, "b": {**S, "next": "c"}, "c": S},
    "a diamond": {
        "a": {**S, "next": "b,c"},
        "b": {**S, "next": "d"},
        "c": {**S, "next": "d"},
        "d": {**S, "map": "b[result:data],c[result:other]"},
    },
    "each": {"a": {**S, "next": "b"}, "b": {**S, "each": "data", "each_errors": "none"}},
    "an or": {"a": {**S, "next": "b"}, "b": {**S, "or": True}},
    "an alias": {"a": {**S, "next": "b"}, "b": {"backend": "Forward[node.a]"}},
    "a condition": {"backend": "S[(key=size)Shown,(or)Identity]"},
    "a function": {"backend": "Call(math:sqrt)"},
    "an init of one's own": {**S, "init": "IoC[Identity;Shown]"},
    "a name of an instance": {"backend": "IoC[Shown;S[Forward[Shown],Shwon]]"},
    "lost keys": {"global": {"queue_size": 2}, "a": {**S, "queue_size": 3}, "b": S},
}  # fmt: skip


def text_of(source):
    """Return what is said of a configuration: the error, or that it is accepted."""
    try:
        headrace.PipelineConfig.load(source)
    except ConfigError as error:
        return str(error)
    return "(accepted)"


def errors():
    """Return all errors, one after the other."""
    found = [f"== {name}\n{text_of(source)}\n" for name, source in MISTAKES.items()]
    text = "\n".join(found).replace(str(Path.cwd()), "FOLDER")
    return text.encode("utf-8", "backslashreplace").decode()


def plans():
    """Return all plans, as ``headrace explain`` gives them."""
    made = {}
    for name, source in PLANS.items():
        try:
            made[name] = headrace.explain(source)
        except ConfigError as error:
            made[name] = str(error)
    return json.dumps(made, indent=1, sort_keys=True, default=str) + "\n"


WRITTEN = {"errors.txt": errors, "plans.json": plans}


def write(folder):
    """Write all files into a folder."""
    headrace.register("Shown", Shown, replace=True)
    for name, made in WRITTEN.items():
        (folder / name).write_text(made(), encoding="utf-8")


def test_they_are_as_written_down(tmp_path):
    """In a process of its own, where nothing else is registered that could be suggested."""
    python(Path(__file__), tmp_path, cwd=tmp_path)
    for name in WRITTEN:
        written = (FOLDER / name).read_text(encoding="utf-8")
        assert (tmp_path / name).read_text(encoding="utf-8") == written, name


if __name__ == "__main__":
    write(Path([*sys.argv, FOLDER][1]))
