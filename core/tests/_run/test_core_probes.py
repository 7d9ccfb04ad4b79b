"""Probes: what hears of every batch and request, by hook, and harms none of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import pickle
import sys
import threading

import pytest
from internals import registry
from loading import problems
from sending import WAYS

import headrace
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    HeadraceError,
    InputError,
    RequestsFailed,
    SetupError,
    code_of,
)

PROBES = '''
import threading
import headrace

made = []

class Recorder:
    """Keeps what it hears, in order."""

    def __init__(self):
        self.batches, self.requests, self.closed, self.order = [], [], 0, []
        self.results = []
        made.append(self)
        self.on_batch = self.on_request = lambda *args: None

    def batch_done(self, node, instance, size, started, ended, errors):
        assert type(node) is str and type(instance) is int
        assert type(errors) is list and len(errors) == size and started <= ended
        self.batches.append((node, instance, size, errors))
        self.order.append("batch")
        self.on_batch(node, instance, size, started, ended, errors)

    def request_done(self, node, request, started, ended, error):
        assert started <= ended
        self.results.append(dict(request) if isinstance(request, dict) else request)
        self.requests.append((node, request, error))
        self.order.append("request")
        self.on_request(node, request, started, ended, error)

    def close(self):
        self.closed += 1


class Named:
    class Options(headrace.Options):
        positional = ("tag",)
        tag: str
        path: headrace.FilePath | None = None

    def __init__(self, options):
        self.options = options
        made.append(self)

    def request_done(self, node, request, started, ended, error):
        pass


class Bad:
    """Fails at everything, but for one method where it is told so."""

    raises = ValueError("no luck")
    spared = None

    def batch_done(self, *args):
        if self.spared != "batch_done":
            raise self.raises

    def request_done(self, *args):
        if self.spared != "request_done":
            raise self.raises

    def close(self):
        raise self.raises


class Unmade:
    def __init__(self):
        raise OSError("no room")

    def request_done(self, *args):
        pass


class OnlyBatches:
    def __init__(self):
        self.batches = []
        made.append(self)

    def batch_done(self, node, instance, size, started, ended, errors):
        self.batches.append((size, errors))


class Silent:
    pass


class Misspelt:
    def request_done(self, *about):
        pass

    def batch_dne(self, *about):
        pass


class Awaited:
    async def batch_ran(self, record):
        pass
'''


class Half(headrace.Backend):
    """Fails odd numbers alone; 13 fails all, 99 gives no result."""

    max = None

    def forward(self, batch):
        if any(request["data"] == 13 for request in batch):
            raise ValueError("13")
        for request in batch:
            if request["data"] != 99:
                request["result"] = request["data"]
        return [ValueError("odd") if r["data"] % 2 and r["data"] != 99 else None for r in batch]


HOOKS = """
from headrace.hookspecs import hookimpl

@hookimpl
def headrace_probes():
    names = ["Recorder", "Named", "Bad", "Unmade", "OnlyBatches", "Silent", "Misspelt", "Awaited", "Absent"]
    return {name: "hrt_probes:" + name for name in names}
"""


@pytest.fixture
def probes(site):
    """Install a plugin with probes; give the list of those that are made."""
    modules = {"hrt_probe_hooks": HOOKS, "hrt_probes": PROBES}
    site.add("headrace-watch", "[headrace.plugins]\nhooks = hrt_probe_hooks\n", modules)
    headrace.register("Half", Half)
    return lambda: sys.modules["hrt_probes"].made


def piped(config, *names):
    return headrace.pipe({**config, "probes": list(names or ["Recorder"])})


@pytest.fixture
def watched(probes):
    """Give a function that opens a pipeline to which a ``Recorder`` listens, and gives both."""

    @contextlib.contextmanager
    def opened(config):
        with piped(config) as pipe:
            (probe,) = probes()
            yield pipe, probe

    return opened


def heard(probe, node="main"):
    """Return how often each outcome was heard of: "ok" or the code of the error."""
    found = {}
    for name, _, error in probe.requests:
        if name == node:
            code = "ok" if error is None else code_of(error)
            found[code] = found.get(code, 0) + 1
    return found


def counted(pipe, node="main"):
    stats = pipe.stats()["nodes"][node]
    return {key: n for key, n in {"ok": stats["ok"], **stats["failed"]}.items() if n}


# Names.


def test_names_are_known_when_the_configuration_is_checked_and_nothing_is_made(probes):
    config = headrace.PipelineConfig.load(
        {"backend": "Identity", "global": {"probes": ["Recorder", "watch:OnlyBatches"]}}
    )
    assert probes() == []
    assert config.to_dict()["global"] == {"probes": ["Recorder", "watch:OnlyBatches"]}
    assert headrace.PipelineConfig.load(pickle.loads(pickle.dumps(config)).to_dict()) == config


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        (["Recodrer"], "unknown_probe", "Recorder"),
        (["other:Recorder"], "unknown_probe", "There are:"),
        (["Silent"], "probe", "batch_done or request_done"),
        (["Misspelt"], "contract", "nobody calls batch_dne; did you mean batch_done?"),
        (["Awaited"], "contract", "batch_ran is asynchronous"),
        (["Absent"], "plugin_load", "Absent"),
        (["Recorder[X]"], "arity", "takes nothing in [ ]"),
        (["Recorder(a=1)"], "unknown_option", "'a'"),
        (["Named"], "missing_option", "tag = ... under [global], or Named(tag=...)"),
        (["Recorder("], "syntax", ""),
        (["Recorder", "Recorder"], "twice", "twice"),
        (["(x)Recorder"], "prefix", ""),
        ([3], "type", "list of texts"),
        (3, "type", "list of texts"),
        (["Named(${NO_SUCH_NAME})"], "placeholder", "NO_SUCH_NAME"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(probes, value, code, words):
    (found,) = problems({"backend": "Identity", "probes": value})
    assert found.code == code
    assert words in found.render()
    assert found.path == "global.probes"


def test_a_well_known_probe_that_is_not_installed_names_its_distribution(probes, monkeypatch):
    monkeypatch.setattr(registry, "plugins", lambda **_: [])
    (found,) = problems({"backend": "Identity", "probes": ["Prometheus(port=9464)"]})
    assert "pip install headrace-observe" in found.hint


def test_the_nearest_name_and_broken_plugins_are_named(probes, site):
    site.add("headrace-bad", "[headrace.plugins]\nh = hrt_no_hooks\n", {"hrt_no_hooks": "1 / 0"})
    (found,) = problems({"backend": "Identity", "probes": ["Recoder"]})
    assert found.suggestion == "Recorder"
    assert "headrace-bad cannot be used: its hooks failed: ZeroDivisionError" in found.hint


def test_a_node_has_no_probes(probes):
    (found,) = problems({"a": {"backend": "Identity", "probes": ["Recorder"]}})
    assert found.code == "global_key"


def test_two_plugins_with_one_name_are_an_error_and_the_qualifier_chooses(probes, site):
    code = HOOKS.replace("hrt_probes", "hrt_more_probes")
    modules = {"hrt_more": code, "hrt_more_probes": PROBES}
    site.add("headrace-more", "[headrace.plugins]\nh = hrt_more\n", modules)
    (found,) = problems({"backend": "Identity", "probes": ["Recorder"]})
    assert found.code == "ambiguous"
    assert "headrace-more and headrace-watch" in found.message
    assert "more:Recorder or watch:Recorder" in found.hint
    with piped({"backend": "Identity"}, "more:Recorder", "watch:Recorder") as pipe:
        pipe({"data": 1})
        assert set(pipe.stats()["probes"]) == {"more:Recorder", "watch:Recorder"}
    assert len(probes()) == 1


def test_options_are_args_or_keys_of_global(probes, tmp_path):
    (tmp_path / "there.txt").write_text("x")
    path = tmp_path / "line.toml"
    path.write_text(
        'backend = "Identity"\n'
        'probes = ["Named(a)", "Named(tag=b,path=there.txt)"]\n'
        '[global]\n"Named::path" = "there.txt"\n'
    )
    config = headrace.PipelineConfig.load(path)
    with headrace.pipe(config):
        first, second = (probe.options for probe in probes())
    assert (first.tag, second.tag) == ("a", "b")
    assert first.path == second.path == tmp_path / "there.txt"
    again = headrace.PipelineConfig.load(config.to_dict(), base=tmp_path)
    assert again == config
    assert again.to_dict()["probes"][1] == "Named(tag=b,path=there.txt)"


def test_a_secret_in_the_environment_is_not_shown(probes, monkeypatch):
    monkeypatch.setenv("TAG", "secret")
    with piped({"backend": "Identity"}, "Named(${TAG})") as pipe:
        assert probes()[0].options.tag == "secret"
        assert pipe.stats()["probes"] == {"Named(${TAG})": {"errors": 0, "last": None}}


def test_explain_shows_them_and_who_brings_them(probes):
    found = headrace.explain({"backend": "Identity", "probes": ["Recorder", "Named(a)"]})
    assert found["probes"] == ["Recorder", "Named(a)"]
    watch = {"distribution": "headrace-watch", "version": "1.0", "backends": []}
    assert watch in found["asks_for"]
    assert "probes" not in headrace.explain({"backend": "Identity"})


# When they are made and closed.


def test_one_object_is_made_per_entry_and_pipeline_and_closed_with_it(probes):
    with piped({"backend": "Identity"}) as one, piped({"backend": "Identity"}) as other:
        one({"data": 1})
        first, second = probes()
        assert (len(first.requests), len(second.requests)) == (1, 0)
        one.close()
        assert (first.closed, second.closed) == (1, 0)
        one.close()
        other({"data": 1})
    assert (first.closed, second.closed) == (1, 1)


def test_a_probe_that_cannot_be_made_is_a_setup_error_and_the_others_are_closed(probes):
    with pytest.raises(SetupError, match=r"the probe Unmade of headrace-watch .* OSError: no room"):
        piped({"backend": "Identity"}, "Recorder", "Unmade")
    assert [probe.closed for probe in probes()] == [1]


def test_probes_are_closed_when_a_backend_cannot_be_built(probes):
    class Unbuilt(headrace.Backend):
        def init(self, options, context):
            raise OSError("no model")

        def forward(self, batch):
            """Never called."""

    headrace.register("Unbuilt", Unbuilt)
    with pytest.raises(SetupError):
        piped({"backend": "Unbuilt"})
    assert [probe.closed for probe in probes()] == [1]


def test_without_probes_nothing_of_them_is_there(probes):
    with headrace.pipe({"backend": "Identity", "probes": []}) as pipe:
        assert "probes" not in pipe.stats()
    assert "hrt_probes" not in sys.modules


# What they hear.


def test_a_call_is_a_batch_and_a_request(probes, shortcut):
    with piped({"backend": "Identity", "max": 4}) as pipe:
        request = {"data": 7, "request_id": "a"}
        pipe(request)
        (probe,) = probes()
        assert probe.batches == [("main", 0, 1, [None])]
        assert [(n, r is request, e) for n, r, e in probe.requests] == [("main", True, None)]
        assert probe.results == [{"data": 7, "request_id": "a", "result": 7}]
        assert probe.order == ["batch", "request"]


def test_every_way_to_ask_is_heard_of_with_its_outcome(watched, shortcut):
    with watched({"backend": "Half", "max": 4, "instance_num": 2}) as (pipe, probe):
        for number in (2, 3, 13, 99):
            raised = None
            try:
                pipe({"data": number})
            except HeadraceError as error:
                raised = error
            assert probe.requests[-1][2] is raised
            assert len(probe.requests) == len(probe.results)
        assert heard(probe) == {"ok": 1, "backend": 2, "no_result": 1}

        with pytest.raises(RequestsFailed):
            pipe([{"data": n} for n in range(6)])
        assert heard(probe) == {"ok": 4, "backend": 5, "no_result": 1}

        for future in pipe.submit([{"data": n} for n in range(6)]):
            future.exception()
        assert heard(probe) == {"ok": 7, "backend": 8, "no_result": 1}

        with pytest.raises(RequestsFailed):
            asyncio.run(pipe.call_async([{"data": n} for n in range(6)]))
        asyncio.run(pipe.call_async({"data": 2}))
        pipe({"data": 2}, timeout=60)
        assert heard(probe) == counted(pipe) == {"ok": 12, "backend": 11, "no_result": 1}
        assert sum(size for _, _, size, _ in probe.batches) == 24
        assert len(probe.batches) == pipe.stats()["nodes"]["main"]["batches"]
        failed = [e for *_, errors in probe.batches for e in errors if e is not None]
        assert len(failed) == 12
        for request in probe.results:
            assert ("result" in request) == (request["data"] % 2 == 0)


@pytest.mark.parametrize(
    "request_", ["text", None, {"no": "data"}, {"data": 1, "request_size": 0}], ids=repr
)
@pytest.mark.parametrize("way", ["call", "submit", "list"])
def test_what_is_refused_on_entry_is_heard_of(watched, request_, way):
    with watched({"backend": "Identity"}) as (pipe, probe):
        with pytest.raises(InputError):
            WAYS[way](pipe, request_)
        assert heard(probe) == counted(pipe) == {"input": 1}
        assert probe.requests[0][1] is request_
        assert probe.batches == []
        assert pipe.stats()["probes"]["Recorder"]["errors"] == 0


def test_a_deadline_is_heard_of_once_waiting_or_running(watched, gate, client, expire):
    with watched({"backend": "Gate", "max": 1}) as (pipe, probe):
        running = gate.entered(client(pipe, {"data": 1}, timeout=60))
        with pytest.raises(DeadlineExceededError):
            pipe({"data": 2}, timeout=0.01)
        assert len(expire(pipe, 1)) == 1
        with pytest.raises(DeadlineExceededError) as caught:
            running.outcome()
        assert caught.value.abandoned
        assert probe.batches == []
        gate.open()
    assert heard(probe) == {"deadline": 2}
    assert [size for _, _, size, _ in probe.batches] == [1]


def test_a_cancelled_request_is_heard_of(watched, gate, client, waiting):
    with watched({"backend": "Gate", "max": 1}) as (pipe, probe):
        gate.entered(client(pipe, {"data": 1}))
        future = pipe.submit({"data": 2})
        assert future.cancel()
        assert future.cancel()
        ((_, request, error),) = probe.requests
        assert request == {"data": 2}
        assert isinstance(error, concurrent.futures.CancelledError)

        async def give_up():
            task = asyncio.ensure_future(pipe.call_async({"data": 3}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(give_up())
        gate.open()
    assert heard(probe) == {"cancelled": 2, "ok": 1}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_dict_that_a_cancel_frees_is_not_changed_any_more(probes, gate, waiting, nodes):
    main = {"backend": "Gate", "max": 2}
    other = {"backend": "Identity"}
    config = main if nodes == 1 else {"main": {**main, "next": "other"}, "other": other}
    begun, go_on = threading.Event(), threading.Event()

    class Slow(dict):
        """Takes its time when it gets its ``data`` back."""

        def __setitem__(self, key, value):
            if key == "data" and not begun.is_set():
                begun.set()
                assert go_on.wait(60)
            super().__setitem__(key, value)

    given = {"probes": ["Recorder"]}
    with headrace.pipe({**config, **(given if nodes == 1 else {"global": given})}) as pipe:
        before = gate.entered(pipe.submit({"data": 0}))
        requests = [Slow(data=1), {"data": 2}]

        async def cancelled(request):
            try:
                await pipe.call_async(request)
            except asyncio.CancelledError as error:
                return error

        async def give_up():
            tasks = [asyncio.ensure_future(cancelled(request)) for request in requests]
            await asyncio.to_thread(waiting, pipe, 2)  # which will run in one batch
            gate.open()
            await asyncio.to_thread(begun.wait, 60)
            for task in tasks:  # both have run, and the dict of the first is about to be changed
                task.cancel()
            return await asyncio.gather(*tasks)

        errors = asyncio.run(give_up())
        free = [r for r, error in zip(requests, errors, strict=True) if not error.abandoned]
        for request in free:
            request["data"] = "mine"
        assert gate.batches == [[0], [1, 2]]
        go_on.set()  # to close waits until the first has its dict back
        assert before.result(60)
    assert [request["data"] for request in free] == ["mine"] * len(free)
    assert not any(request is requests[0] for request in free)


def test_a_cancelled_task_whose_request_runs_is_heard_of_once(watched, gate):
    with watched({"backend": "Gate", "max": 1}) as (pipe, probe):

        async def give_up():
            task = asyncio.ensure_future(pipe.call_async({"data": 3}))
            await asyncio.to_thread(gate.wait_entered)
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(give_up())
        assert heard(probe) == {"cancelled": 1}
        gate.open()
    assert heard(probe) == {"cancelled": 1}
    assert len(probe.batches) == 1


def test_close_without_drain_is_heard_of_before_the_probe_is_closed(probes, gate, client, waiting):
    pipe = piped({"backend": "Gate", "max": 1})
    (probe,) = probes()
    running = gate.entered(client(pipe, {"data": 1}))
    futures = pipe.submit([{"data": 2}, {"data": 3}])
    closing = client(pipe.close, drain=False)
    for future in futures:
        with pytest.raises(ClosedError):
            future.result(60)
    gate.open()
    closing.outcome()
    running.outcome()
    assert heard(probe) == {"closed": 2, "ok": 1}
    assert probe.closed == 1


def test_a_hung_batch_that_outlives_the_pipeline_is_not_heard_of(probes, gate, client):
    pipe = piped({"backend": "OwnGate", "max": 1})
    (probe,) = probes()
    future = gate.entered(pipe.submit({"data": 1}))
    pipe.close(timeout=0)
    with pytest.raises(ClosedError):
        future.result(60)
    assert heard(probe) == {"closed": 1}
    assert probe.closed == 1
    gate.open()


@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
def test_batches_of_several_are_heard_of_with_their_size_and_errors(watched, gate, client, backend):
    with watched({"backend": backend, "max": 4, "min": 1, "pad": True}) as (pipe, probe):
        gate.raises = {"bad": ValueError("bad")}
        first = gate.entered(pipe.submit({"data": 0}))
        good = pipe.submit([{"data": n} for n in range(4)])
        bad = pipe.submit([{"data": "bad"}, {"data": 5}])
        gate.open()
        for future in (first, *good, *bad):
            future.exception(60)
        sizes = [(size, [type(e).__name__ for e in errors]) for *_, size, errors in probe.batches]
        nothing = ["NoneType"]
        assert sizes == [(1, nothing), (4, nothing * 4), (2, ["BackendError"] * 2)]


def test_copies_that_pad_adds_do_not_count(probes):
    with piped({"backend": "Half", "min": 4, "max": 4, "pad": True}) as pipe:
        pipe({"data": 2})
        assert probes()[0].batches == [("main", 0, 1, [None])]


# Graphs.

DIAMOND = {
    "a": {"backend": "Identity", "next": "b,c"},
    "b": {"backend": "Half", "next": "d"},
    "c": {"backend": "Identity", "next": "d"},
    "d": {"backend": "Identity", "map": "b[result:data],c[result:other]"},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_node_of_a_graph_is_heard_of(probes, way, shortcut):
    with headrace.pipe({**DIAMOND, "global": {"probes": ["Recorder"]}}) as pipe:
        (probe,) = probes()
        for number in (2, 4, 3):
            request = {"data": number}
            try:
                WAYS[way](pipe, request)
            except HeadraceError:
                assert number == 3
        pipe.close()
        for node in "abcd":
            assert heard(probe, node) == counted(pipe, node)
        assert heard(probe, "a") == {"ok": 3}
        assert heard(probe, "b") == {"ok": 2, "backend": 1}
        assert heard(probe, "d") == {"ok": 2}


@pytest.mark.parametrize("way", ["call", "submit"])
def test_elements_of_each_are_requests_of_their_node(watched, way, shortcut):
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Half", "each": "boxes", "each_errors": "none", "max": 4},
    }
    with watched(config) as (pipe, probe):
        request = {"data": 0, "boxes": [2, 3, 4]}
        pipe(request) if way == "call" else pipe.submit(request).result(60)
        assert request["result"] == [2, None, 4]
        assert heard(probe, "a") == {"ok": 1}
        assert heard(probe, "b") == counted(pipe, "b") == {"ok": 2, "backend": 1}
        request = {"data": 0, "boxes": [2], "request_size": 1}
        pipe(request)
        assert heard(probe, "b") == counted(pipe, "b") == {"ok": 3, "backend": 1}


def test_a_weight_that_a_backend_spoils_is_heard_of_at_the_next_node(watched):
    class Spoils(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request.update(result=1, request_size="much")

    headrace.register("Spoils", Spoils)
    config = {
        "a": {"backend": "Spoils", "next": "b"},
        "b": {"backend": "Identity"},
    }
    with watched(config) as (pipe, probe):
        for ask in (pipe, lambda request: pipe.submit(request).result(60)):
            with pytest.raises(InputError):
                ask({"data": 1})
        assert heard(probe, "b") == counted(pipe, "b") == {"input": 2}


def test_an_alias_and_a_node_that_is_called_inside_are_heard_of_beside_the_caller(watched):
    config = {
        "word": {"backend": "Identity"},
        "alias": {"backend": "Forward[node.word]"},
        "inner": {"backend": "S[Identity,Forward[node.word]]"},
    }
    with watched(config) as (pipe, probe):
        pipe({"data": 1, "node_name": "alias"})
        assert [node for node, *_ in probe.requests] == ["word", "alias"]
        pipe({"data": 1, "node_name": "word"})
        pipe({"data": 1, "node_name": "inner"})
        assert [node for node, *_ in probe.requests][2:] == ["word", "word", "inner"]


# Probes that misbehave.


def test_a_probe_that_fails_harms_no_request_and_is_counted_and_logged_once(
    probes, caplog, shortcut
):
    with (
        caplog.at_level(logging.WARNING, "headrace.probes"),
        piped({"backend": "Half"}, "Bad", "Recorder") as pipe,
    ):
        for ask in (pipe, lambda r: pipe.submit(r).result(60), lambda r: pipe(r, timeout=60)):
            request = {"data": 2}
            ask(request)
            assert request["result"] == 2
        with pytest.raises(HeadraceError, match="odd"):
            pipe({"data": 3})
        assert pipe.stats()["probes"] == {
            "Bad": {"errors": 8, "last": "ValueError: no luck"},
            "Recorder": {"errors": 0, "last": None},
        }
        assert heard(probes()[0]) == {"ok": 3, "backend": 1}
        pipe.close()
        assert pipe.stats()["probes"]["Bad"]["errors"] == 9
    (record,) = [r for r in caplog.records if r.name == "headrace.probes"]
    assert "the probe Bad failed: ValueError: no luck" in record.getMessage()
    assert record.exc_info is not None


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error", [SystemExit(3), GeneratorExit(), UnprintableError()], ids=["exit", "generator", "text"]
)
@pytest.mark.parametrize("way", ["call", "submit", "timeout"])
def test_whatever_a_probe_raises_is_only_counted(probes, error, way):
    with piped({"backend": "Identity"}, "Bad") as pipe:
        sys.modules["hrt_probes"].Bad.raises = error
        request = {"data": 1}
        WAYS[way](pipe, request)
        assert request["result"] == 1
        assert pipe.stats()["probes"]["Bad"]["errors"] == 2
        assert pipe({"data": 2})["result"] == 2


@pytest.mark.parametrize("method", ["batch_done", "request_done"])
def test_ctrl_c_in_a_probe_that_the_main_thread_calls_reaches_it_and_gives_everything_back(
    probes, shortcut, method
):
    with piped({"backend": "Identity"}, "Bad", "Recorder") as pipe:
        bad = sys.modules["hrt_probes"].Bad
        bad.raises = KeyboardInterrupt()
        bad.spared = "request_done" if method == "batch_done" else "batch_done"
        if shortcut:
            with pytest.raises(KeyboardInterrupt):
                pipe({"data": 1})
        else:  # another thread calls the probe: that counts it, and goes on
            pipe({"data": 1})
            assert pipe.stats()["probes"]["Bad"]["errors"] == 1
        bad.raises = ValueError()
        assert pipe({"data": 2})["result"] == 2
        assert pipe.submit({"data": 3}).result(60)["result"] == 3
        stats = pipe.stats()["nodes"]["main"]
        assert stats["waiting"] == 0
        assert not any(instance["busy"] for instance in stats["instances"])


@pytest.mark.parametrize("way", ["call", "submit", "list", "cancel"])
def test_a_probe_may_ask_for_stats(watched, way, shortcut, gate, client):
    with watched({"backend": "Gate", "max": 1}) as (pipe, probe):
        states = []
        probe.on_request = probe.on_batch = lambda *_: states.append(pipe.stats()["state"])
        gate.shut = way == "cancel"
        if way == "cancel":
            gate.entered(client(pipe, {"data": 1}))
            assert pipe.submit({"data": 2}).cancel()
            assert states == ["ready"]
            gate.open()
        elif way == "submit":
            pipe.submit({"data": 1}).result(60)
        else:
            pipe({"data": 1} if way == "call" else [{"data": 1}, {"data": 2}])
        assert states
        assert pipe.stats()["probes"]["Recorder"]["errors"] == 0


@pytest.mark.parametrize("method", ["on_request", "on_batch"])
@pytest.mark.parametrize("way", ["call", "submit", "timeout"])
def test_close_in_a_probe_comes_back_at_once(probes, way, shortcut, client, method):
    pipe = piped({"backend": "Identity"})
    (probe,) = probes()
    closed = []

    def close(*_):
        pipe.close()
        closed.append(pipe.stats()["state"])

    setattr(probe, method, close)
    assert client(WAYS[way], pipe, {"data": 1}).outcome()["result"] == 1
    assert closed == ["closing"]


def test_a_probe_may_send_requests_to_its_own_pipeline(watched, until):
    with watched({"backend": "Identity"}) as (pipe, probe):
        futures = []

        def once(node, request, started, ended, error):
            if not futures:
                futures.append(None)
                futures.append(pipe.submit({"data": "inner"}))

        probe.on_request = once
        pipe({"data": "outer"})
        assert futures[1].result(60)["result"] == "inner"
        assert pipe.stats()["probes"]["Recorder"]["errors"] == 0


def test_a_slow_probe_holds_one_answer_and_instance_and_not_the_others(watched):
    with watched({"backend": "Identity", "instance_num": 2}) as (pipe, probe):
        inside, leave = threading.Event(), threading.Event()

        def slow(node, request, started, ended, error):
            if request["data"] == "slow":
                inside.set()
                assert leave.wait(60)

        probe.on_request = slow
        future = pipe.submit({"data": "slow"})
        assert inside.wait(60)
        assert not future.done()
        assert pipe.submit({"data": "quick"}).result(60)["result"] == "quick"
        leave.set()
        assert future.result(60)["result"] == "slow"
        assert pipe.stats()["probes"]["Recorder"]["errors"] == 0
