"""The table "Where do I change" of ARCHITECTURE.md: it is enough to change the files of a row.

Each test changes a copy of core's sources as an author would who follows one row alone. The change
has to show in every way in which a batch can run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]

WAYS = '''
import asyncio
import json
import headrace

class Copy(headrace.Backend):
    max = 8

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]

headrace.register("Copy", Copy)

def awaited(pipe, requests):
    async def run():
        return [await pipe.call_async(request) for request in requests]
    return asyncio.run(run())

CALLED = lambda pipe, requests: [pipe(request) for request in requests]
SUBMITTED = lambda pipe, requests: [pipe.submit(request).result(60) for request in requests]
WAYS = {
    "short cut": ("Copy", CALLED),
    "inbox": ("Copy", lambda pipe, requests: [pipe(request, timeout=60) for request in requests]),
    "own thread": ("BackgroundThread[Copy]", CALLED),
    "list": ("Copy", lambda pipe, requests: pipe(requests)),
    "future": ("Copy", SUBMITTED),
    "coroutine": ("Copy", awaited),
}

def each_way(**keys):
    """Send ten requests in each way, to one node and to two; give the answers and stats."""
    seen = {}
    for name, (backend, send) in WAYS.items():
        node = {"backend": backend, **keys}
        for graph in ({"last": node}, {"first": {"backend": "Copy", "next": "last"}, "last": node}):
            with headrace.pipe(graph) as pipe:
                requests = [{"data": k, "request_size": 1 + k % 2} for k in range(10)]
                results = [request["result"] for request in send(pipe, requests)]
                seen[f"{name}, {len(graph)}"] = results, pipe.stats()["nodes"]["last"]
    print(json.dumps(seen))
'''


def named(row):
    """Return the files that a row of the table names, and those of core alone."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (files,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", text, re.MULTILINE)
    return re.findall(r"`(_\w+/[\w/]+\.py)`", files)


@pytest.fixture
def changed(tmp_path):
    """Return a function that changes the files of a row, runs a program, and gives its output.

    Each change is a pattern and what stands for its only match in these files.
    """

    def run(row, changes, program):
        shutil.copytree(ROOT / "core" / "src", tmp_path, dirs_exist_ok=True)
        files = [tmp_path / "headrace" / name for name in named(row)]
        texts = {file: file.read_text(encoding="utf-8") for file in files}
        for pattern, new in changes:
            counts = {
                file: len(re.findall(pattern, text, re.MULTILINE)) for file, text in texts.items()
            }
            assert sorted(counts.values())[-1:] == [1] == [sum(counts.values())], (pattern, counts)
            for file, text in texts.items():
                texts[file] = re.sub(pattern, new, text, flags=re.MULTILINE)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
        is_copy = f"assert headrace.__file__.startswith({str(tmp_path)!r})"
        ended = run_process(
            [sys.executable, "-c", "\n".join([WAYS, is_copy, program])],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return run


def test_a_counted_field_of_stats(changed):
    changes = [
        (r'__slots__ = \("batches", ', r'\g<0>"requests", "weight", '),
        (r"^( +)self\.batches = 0\n", r"\g<0>\1self.requests = self.weight = 0\n"),
        (
            r"^( +)self\.sizes\[size\] \+= times\n",
            r"\g<0>\1self.requests += size * times\n\1self.weight += weight * times\n",
        ),
        (
            r'^( +)"batches": begun,\n',
            r'\g<0>\1"requests": total.requests,\n\1"weight": total.weight,\n',
        ),
    ]
    seen = changed("a counted field of `stats()`", changes, "each_way()")
    counts = {way: (node["requests"], node["weight"]) for way, (_, node) in seen.items()}
    assert counts == dict.fromkeys(counts, (10, 15))
    assert len(counts) == 12


def test_a_node_key(changed):
    changes = [
        (
            r"^( +)queue_size: int = Field\(",
            r'\1shift: int = Field(0, description="Added.")\n\g<0>',
        ),
        (
            r"^( +)\w+ = schedule\((\w+)\)\n",
            (
                r"\1for instance in \2:\n"
                r"\1    instance.run = _shifted(instance.run, node.keys.shift)\n\g<0>"
            ),
        ),
        (
            r"^def _instance\(",
            """def _shifted(run, shift):
    def shifted(batch):
        outcomes = run(batch)
        for request in batch:
            request["result"] += shift
        return outcomes
    return shifted


def _instance(""",
        ),
    ]
    seen = changed("a node key", changes, "each_way(shift=100)")
    results = {way: answers for way, (answers, _) in seen.items()}
    assert results == {way: [*range(100, 110)] for way in results}


def test_a_policy(changed):
    changes = [
        (
            r"^class Sized\(BatchPolicy",
            '''class Pairs(BatchPolicy):
    """Takes two requests at most."""

    def cut(self, queue, instance, now):
        """Take them at once."""
        return _run.Cut(min(len(queue), 2), reason="pairs")


class Sized(BatchPolicy''',
        ),
        (
            r'\{("greedy": "[\w.]+:Greedy")',
            r'{"pairs": "headrace._language.contract.policy_options:Pairs", \1',
        ),
    ]
    seen = changed("a policy", changes, 'each_way(batch_policy="pairs")')
    for way, (results, node) in seen.items():
        assert results == [*range(10)], way
        assert node["reasons"] == {"pairs": node["batches"]}, way
        assert node["batch_size"]["histogram"].keys() <= {"1", "2"}, way
