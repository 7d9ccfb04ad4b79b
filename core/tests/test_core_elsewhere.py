"""Containers that build their children elsewhere: plans in place of backends, here with a pool of processes."""

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
    SetupError,
)

POOLED = '''
"""A container as any distribution may have one: it knows public names of core alone."""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import headrace
from headrace.errors import InstanceLostError

_built = None


def begin(plan):
    global _built
    _built = plan.build(own_thread=False)


def about():
    return _built.min, _built.max, _built.describe()["name"]


def run(batch):
    outcomes = _built(batch)
    return outcomes, batch


def end():
    _built.close()


class Pooled(headrace.Backend):
    """Let X live in the process of a pool."""

    takes = 1
    builds_elsewhere = True

    def init(self, options, context):
        (plan,) = context.children
        self.keys = plan.keys
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, spawn, initializer=begin, initargs=(plan,))
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
    """Keeps the plan that it was given, and builds it in this process."""

    takes = (1, 2)
    builds_elsewhere = True
    kept: list = []  # noqa: RUF012
    named: list = []  # noqa: RUF012

    def init(self, options, context):
        Keeps.kept[:] = context.children
        places = range(len(context.children))
        Keeps.named[:] = [(context.keys_read(n)[0], context.keys_written(n)) for n in places]
        self.built = [pickle.loads(pickle.dumps(plan)).build() for plan in context.children]

    def forward(self, batch):
        return self.built[0](batch)

    def close(self):
        for one in self.built:
            one.close()


@pytest.fixture
def keeps():
    headrace.register("Keeps", Keeps)


def test_a_plan_says_range_and_keys_before_anything_is_built(words, keeps):
    config = {**words, "backend": "Keeps[S[Identity,Halves],Identity]", "max": 4}
    with headrace.pipe(config) as pipe:
        plan, other = Keeps.kept
        assert (plan.name, plan.expression) == ("S", "S[Identity,Halves]")
        assert (plan.min, plan.max) == (1, None)
        assert Keeps.named[0][0] == ("data", "mask")
        assert Keeps.named[0][1] == ("result", "where")
        assert {"data", "mask", "request_size", "context"} <= set(plan.keys)
        assert "result" not in plan.keys
        assert (other.name, *Keeps.named[1]) == ("Identity", ("data",), ("result",))
        assert repr(other) == "<plan of Identity>"
        # In threads of its own, whichever thread calls: `Halves` checks that.
        assert [one["result"] for one in pipe([{"data": 1}, {"data": 2}])] == [0.5, 1.0]


def test_a_plan_is_made_again_where_nothing_is_imported(words, keeps, tmp_path):
    """By a process that knows neither the files nor the configuration."""
    with headrace.pipe({**words, "backend": "Keeps[Halves]", "unit": 8}):
        content = pickle.dumps(Keeps.kept[0])
    program = """
import pickle, sys
plan = pickle.loads(sys.stdin.buffer.read())
print(plan, plan.min, plan.max, "far_halves" in " ".join(sys.modules))
built = plan.build()
batch = [{"data": 2}, {"data": "text"}]
print([type(one).__name__ for one in built(batch)], batch[0]["result"], built.max, built.rerun)
built.close()
print(type(built(batch)[0]).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=content,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.decode().splitlines() == [
        "<plan of Halves> 1 None False",
        "['NoneType', 'InputError'] 0.25 4 False",
        "ContractError",
    ], done.stderr.decode()


def test_what_is_inside_may_name_nothing_outside_and_has_to_be_importable(keeps):
    nodes = {"a": {"backend": "Keeps[Forward[node.b]]"}, "b": {"backend": "Identity"}}
    with pytest.raises(ConfigError, match="Forward cannot stand in Keeps"):
        headrace.PipelineConfig.load(nodes)
    with pytest.raises(ConfigError, match="Identity cannot stand in Keeps"):
        headrace.PipelineConfig.load({"backend": "IoC[Identity;Keeps[Identity]]"})
    headrace.register("Local", lambda data: data)
    with pytest.raises(SetupError, match=r"Local cannot be sent to another process"):
        headrace.pipe({"backend": "Keeps[Local]"})


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
        context.at_batch_end(self.end)

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


@pytest.mark.parametrize("own_thread", [True, False])
def test_a_backend_gets_its_thread_unless_the_one_that_builds_it_is_to_be_that(keeps, own_thread):
    headrace.register("TellsThread", TellsThread)
    with headrace.pipe({"backend": "Keeps[TellsThread]"}):
        built = Keeps.kept[0].build(own_thread=own_thread)
    batch = [{"data": 0}]
    built(batch)
    built.close()
    assert (batch[0]["result"] != threading.get_ident()) is own_thread


def test_a_plan_says_which_versions_it_was_made_with():
    found = {}

    class Keeps(headrace.Backend):
        takes = 1
        builds_elsewhere = True

        def init(self, options, context):
            (found["plan"],) = context.children

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Keeps", Keeps)
    with headrace.pipe({"backend": "Keeps[S[Identity,Fallback[Process[Identity],Identity]]]"}):
        requires = found["plan"].requires
    assert requires["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert requires["headrace"] == headrace.__version__
    installed = {one.distribution: one.version for one in headrace.plugins.installed()}
    there = {"headrace-process"} & {*installed}
    assert {*requires} == {"python", "headrace", *there}
    assert all(requires[name] == installed[name] for name in there)
    other = found["plan"].of_instance(3)
    assert (other.name, other.keys) == (found["plan"].name, found["plan"].keys)


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


def test_the_plans_of_all_instances_know_their_node_and_those_that_were_pickled_nothing_of_this_process():
    plans = []

    class Collects(Keeps):
        takes = 1

        def init(self, options, context):
            super().init(options, context)
            plans.extend(context.children)

    headrace.register("Collects", Collects)
    with headrace.pipe({"backend": "Collects[S[Identity,Identity]]", "instance_num": 2}):
        first, second = plans
    assert first.origin is second.origin is not None
    assert (first.instances, first.files) == (2, ())
    assert [text for text, _ in first.options] == ["S[Identity,Identity]", "Identity", "Identity"]
    there = pickle.loads(pickle.dumps(first))
    assert (there.origin, there.liveness, there.options, there.measures) == (
        None,
        None,
        None,
        False,
    )


@pytest.mark.parametrize("name", ["Isolated", "Link", "Place", "Restarts", "RunningBatch"])
def test_what_has_moved_says_what_to_install(name):
    with pytest.raises(
        ImportError, match=r"headrace_workers\.\w+\.\w+ now: pip install headrace-workers"
    ):
        getattr(headrace.isolation, name)
