"""Containers that build their children elsewhere: configurations in place of backends, here with a pool of processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import pytest

import headrace
from headrace.errors import (
    ConfigError,
    InputError,
    InstanceLostError,
    RequestsFailed,
)

POOLED = '''
"""A container as any distribution may have one: it knows public names of core alone."""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import headrace
from headrace.errors import InstanceLostError

_built = None


def begin(config, seen):
    global _built
    _built = headrace.plugins.build(config, seen=seen)


def about():
    return _built.instances[0].min, _built.instances[0].max, _built.describe()["name"]


def run(batch):
    outcomes = _built.instances[0](batch)
    return outcomes, batch


def end():
    _built.close()


class Pooled(headrace.Backend):
    """Let X live in the process of a pool."""

    takes = 1
    builds_elsewhere = True

    def init(self, options, context):
        (child,) = context.children
        self.keys = {*context.expression.keys_read(0)[0], "request_id"}
        spawn = multiprocessing.get_context("spawn")
        first = child.config, child.seen(context.instance_index)
        self.pool = ProcessPoolExecutor(1, spawn, initializer=begin, initargs=first)
        self.min, self.max, self.name = self.pool.submit(about).result()

    def forward(self, batch):
        sent = [{key: one[key] for key in self.keys if key in one} for one in batch]
        try:
            outcomes, changed = self.pool.submit(run, sent).result()
        except BrokenProcessPool as error:
            raise InstanceLostError("the pool is broken") from error
        for request, new in zip(batch, changed):
            request.update(new)
        return outcomes

    def describe(self):
        return {"inside": self.name}

    def close(self):
        self.pool.submit(end).result()
        self.pool.shutdown()


headrace.register("Pooled", Pooled)
'''

WORDS = '''
import os, threading
import headrace
from headrace.errors import InputError

class Halves(headrace.Backend):
    """Half a number, by a thread that it owns."""
    class Options(headrace.Options):
        unit: int = 2
    owns_thread = True
    reads = ("data", "mask")
    writes = ("result", "where")
    def init(self, options, context):
        self.unit, self.max, self.home = options.unit, 4, threading.get_ident()
        self.index, self.device = context.instance_index, context.device
    def forward(self, batch):
        assert threading.get_ident() == self.home
        outcomes = []
        for request in batch:
            if not isinstance(request["data"], int):
                outcomes.append(InputError(key="data", expected="an int", got="a text"))
                continue
            request["result"] = request["data"] / self.unit
            request["where"] = (os.getpid(), self.index, self.device)
            outcomes.append(None)
        return outcomes
    def close(self):
        assert threading.get_ident() == self.home
        with open(os.environ["CLOSED_FILE"], "a") as file:
            file.write(f"{self.index} ")

headrace.register("Halves", Halves)

@headrace.register("Exits")
def exits(data):
    os._exit(3)
'''


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The configuration's files: an installed module with the container, and a file with backends."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CLOSED_FILE", str(tmp_path / "closed"))
    (tmp_path / "pooled_words.py").write_text(POOLED, encoding="utf-8")
    (tmp_path / "far_halves.py").write_text(WORDS, encoding="utf-8")
    yield {"import": ["pooled_words", str(tmp_path / "far_halves.py")]}
    sys.modules.pop("pooled_words", None)


def test_a_container_outside_of_core_runs_what_it_was_given_a_plan_of(words, tmp_path):
    config = {**words, "backend": "S[Identity,Pooled[S[Identity,Halves]]]", "unit": 4, "max": 9}
    with headrace.pipe({**config, "instance_num": 2, "device": ["a", "b"]}) as pipe:
        request = {"data": 2, "other": threading.Lock(), "request_id": "r"}
        pipe(request)
        assert request["result"] == 0.5
        process, index, device = request["where"]
        assert process != os.getpid()
        assert (index, device) in ((0, "a"), (1, "b"))
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": 1}, {"data": "text"}])
        tree = pipe.describe()["nodes"]["main"]["tree"]["children"][1]
    assert [type(one) for one in failed.value.errors] == [type(None), InputError]
    assert failed.value.errors[1].backend == "Halves"
    assert (tree["range"], tree["built"]) == ([1, 4], {"inside": "S"})  # as init has left it, there
    assert sorted((tmp_path / "closed").read_text().split()) == ["0", "1"]


def test_what_it_raises_about_its_place_takes_the_instance_out_of_service(words):
    with headrace.pipe({**words, "backend": "Pooled[Exits]"}) as pipe:
        with pytest.raises(InstanceLostError, match="the pool is broken"):
            pipe({"data": 1})
        assert not pipe.ready


class Keeps(headrace.Backend):
    """Keeps what it was given of its children, and builds them in this process."""

    takes = (1, 2)
    builds_elsewhere = True
    kept: list = []  # noqa: RUF012
    named: list = []  # noqa: RUF012

    def init(self, options, context):
        Keeps.kept[:] = context.children
        places = range(len(context.children))
        Keeps.named[:] = [
            (context.expression.keys_read(n)[0], context.expression.keys_written(n)) for n in places
        ]
        index = context.instance_index
        there = pickle.dumps([(one.config, one.seen(index)) for one in context.children])
        self.built = [headrace.plugins.build(one, seen=seen) for one, seen in pickle.loads(there)]

    def forward(self, batch):
        return self.built[0].instances[0](batch)

    def close(self):
        for one in self.built:
            one.close()


@pytest.fixture
def keeps():
    headrace.register("Keeps", Keeps)


def test_a_child_says_name_range_and_configuration_before_it_is_built(words, keeps):
    config = {**words, "backend": "Keeps[S[Identity,Halves],Identity]", "unit": 4, "max": 9}
    with headrace.pipe({**config, "global": {"threads": 6}, "batching_timeout": 1}) as pipe:
        child, other = Keeps.kept
        assert (child.name, child.min, child.max, child.instances) == ("S", 1, None, 1)
        assert Keeps.named[0] == (("data", "mask"), ("result", "where"))
        assert (other.name, *Keeps.named[1]) == ("Identity", ("data",), ("result",))
        assert child.origin is not other.origin
        assert child.config.to_dict() == {
            "import": words["import"][1:],
            "global": {"threads": 6},
            "main": {"backend": "S[Identity,Halves]", "Halves::unit": 4},
        }
        of_node = {"min": None, "max": 9, "sizes": None, "pad": False}
        own = {"instance_index": 3, "instance_num": 1, "device": None}
        assert child.seen(3) == {**own, "batch": of_node}
        assert pipe({"data": 1})["result"] == 0.25


KNOWN_WHOLE = [
    {"backend": "S[Keeps[Halves(unit=4)],Takes]", "unit": 8},  # nearest is ( )
    {"backend": "S[Keeps[Halves],Takes]", "unit": 4, "global": {"unit": 8}},
    {"backend": "S[Keeps[Halves],Takes]", "global": {"Halves::unit": 4, "unit": 8}},
    {"backend": "S[Keeps[Reflect[inner]],Takes]", "inner": "Halves(unit=4)"},
    {"backend": "S[Keeps[Halves(unit=${UNIT})],Takes]"},
    {"backend": "S[Keeps[Halves],Takes]", "unit": "${UNIT}"},
]


@pytest.mark.parametrize("config", KNOWN_WHOLE, ids=range(len(KNOWN_WHOLE)))
def test_a_child_has_the_options_that_it_has_in_its_node(words, keeps, config, monkeypatch):
    class Takes(headrace.Backend):
        """Has an option that the child knows nothing of, and that no pickle takes."""

        max = 8

        class Options(headrace.Options):
            taken: object = None

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Takes", Takes, replace=True)
    monkeypatch.setenv("UNIT", "4")
    node = {**config, "taken": threading.Lock()}
    shared = {"global": node.pop("global")} if "global" in node else {}
    with headrace.pipe({**words, **shared, "there": node}) as pipe:
        monkeypatch.setenv("UNIT", "8")
        assert pipe({"data": 2})["result"] == 0.5
        assert Keeps.kept[0].config.nodes == ("there",)


def test_a_child_is_built_where_nothing_is_imported(words, keeps, tmp_path):
    """By a process that knows neither the files nor the configuration."""
    with headrace.pipe({**words, "backend": "Keeps[Halves]", "unit": 8}):
        content = pickle.dumps(Keeps.kept[0].config)
    program = """
import pickle, sys
import headrace
config = pickle.loads(sys.stdin.buffer.read())
built = headrace.plugins.build(config, seen={})
(run,) = built.instances
batch = [{"data": 2}, {"data": "text"}]
print([type(one).__name__ for one in run(batch)], batch[0]["result"], run.max)
print(built.reads, built.needs, built.lost)
built.close()
print(type(run(batch)[0]).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=content,
        capture_output=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.decode().splitlines() == [
        "['NoneType', 'InputError'] 0.25 4",
        "('data', 'mask') ('data',) False",
        "ContractError",
    ], done.stderr.decode()


def test_what_is_inside_may_name_nothing_outside(keeps):
    nodes = {"a": {"backend": "Keeps[Forward[node.b]]"}, "b": {"backend": "Identity"}}
    with pytest.raises(ConfigError, match="Forward cannot stand in Keeps"):
        headrace.PipelineConfig.load(nodes)
    with pytest.raises(ConfigError, match="Identity cannot stand in Keeps"):
        headrace.PipelineConfig.load({"backend": "IoC[Identity;Keeps[Identity]]"})


def test_a_thread_is_put_around_the_container_only_if_it_owns_one(words, keeps):
    found = headrace.explain({**words, "backend": "Keeps[Halves]"})["nodes"]["main"]
    assert found["owns_thread"] is False
    assert found["processes"] == {"count": 1, "loads": {}}
    headrace.register("Owning", type("Owning", (Keeps,), {"owns_thread": True}))
    found = headrace.explain({**words, "backend": "Owning[Halves]"})["nodes"]["main"]
    assert found["owns_thread"] is True


class Ends(headrace.Backend):
    """Is not ready before the end of the batch."""

    max = None

    def init(self, options, context):
        context.batch.at_end(self.end)

    def forward(self, batch):
        self.batch = batch
        for request in batch:
            request["result"] = "unfinished"

    def end(self):
        for request in self.batch:
            request["data"] = request["result"] = "finished"


def test_what_leaves_for_elsewhere_is_finished_before(keeps):
    headrace.register("Ends", Ends)
    with headrace.pipe({"backend": "S[Ends,Keeps[Call(builtins:list)]]"}) as pipe:
        assert "".join(pipe({"data": 1})["result"]) == "finished"


class TellsThread(headrace.Backend):
    owns_thread = True

    def forward(self, batch):
        for request in batch:
            request["result"] = threading.get_ident()


def test_who_builds_a_child_is_the_thread_of_its_backends(keeps):
    headrace.register("TellsThread", TellsThread)
    with headrace.pipe({"backend": "Keeps[TellsThread]"}):
        built = headrace.plugins.build(Keeps.kept[0].config, seen={})
    batch = [{"data": 0}]
    built.instances[0](batch)
    built.close()
    assert batch[0]["result"] == threading.get_ident()


class BothRead(headrace.Backend):
    """Names what it reads once it is built, as a model with two inputs does."""

    def init(self, options, context):
        self.reads = ("left", "right")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["left"] + request["right"]


@pytest.mark.parametrize("says", [True, False])
def test_a_container_that_says_what_is_needed_there_has_other_requests_refused(keeps, says):
    class Tells(Keeps):
        takes = 1

        def init(self, options, context):
            super().init(options, context)
            if says:
                self.needs = self.built[0].needs

    headrace.register("BothRead", BothRead)
    headrace.register("TellsThere", Tells)
    with headrace.pipe({"backend": "TellsThere[BothRead]"}) as pipe:
        if says:
            assert pipe({"left": 1, "right": 2})["result"] == 3
        with pytest.raises(InputError, match="has no 'right'" if says else "has no 'data'"):
            pipe({"left": 1})


def test_the_children_of_all_instances_know_their_node():
    children = []

    class Collects(Keeps):
        takes = 1

        def init(self, options, context):
            super().init(options, context)
            children.extend(context.children)

    headrace.register("Collects", Collects)
    with headrace.pipe({"backend": "Collects[S[Identity,Identity]]", "instance_num": 2}):
        first, second = children
    assert first.origin is second.origin is not None
    assert (first.instances, first.asked, first.config.files) == (2, (), ())


def test_a_part_of_a_node_is_no_larger_than_its_instances_allow(keeps):
    class One(headrace.Backend):
        """Allows one instance in a process."""

        @classmethod
        def most_instances(cls, options):
            return 1

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("OneOfIt", One)
    with headrace.pipe({"backend": "Keeps[OneOfIt]", "instance_num": 2}) as pipe:
        assert pipe({"data": 1})["result"] == 1
