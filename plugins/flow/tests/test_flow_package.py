"""What the package says of itself: the programs of its README, and the examples in the docstrings of the words."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from distributions import tomllib
from typer.testing import CliRunner

import headrace
import headrace_flow
from headrace.policies import Greedy
from headrace_cli.app import app
from headrace_flow import conditions

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
GIVES = re.compile(r"``(\S[^`]*)`` gives ``(.+)``::\n\n((?:(?: +.*)?\n)+)")
WORDS = (
    "Cache", "Concurrency", "HasKey", "Iterate", "Loop", "NotHasKey", "Observer", "Once", "Queue", "Random", "Recv",
    "Repost", "Restart", "Send", "StateFul",
)  # fmt: skip
POLICIES = ("Alike", "Budget")


class Short(headrace.Backend):
    """Passes texts of up to three letters, and gives no result for others."""

    def forward(self, batch):
        for request in batch:
            if len(request["data"]) <= 3:
                request["result"] = request["data"]


class DoubleBelow200(headrace.Backend):
    """Doubles a number; one that has come above 200 is `large`."""

    max = 16

    def forward(self, batch):
        for request in batch:
            request["result"] = 2 * request["data"]
            if request["result"] > 200:
                request["large"] = True


class Double(headrace.Backend):
    """Doubles a text; one that has come to eight letters is `enough`."""

    def forward(self, batch):
        for request in batch:
            request["result"] = 2 * request["data"]
            if len(request["result"]) >= 8:
                request["enough"] = True


class Grow(headrace.Backend):
    """Adds a mark to a text, and asks for a restart here until there are three."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"] + "!"
            if len(request["result"]) < 4:
                request["restart"] = "grow"


class RunningTotal(headrace.Backend):
    """Adds ``data`` to what the session has `before`."""

    def forward(self, batch):
        for request in batch:
            total = request.get("before", 0) + request["data"]
            request["result"] = {"total": total, "answer": total}


@pytest.mark.parametrize("name", WORDS)
def test_the_example_of_a_word_gives_what_it_says(name):
    headrace.register("Upper", str.upper, replace=True)
    headrace.register("Reverse", lambda text: text[::-1], replace=True)
    headrace.register("Short", Short, replace=True)
    headrace.register("DoubleBelow200", DoubleBelow200, replace=True)
    headrace.register("RunningTotal", RunningTotal, replace=True)
    headrace.register("Double", Double, replace=True)
    headrace.register("Grow", Grow, replace=True)
    word = getattr(headrace_flow, name)
    request, result, text = GIVES.search(inspect.cleandoc(word.__doc__) + "\n").groups()
    config = tomllib.loads(inspect.cleandoc(text))
    with headrace.pipe(config) as pipe:
        assert pipe(json.loads(request))["result"] == json.loads(result)


def test_the_table_names_every_word():
    assert set(re.findall(r"^\| `(\w+)\(", README, re.MULTILINE)) == {*WORDS, *POLICIES, "Script"}
    assert {*headrace_flow.__all__} == {
        *(*WORDS, *POLICIES, *conditions.__all__),
        *("KVStorage", "RequestNotFoundError", "Script", "call", "part", "__version__"),
    }


@pytest.mark.parametrize("name", POLICIES)
def test_the_example_of_a_policy_is_a_configuration(name):
    (policy,) = re.findall(
        r'``batch_policy = "(.*)"``', inspect.getdoc(getattr(headrace_flow, name))
    )
    config = headrace.PipelineConfig.load({"backend": "Identity", "batch_policy": policy})
    batch, _ = headrace.plugins.policies(config)["main"]
    assert type(batch) is getattr(headrace_flow, name)


@pytest.mark.parametrize("name", POLICIES)
def test_the_table_of_a_policy_has_its_options(name):
    own = (
        getattr(headrace_flow, name).Options.model_fields.keys()
        - Greedy.Options.model_fields.keys()
    )
    (rows,) = re.findall(
        rf"^\*\*`{name}`\*\*.*?\n\n((?:\|[^\n]*\n)+)", README, re.MULTILINE | re.DOTALL
    )
    assert set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == own


def test_explain_says_that_a_policy_picks(tmp_path):
    file = tmp_path / "line.toml"
    file.write_text('backend = "Identity"\nmax = 8\nbatch_policy = "Alike"\n')
    done = CliRunner().invoke(app, ["explain", str(file)])
    assert "batches of 1 to 8 picked by Alike, run by" in done.stdout


COUNT = (Path(headrace_flow.__file__).parent / "counting.py").as_posix() + ":count"
OUTERMOST = {
    "Iterate stands outermost in its node or nowhere": [
        "S[Identity,Iterate(until=done)[Identity]]",
        "S[Iterate(until=done)[Identity],Identity]",
        "Loop(until=done)[Iterate(until=done)[Identity]]",
        "Iterate(until=done)[Iterate(until=done)[Identity]]",
        "Process[Iterate(until=done)[Identity]]",
    ],
    "StateFul stands outermost in its node": [
        "S[Identity,StateFul(session)[Identity]]",
        "S[StateFul(session)[Identity],Identity]",
        "Iterate(until=done)[StateFul(session)[Identity]]",
        "StateFul(session)[StateFul(user)[Identity]]",
    ],
    "Once stands outermost": [
        "S[Once[Identity],Identity]",
        "S[Identity,Once[Identity]]",
    ],
    "Concurrency": [
        "S[Concurrency(gpu)[Identity],Identity]",
        "Process[Concurrency(gpu)[Identity]]",
    ],
    "another process": ["Process[StateFul(session)[Identity]]"],
    "Script cannot stand in Process": [f"Process[Script('{COUNT}')]"],
    "Send cannot stand in Process": ["Process[Send(q)]"],
    "Observer cannot stand in Process": ["Process[Observer(q)]"],
    "Recv cannot stand in Process": ["Process[Recv(q)]"],
}


@pytest.mark.parametrize(
    ("backend", "said"),
    [(backend, said) for said, backends in OUTERMOST.items() for backend in backends],
)
def test_a_word_that_must_see_its_whole_node_stands_nowhere_inside(backend, said):
    keys = {"keep": {"total": "before"}} if "StateFul" in backend else {}
    with pytest.raises(headrace.errors.ConfigError, match=said):
        headrace.pipe({"backend": backend, **keys})
