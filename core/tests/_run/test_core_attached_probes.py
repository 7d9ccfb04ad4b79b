"""Probes that are attached to a pipeline which runs, and taken away again: nothing is lost on the way."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import sys
import threading
from contextlib import ExitStack

import pytest

import headrace
from headrace.errors import ClosedError, InputError, RequestsFailed
from headrace.hookspecs import attached


class Recorder:
    """Keeps what it hears."""

    def __init__(self):
        self.requests, self.batches, self.elements, self.spans = [], [], [], []
        self.instances, self.started, self.closed = [], 0, 0

    def pipeline_started(self, pipeline):
        self.started += 1

    def instance_changed(self, *args):
        self.instances.append(args)

    def request_done(self, node, request, started, ended, error):
        assert started <= ended
        self.requests.append((node, request["data"], error is None))

    def batch_ran(self, record):
        self.batches.append([one.request["data"] for one in record.requests])

    def element_done(self, node, instance, element, *_):
        self.elements.append((node, instance, element))

    def span_done(self, *args):
        self.spans.append(args)

    def close(self):
        self.closed += 1


def heard(probe, node="main"):
    return sorted(data for at, data, _ in probe.requests if at == node)


def is_plain(pipe):
    """Tell whether a pipeline knows of no probe."""
    return "probes" not in pipe.stats()


def test_what_is_asked_within_the_block_is_heard_whichever_way(shortcut):
    def ask_in_every_way(pipe, first):
        pipe({"data": first})
        pipe([{"data": first + 1}, {"data": first + 2}])
        pipe.submit({"data": first + 3}).result(60)
        pipe({"data": first + 4}, timeout=60)
        asyncio.run(pipe.call_async({"data": first + 5}))
        thread = threading.Thread(target=pipe, args=({"data": first + 6},))
        thread.start()
        thread.join()

    probe = Recorder()
    with headrace.pipe({"backend": "S[Identity,Identity]", "max": 4}) as pipe:
        ask_in_every_way(pipe, 0)
        with attached(pipe, probe):
            ask_in_every_way(pipe, 10)
            assert pipe.stats()["probes"] == {"Recorder": {"errors": 0, "last": None}}
        assert is_plain(pipe)
        ask_in_every_way(pipe, 20)
        assert "probes" not in pipe.stats()
        assert pipe.stats()["nodes"]["main"]["ok"] == 21
    assert heard(probe) == list(range(10, 17))
    assert sorted(data for batch in probe.batches for data in batch) == list(range(10, 17))
    assert probe.elements == []  # nobody asked for them when it was built
    assert (probe.started, probe.closed) == (1, 0)
    assert probe.instances == [("main", 0, "ready")]


class Reentrant(Recorder):
    """A probe that signal handlers may call in the midst of its methods."""

    reentrant = True


class Started:
    """A probe that is told of the pipeline alone."""

    def pipeline_started(self, pipeline):
        pass


@pytest.mark.parametrize("probe", [Recorder, Reentrant])
def test_a_probe_never_keeps_the_main_thread_from_its_own_request(takes_turns, probe):
    idents = []

    def note(data):
        idents.append(threading.get_ident())
        return data

    headrace.register("AttachedNote", note, replace=True)
    with headrace.pipe({"backend": "AttachedNote"}) as pipe:
        pipe({"data": 0})
        with attached(pipe, probe()):
            pipe({"data": 1})
            with attached(pipe, Started()):
                pipe({"data": 2})  # it hears of no request
            with attached(pipe, Recorder()):
                pipe({"data": 3})
        pipe({"data": 4})
    assert {*idents} == {threading.get_ident()}


@pytest.mark.parametrize("backend", ["Identity", "BackgroundThread[Identity]"])
@pytest.mark.parametrize("method", ["batch_done", "request_done", "batch_ran"])
@pytest.mark.usefixtures("takes_turns")
def test_a_signal_handler_may_call_in_the_midst_of_a_reentrant_probe(backend, method):
    class Signals(Reentrant):
        def _signal(self, *_):
            if threading.get_ident() == threading.main_thread().ident and handled:
                handled.pop()
                signal.raise_signal(signal.SIGUSR1)

    def handler(*_):
        answers.append(pipe({"data": 2})["result"])
        answers.extend(one["result"] for one in pipe([{"data": 3}, {"data": 4}]))

    setattr(Signals, method, Signals._signal)
    handled, answers = [None], []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        config = {"backend": backend, "max": 4, "instance_num": 2}  # one is held meanwhile
        with headrace.pipe(config) as pipe, attached(pipe, Signals()):
            answers.append(pipe({"data": 1})["result"])
            stats = pipe.stats()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == ([2, 3, 4, 1] if backend == "Identity" else [1])  # else a worker calls it
    assert stats["nodes"]["main"]["ok"] == len(answers)
    assert stats["probes"] == {"Signals": {"errors": 0, "last": None}}


@pytest.mark.parametrize("asks", [{"data": 1}, [{"data": 1}, {"data": 2}]], ids=["one", "list"])
@pytest.mark.parametrize("method", ["batch_done", "request_done", "batch_ran"])
def test_ctrl_c_in_a_reentrant_probe_gives_everything_back(method, asks):
    class Hit(Reentrant):
        def _hit(self, *_):
            if hits:
                raise hits.pop()

    setattr(Hit, method, Hit._hit)
    hits = [KeyboardInterrupt()]
    with headrace.pipe({"backend": "Identity", "max": 4}) as pipe:
        with attached(pipe, Hit()):
            if isinstance(asks, dict):
                with pytest.raises(KeyboardInterrupt):
                    pipe(asks)
            else:  # another thread calls the probe: that counts it, and goes on
                pipe(asks)
                assert pipe.stats()["probes"]["Hit"]["errors"] == 1
            assert pipe({"data": 3})["result"] == 3
        assert pipe.submit({"data": 4}).result(60)["result"] == 4
        stats = pipe.stats()["nodes"]["main"]
        assert stats["waiting"] == 0
        assert not any(instance["busy"] for instance in stats["instances"])


@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
@pytest.mark.parametrize("when", ["comes", "goes"])
def test_whoever_waits_while_a_probe_comes_or_goes_is_answered(gate, client, until, backend, when):
    probe = Recorder()
    with headrace.pipe({"backend": backend, "max": 1}) as pipe, ExitStack() as stack:
        if when == "goes":
            stack.enter_context(attached(pipe, probe))
        running = client(pipe, {"data": 0})
        gate.wait_entered()
        waiting = [client(pipe, {"data": k}) for k in (1, 2)]
        waiting += [client(pipe, [{"data": 3}, {"data": 4}]), client(pipe, {"data": 5}, timeout=60)]
        futures = pipe.submit([{"data": 6}, {"data": 7}])
        until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 7)
        if when == "goes":
            stack.close()
        else:
            stack.enter_context(attached(pipe, probe))
        gate.open()
        for one in (running, *waiting):
            one.outcome()
        assert [future.result(60)["result"] for future in futures] == [6, 7]
        stack.close()
        assert pipe.stats()["nodes"]["main"]["ok"] == 8
        assert is_plain(pipe)
    if when == "comes":  # the one that ran before may be heard of, or not
        assert set(heard(probe)) >= set(range(1, 8))
    else:
        assert heard(probe) == []


def test_requests_on_a_chain_that_workers_take_on_are_answered(gate, client, until):
    config = {"a": {"backend": "OwnGate", "next": "b"}, "b": {"backend": "OwnGate"}}
    probe = Recorder()
    with headrace.pipe(config) as pipe:
        first = client(pipe, {"data": 1})
        gate.wait_entered()
        second = client(pipe, {"data": 2})
        until(lambda: pipe.stats()["nodes"]["a"]["waiting"] == 1)
        with attached(pipe, probe):
            gate.open()
            assert first.outcome()["result"] == 1
            assert second.outcome()["result"] == 2
            assert set(heard(probe, "a")) >= {2}
            assert heard(probe, "b") == [1, 2]
        assert is_plain(pipe)


@pytest.mark.slow
def test_nothing_is_lost_while_probes_come_and_go_under_load(shortcut):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    wrong, stop = [], threading.Event()

    def ask(k):
        number = 0
        while not stop.is_set():
            number += 1
            one = {"data": (k, number)}
            if number % 5 == 0:
                pipe.submit(one).result(60)
            elif number % 3 == 0:
                pipe([one, {"data": (k, number)}])
            else:
                pipe(one)
            if one["result"] != (k, number):
                wrong.append(one)

    config = {
        "a": {"backend": "S[Identity,Identity]", "max": 4, "instance_num": 2, "next": "b"},
        "b": {"backend": "Identity", "max": 2},
    }
    try:
        with headrace.pipe(config) as pipe:
            threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(150):
                probe, other = Recorder(), Recorder()
                with attached(pipe, probe), attached(pipe, other):
                    pipe({"data": "mine"})
                assert heard_of(probe, "mine") == heard_of(other, "mine") == ["a", "b"]
            stop.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            stats = pipe.stats()["nodes"]["a"]
            assert stats["ok"] == stats["submitted"]
            assert is_plain(pipe)
            assert not wrong
    finally:
        sys.setswitchinterval(interval)
        stop.set()


def heard_of(probe, data):
    return [node for node, one, _ in probe.requests if one == data]


def test_probes_of_one_class_have_names_of_their_own_and_the_configured_one_stays(site):
    hooks = (
        "from headrace.hookspecs import hookimpl\n@hookimpl\ndef headrace_probes():\n"
        "    return {'Recorder': 'hrt_attached:Recorder'}\n"
    )
    module = (
        "made = []\nclass Recorder:\n    def __init__(self):\n        self.heard = []\n"
        "        made.append(self)\n    def request_done(self, node, request, *_):\n"
        "        self.heard.append(request['data'])\n    def span_done(self, *_):\n        pass\n"
        "    element_done = span_done\n"
    )
    modules = {"hrt_attached_hooks": hooks, "hrt_attached": module}
    site.add("headrace-attached", "[headrace.plugins]\nhooks = hrt_attached_hooks\n", modules)

    class Spanned(headrace.Backend):
        def init(self, options, context):
            self.span = context.span

        def forward(self, batch):
            if self.span is not None:
                self.span("inside", 1.0, 2.0, "cuda:0")
            for request in batch:
                request["result"] = request["data"]

    headrace.register("AttachedSpanned", Spanned, replace=True)
    probe = Recorder()
    with headrace.pipe({"backend": "S[AttachedSpanned]", "probes": ["Recorder"]}) as pipe:
        with attached(pipe, probe), attached(pipe, Recorder()):
            pipe({"data": 1})
            assert list(pipe.stats()["probes"]) == ["Recorder", "Recorder 2", "Recorder 3"]
        pipe({"data": 2})
        assert list(pipe.stats()["probes"]) == ["Recorder"]
    assert sys.modules["hrt_attached"].made[-1].heard == [1, 2]
    assert heard(probe) == [1]
    # The configured probe asked for both when the pipeline was built.
    assert [element for *_, element in probe.elements] == ["S/0:AttachedSpanned", "S"]
    assert probe.spans == [("main", 0, "S/0:AttachedSpanned", "inside", 1.0, 2.0, "cuda:0")]


def test_an_error_in_the_block_takes_the_probe_away():
    with headrace.pipe({"backend": "Identity"}) as pipe:
        with pytest.raises(RequestsFailed), attached(pipe, Recorder()):
            pipe([{"none": 1}])
        assert is_plain(pipe)


def test_a_pipeline_that_is_closed_within_the_block_closes_the_probe():
    probe = Recorder()
    pipe = headrace.pipe({"backend": "Identity"})
    with attached(pipe, probe):
        pipe.close()
        assert probe.closed == 1
    assert probe.closed == 1
    assert [state for *_, state in probe.instances] == ["ready", "closed"]
    with pytest.raises(ClosedError), attached(pipe, probe):
        pass


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (object(), "object is no probe: it has no batch_done or request_done"),
        (type("Late", (), {"request_ended": print})(), "Late is no probe"),
        (type("Count", (), {"batch_done": print}), r"a probe is an object: attached\(pipe, Count"),
    ],
    ids=["object", "misspelt", "class"],
)
def test_what_would_hear_of_nothing_is_refused(probe, message):
    with headrace.pipe({"backend": "Identity"}) as pipe:
        with pytest.raises(TypeError, match=message), attached(pipe, probe):
            pass
        assert pipe({"data": 1})["result"] == 1


NAME = contextvars.ContextVar("NAME", default="nobody")


class Entrances:
    """Notes who sends each request, and fails for one."""

    def __init__(self):
        self.seen = []

    def request_entered(self, request):
        self.seen.append((request["data"], NAME.get(), threading.current_thread()))
        if request["data"] == "odd":
            raise ValueError("a probe that fails")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_probe_hears_of_each_request_once_where_its_caller_is(nodes):
    config = {"a": {"backend": "Identity"}}
    if nodes == 2:
        config = {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "Identity"}}
    probe, here = Entrances(), threading.current_thread()

    async def awaited():
        NAME.set("task")
        await pipe.call_async({"data": 5})

    with headrace.pipe(config) as pipe, attached(pipe, probe):
        pipe({"data": 1})
        contextvars.copy_context().run(lambda: (NAME.set("caller"), pipe({"data": 2})))
        pipe([{"data": 3}, {"data": 4}])
        asyncio.run(awaited())
        pipe.submit({"data": 6}).result()
        assert pipe({"data": "odd"})["result"] == "odd"
        assert pipe.stats()["probes"]["Entrances"]["errors"] == 1
        with pytest.raises(InputError):
            pipe({})
    names = ["nobody", "caller", "nobody", "nobody", "task", "nobody", "nobody"]
    assert probe.seen == [
        (data, name, here) for data, name in zip([1, 2, 3, 4, 5, 6, "odd"], names, strict=True)
    ]
