"""What probes hear besides the ends of batches and requests."""

from __future__ import annotations

import gc
import sys
import time
import weakref

import internals
import pytest

import headrace
from headrace.errors import InstanceLostError

PROBES = """
made = []

class Base:
    def __init__(self):
        self.heard = []
        made.append(self)

class Batches(Base):
    def batch_ran(self, record):
        self.heard.append(record)

class Elements(Base):
    def element_done(self, *args):
        self.heard.append(args)

class Both(Base):
    def element_began(self, *args):
        self.heard.append(args)

    def element_done(self, node, instance, element, *rest):
        self.heard.append(element)

class Spans(Base):
    def span_done(self, *args):
        self.heard.append(args)

class Instances(Base):
    def instance_changed(self, *args):
        self.heard.append(args)

class Starts(Base):
    def pipeline_started(self, pipeline):
        self.heard.append((pipeline.ready, pipeline.stats()["state"]))
        import weakref
        self.pipeline = weakref.ref(pipeline)
"""

HOOKS = """
from headrace.hookspecs import hookimpl

@hookimpl
def headrace_probes():
    names = ["Batches", "Elements", "Both", "Spans", "Instances", "Starts"]
    return {name: "hrt_records:" + name for name in names}
"""


class Upper(headrace.Backend):
    max = 4

    def init(self, options, context):
        self.span = context.span

    def forward(self, batch):
        if self.span is not None:
            self.span("inside", 1.0, 2.0, "cuda:0")
        for request in batch:
            request["result"] = request["data"].upper()


class Lost(headrace.Backend):
    def forward(self, batch):
        raise InstanceLostError("gone")


class Around(headrace.Backend):
    takes = 1

    def init(self, options, context):
        (self.child,) = context.children

    def forward(self, batch):
        return self.child(batch)


@pytest.fixture
def probes(site):
    modules = {"hrt_record_hooks": HOOKS, "hrt_records": PROBES}
    site.add("headrace-records", "[headrace.plugins]\nhooks = hrt_record_hooks\n", modules)
    for cls in (Upper, Lost, Around):
        headrace.register(cls.__name__, cls, replace=True)
    return lambda: sys.modules["hrt_records"].made


def piped(probe, **config):
    config.setdefault("backend", "S[Identity,Upper]")
    return headrace.pipe({**config, "probes": [probe]})


@pytest.mark.parametrize("how", ["alone", "list", "submit"])
def test_a_batch_is_told_with_its_requests(probes, how, client):
    clients = []
    with piped("Batches") as pipe:
        requests = [{"data": letter, "request_size": 1 + (letter == "b")} for letter in "abc"]
        if how == "list":
            pipe(requests)
        else:
            for one in requests:
                if how == "submit":
                    pipe.submit(one).result()
                else:
                    clients.append(client(pipe, one))
                    clients[-1].outcome()
        stats = pipe.stats()["nodes"]["main"]
    records = probes()[-1].heard
    assert len(records) == stats["batches"]
    found = [one for record in records for one in record.requests]
    assert [one.request for one in found] == requests
    assert [one.weight for one in found] == [1, 2, 1]
    for record in records:
        assert (record.node, record.instance) == ("main", 0)
        assert record.errors == [None] * len(record.requests)
        assert record.weight == sum(one.weight for one in record.requests)
        for one in record.requests:
            assert one.arrival <= one.cut <= record.started <= record.ended
    if how == "alone":
        assert [record.thread for record in records] == [one.ident for one in clients]


def test_every_batch_is_told_however_swift_the_backend_is_and_counted_as_busy(probes, client):
    # More than are timed without a probe: one in 16 of a swift backend.
    with piped("Batches", instance_num=2) as pipe:
        client(lambda: [pipe({"data": letter}) for letter in 25 * "abcd"]).outcome()
        found = probes()[-1].heard
        stats = pipe.stats()["nodes"]["main"]
    assert [one.requests[0].request["result"] for one in found] == [*(25 * "ABCD")]
    assert stats["batches"] == stats["ok"] == 100
    busy = sum(one["busy_s"] for one in stats["instances"])
    assert busy == pytest.approx(sum(one.ended - one.started for one in found), abs=1e-4)


def test_errors_stand_beside_their_requests(probes):
    with piped("Batches") as pipe, pytest.raises(headrace.errors.RequestsFailed):
        pipe([{"data": "a"}, {"data": 1}])
    (record,) = probes()[-1].heard
    assert [type(error).__name__ for error in record.errors] == ["BackendError", "BackendError"]


def paths(tree):
    """Return the path of every backend in a tree of `describe`, by a walk of its own."""
    found = [tree["name"]]
    for place, child in enumerate(tree["children"]):
        found += [f"{tree['name']}/{place}:{below}" for below in paths(child)]
    return found


def test_elements_are_told_by_their_path_inside_before_outside(probes):
    config = {"backend": "S[Identity,Around[S[Upper,Identity]],Identity]", "max": 4}
    with piped("Elements", **config) as pipe:
        known = paths(pipe.describe()["nodes"]["main"]["tree"])
        pipe([{"data": "a"}, {"data": "b"}])
    heard = probes()[-1].heard
    assert sorted(element for _, _, element, *_ in heard) == sorted(known)
    assert "S/1:Around/0:S/0:Upper" in known
    assert {(node, index, size) for node, index, _, size, _, _ in heard} == {("main", 0, 2)}
    assert heard[-1][2] == "S"
    times = {element: (started, ended) for *_, element, _, started, ended in heard}
    for path, (started, ended) in times.items():
        outer = times[path.rpartition("/")[0] or path]
        assert outer[0] <= started <= ended <= outer[1]


ELSEWHERE = """
import os
import pickle
import types
from functools import partial

import headrace

@headrace.register("Reported")
class Reported(headrace.Backend):
    max = 4

    def init(self, options, context):
        self.span = context.span

    def forward(self, batch):
        if self.span is not None:
            self.span("inside", 1.0, 2.0, f"process {os.getpid()}")
        for request in batch:
            request["result"] = request["data"] + "!"

@headrace.register("Copied")
class Copied(headrace.Backend):
    takes = 1
    builds_elsewhere = True

    def init(self, options, context):
        (self.child,) = context.children
        self.runs = []
        probe = types.SimpleNamespace(**{m: partial(self.keep, m) for m in self.child.asked})
        config = pickle.loads(pickle.dumps(self.child.config))
        seen = self.child.seen(context.instance_index)
        self.built = headrace.plugins.build(config, seen=seen, probes={"kept": lambda: probe})

    def keep(self, method, node, instance, path, *about):
        self.runs.append((method, path[len(self.child.name):], about))

    def forward(self, batch):
        outcomes = self.built.instances[0](batch)
        runs, self.runs = self.runs, []
        self.child.report(pickle.loads(pickle.dumps(runs)))
        return outcomes

    def close(self):
        self.built.close()
"""

BUILT_ELSEWHERE = [
    "S[Identity,Process[S[Reported,Identity]],Identity]",
    "S[Copied[S[Identity,Reported]]]",
    "Process[Copied[Process[Reported]]]",
]


@pytest.fixture
def elsewhere(tmp_path):
    path = tmp_path / "reported.py"
    path.write_text(ELSEWHERE, encoding="utf-8")
    return {"import": [str(path)], "max": 4}


def tree_of(expression):
    """Return the names of an expression as `describe` has them."""
    children = [tree_of(child) for phase in expression.phases for child in phase]
    return {"name": expression.name, "children": children}


@pytest.mark.parametrize("backend", BUILT_ELSEWHERE)
def test_elements_that_were_built_elsewhere_are_told_like_others(probes, elsewhere, backend):
    with piped("Elements", backend=backend, **elsewhere) as pipe:
        before = time.monotonic()
        pipe([{"data": "a"}, {"data": "b"}])
        with pytest.raises(headrace.errors.RequestsFailed):
            pipe([{"data": "a"}, {"data": 1}])
        after = time.monotonic()
        stats = pipe.stats()
    heard = probes()[-1].heard
    assert {element for _, _, element, *_ in heard} == set(paths(tree_of(headrace.parse(backend))))
    assert {(node, index, size) for node, index, _, size, *_ in heard} == {("main", 0, 2)}
    for *_, element, _, started, ended in heard:
        assert before <= started <= ended <= after
        outer = element.rpartition("/")[0]
        around = [one[-2:] for one in heard if one[2] == outer]
        assert not outer or any(first <= started and ended <= last for first, last in around)
    assert stats["nodes"]["main"]["failed"] == {"backend": 2}


def test_spans_that_were_reported_elsewhere_are_told(probes, elsewhere):
    with piped("Spans", backend="S[Identity,Process[S[Reported]]]", **elsewhere) as pipe:
        pipe({"data": "a"})
        (process,) = pipe.describe()["nodes"]["main"]["tree"]["children"][1:]
    (heard,) = probes()[-1].heard
    path, track = "S/1:Process/0:S/0:Reported", f"process {process['built']['process']}"
    assert heard == ("main", 0, path, "inside", 1.0, 2.0, track)


def test_nothing_is_measured_elsewhere_where_nobody_asks(elsewhere):
    with headrace.pipe({"backend": "Copied[Reported]", **elsewhere}) as pipe:
        pipe({"data": "a"})
        copied = internals.elements_of(pipe)
        (built,) = [one.built for one in copied.values() if type(one).__name__ == "Copied"]
        assert "forward" not in vars(built.root)


def test_that_an_element_begins_is_told_too(probes):
    with piped("Both", backend="S[Identity]") as pipe:
        pipe({"data": 1})
    began = [("main", 0, path, 1) for path in ("S", "S/0:Identity")]
    assert probes()[-1].heard == [*began, "S/0:Identity", "S"]


def test_what_no_probe_asks_for_is_not_measured(probes):
    with piped("Batches") as pipe:
        pipe({"data": "a"})
        tree = internals.elements_of(pipe)
        assert all("forward" not in vars(one) for one in tree.values())
        upper = next(one for one in tree.values() if isinstance(one, Upper))
        assert upper.span is None
        assert "elements" not in pipe.stats()["nodes"]["main"]


@pytest.mark.parametrize("probe", ["Batches", "Spans", "Instances"])
def test_the_clock_is_read_for_every_request_only_where_a_probe_hears_of_them(
    probes, probe, client
):
    read = []

    def note(frame, event, function):
        if event == "c_call" and function is time.monotonic:
            read.append(function)

    def ask():
        sys.setprofile(note)
        for _ in range(64):
            pipe({"data": "a"})
        sys.setprofile(None)

    with piped(probe) as pipe:
        client(ask).outcome()
    every = probe == "Batches"
    assert (len(read) >= 128) if every else (len(read) <= 64)


def test_a_backend_reports_spans_where_a_probe_listens(probes):
    with piped("Spans") as pipe:
        pipe({"data": "a"})
    assert probes()[-1].heard == [("main", 0, "S/1:Upper", "inside", 1.0, 2.0, "cuda:0")]


def test_instances_are_told_from_ready_to_closed(probes):
    with piped("Instances", instance_num=2, max=2):
        pass
    heard = [(index, state) for _, index, state in probes()[-1].heard]
    assert heard == [(0, "ready"), (1, "ready"), (0, "closed"), (1, "closed")]


def test_a_lost_instance_is_told(probes, until):
    with piped("Instances", backend="Lost", instance_num=2) as pipe:
        with pytest.raises(InstanceLostError):
            pipe({"data": 1})
        until(lambda: probes()[-1].heard[-1][-1] == "lost")  # which another thread may tell
        heard = probes()[-1].heard
        assert [state for *_, state in heard] == ["ready", "ready", "lost"]
    assert [state for *_, state in heard].count("closed") == 1


def test_a_probe_may_look_at_its_pipeline_and_does_not_keep_it(probes):
    pipe = piped("Starts")
    probe = probes()[-1]
    assert probe.heard == [(True, "ready")]
    assert probe.pipeline() is pipe
    gone = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert gone() is None


def test_utilisation_is_the_share_of_time_with_a_batch(monkeypatch):
    now = [100.0]

    @headrace.register("Lasts", replace=True)
    def lasts(seconds):
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with headrace.pipe({"backend": "Lasts"}) as pipe:

        def shown():
            (one,) = pipe.stats()["nodes"]["main"]["instances"]
            return one["busy_s"], one["utilisation"]

        assert shown() == (0.0, 0.0)
        for seconds in (2.0, 3.0):
            pipe({"data": seconds})
        now[0] = 110.0
        assert shown() == (5.0, 0.5)
