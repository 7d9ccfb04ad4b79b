"""A plugin that replaces both policies with shared state, by name and by hook; and the other hooks."""

from __future__ import annotations

import sys

import pytest

import headrace
from headrace.errors import ConfigError

HOOKS = """
from headrace.hookspecs import hookimpl

@hookimpl
def headrace_batch_policies():
    return {"Turns": "hrt_turns:Turns", "OnlyBatch": "hrt_turns:OnlyBatch"}

@hookimpl
def headrace_dispatch_policies():
    return {"Turns": "hrt_turns:Turns", "OnlyDispatch": "hrt_turns:OnlyDispatch"}
"""

TURNS = '''
from pydantic import Field
import headrace
from headrace.policies import BatchPolicy, Cut, DispatchPolicy

made = []

class Turns(BatchPolicy, DispatchPolicy):
    """Instance k takes batches of k + 1, and the instances take turns: choose tells cut the size."""

    class Options(headrace.Options):
        first: int = Field(0, ge=0, description="The instance that begins.")
        wanted: int = Field(3, ge=1, description="Nothing is chosen for less.")

    def __init__(self, options=None):
        super().__init__(options)
        self.turn, self.chosen = self.options.first, None
        made.append(self)

    def choose(self, weight, free):
        if weight < self.options.wanted:
            return None
        for instance in free:
            if instance.index == self.turn:
                self.chosen = instance.index
                return instance
        return None

    def cut(self, queue, instance, now):
        # It is also asked whether more may join a batch that has not begun; nothing was chosen then.
        if self.chosen is not None:
            assert instance.index == self.chosen
            self.turn, self.chosen = 1 - self.chosen, None
        return Cut(instance.index + 1)

class OnlyBatch(BatchPolicy):
    """Singles."""

    def __init__(self, options=None):
        super().__init__(options)
        made.append(self)

    def cut(self, queue, instance, now):
        return Cut(1)

class OnlyDispatch(DispatchPolicy):
    """The last free instance."""

    def __init__(self, options=None):
        super().__init__(options)
        made.append(self)

    def choose(self, weight, free):
        return max(free, key=lambda instance: instance.index)

class Double(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = 2 * request["data"]
'''


@pytest.fixture
def turns(site):
    """Install a plugin with every hook of a pipeline; give the list of the policies it has made."""
    points = "[headrace.plugins]\nh = hrt_turns_hooks\n"
    points += "[headrace.backends]\nDouble = hrt_turns:Double\n"
    modules = {"hrt_turns_hooks": HOOKS, "hrt_turns": TURNS}
    site.add("headrace-turns", points, modules)
    return lambda: sys.modules["hrt_turns"].made


def test_one_policy_for_both_keys_shares_what_it_knows(turns, gate):
    config = {
        "backend": "Gate",
        "max": 4,
        "instance_num": 2,
        "batch_policy": "Turns(first=1)",
        "dispatch_policy": "Turns",
    }
    asked = [one["distribution"] for one in headrace.explain(config)["asks_for"]]
    assert "headrace-turns" in asked
    gate.open()
    with headrace.pipe(config) as pipe:
        (policy,) = turns()
        futures = pipe.submit([{"data": 0}, {"data": 1}])
        assert pipe.stats()["nodes"]["main"]["waiting"] == 2
        futures.append(pipe.submit({"data": 2}))
        futures += pipe.submit([{"data": k} for k in range(3, 9)])
        pipe.submit([{"data": k} for k in range(9, 12)])
        for future in futures:
            future.result(60)
        pipe.close(drain=False)
        stats = pipe.stats()["nodes"]["main"]
    assert set(map(len, gate.batches)) == {1, 2}
    histogram = stats["batch_size"]["histogram"]
    first, second = (instance["batches"] for instance in stats["instances"])
    assert (first, second) == (histogram["1"], histogram["2"])
    assert abs(first - second) <= 1
    assert policy.options.first == 1


def test_each_node_has_policies_of_its_own(turns):
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Identity", "dispatch_policy": "best_fit"},
        "global": {"batch_policy": "OnlyBatch", "dispatch_policy": "OnlyDispatch"},
    }
    with headrace.pipe(config) as pipe:
        pipe({"data": 1})
        assert sorted(type(one).__name__ for one in turns()) == [
            "OnlyBatch",
            "OnlyBatch",
            "OnlyDispatch",
        ]


def test_a_batch_policy_alone_and_a_dispatch_policy_alone(turns, gate):
    gate.open()
    config = {"backend": "Gate", "max": 4, "instance_num": 3}
    with headrace.pipe({**config, "batch_policy": "OnlyBatch"}) as pipe:
        for future in pipe.submit([{"data": k} for k in range(5)]):
            future.result(60)
    assert set(map(len, gate.batches)) == {1}
    with headrace.pipe({**config, "dispatch_policy": "OnlyDispatch"}) as pipe:
        for number in range(5):
            pipe.submit({"data": number}).result(60)
            batches = [one["batches"] for one in pipe.stats()["nodes"]["main"]["instances"]]
        assert batches == [0, 0, 5]


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"dispatch_policy": "OnlyBatch"}, "unknown_policy"),
        ({"batch_policy": "OnlyDispatch"}, "unknown_policy"),
        ({"batch_policy": "Turns(third=1)"}, "unknown_option"),
        ({"batch_policy": "nowhere:Turns"}, "unknown_policy"),
    ],
)
def test_a_policy_of_the_other_kind_and_options_it_has_not_are_refused(turns, keys, code):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": "Identity", **keys})
    assert [problem.code for problem in caught.value.problems] == [code]


def test_the_example_of_the_hook_for_probes_writes_what_it_says(site, tmp_path):
    import inspect

    from headrace import hookspecs

    blocks, inside = [], False
    for row in inspect.cleandoc(hookspecs.headrace_probes.__doc__).splitlines():
        inside = row.endswith("::") or (inside and (not row or row.startswith("    ")))
        if row.endswith("::"):
            blocks.append("")
        elif inside:
            blocks[-1] += row.removeprefix("    ") + "\n"
    hook, trace = blocks
    site.add(
        "headrace-x",
        "[headrace.plugins]\nh = hrt_x_hooks\n",
        {
            "hrt_x_hooks": "from headrace.hookspecs import hookimpl\n"
            + hook.replace("headrace_x.diary", "hrt_trace"),
            "hrt_trace": trace,
        },
    )
    config = {"backend": "Identity", "probes": [f'Diary(path="{tmp_path}/trace.txt")']}
    with headrace.pipe(config) as pipe:
        pipe({"data": 1})
    (line,) = (tmp_path / "trace.txt").read_text().splitlines()
    node, milliseconds, code = line.split()
    assert (node, code) == ("main", "ok")
    assert float(milliseconds) >= 0


def test_where_the_hooks_of_a_plugin_fail_an_unknown_policy_tells_of_it(site):
    site.add("headrace-bad", "[headrace.plugins]\nh = hrt_no_hooks\n", {"hrt_no_hooks": "1 / 0"})
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": "Identity", "batch_policy": "Turns"})
    (found,) = caught.value.problems
    assert found.code == "unknown_policy"
    assert "headrace-bad cannot be used: its hooks failed: ZeroDivisionError" in found.hint


def test_a_hook_may_name_more_in_its_module(site):
    names = HOOKS.replace("    return", "    globals()['more'] = 1\n    return")
    site.add("headrace-more", "[headrace.plugins]\nh = hrt_more_hooks\n", {"hrt_more_hooks": names})
    plugins = {one.distribution: one for one in headrace.plugins.installed()}
    assert "Turns" in plugins["headrace-more"].offers["batch_policies"]
