"""The trace against the rules of the Trace Event Format, and what is in it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from processes import run_process

import headrace
import headrace_observe
from headrace.errors import (
    ClosedError,
    ConfigError,
    InputError,
    MissingDependencyError,
    RequestsFailed,
    SetupError,
)
from headrace.hookspecs import BatchRecord, BatchRequest
from headrace_observe.probes.background import WorkerThread
from headrace_observe.probes.recording import Recording
from headrace_observe.probes.trace_events import (
    BatchHeard,
    EventMaker,
    InsideHeard,
    RequestHeard,
)

HERE = Path(__file__).parent


class Picky(headrace.Backend):
    max = 8

    def forward(self, batch):
        outcomes = []
        for request in batch:
            bad = request["data"] == "bad"
            outcomes.append(InputError("secret words") if bad else None)
            if not bad:
                request["result"] = request["data"]
        return outcomes


class Device(headrace.Backend):
    max = 8

    def init(self, options, context):
        self.span = context.span

    def forward(self, batch):
        started = time.monotonic()
        for request in batch:
            request["result"] = request["data"]
        if self.span is not None:
            self.span("computation", started, time.monotonic(), "cuda:0")


for backend in (Picky, Device):
    headrace.register(f"Trace{backend.__name__}", backend, replace=True)


def checked(path):
    """Read a trace by the rules of the format; give its events without metadata."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    named, events = {}, []
    for event in found["traceEvents"]:
        if event["ph"] == "M":
            named[event["name"], event["pid"], event["tid"]] = event["args"]["name"]
        else:
            events.append(event)
    events.sort(
        key=lambda event: event["ts"]
    )  # as each reader does, which keeps the order of equal times
    tracks, ends = {}, {}
    for event in events:
        assert event["ph"] in "Xsf"
        assert event["ts"] >= 0
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            assert (event["id"], event["ph"]) not in ends
            assert event["ph"] == "s" or (event["id"], "s") in ends, (
                "an arrow begins before it ends"
            )
            ends[event["id"], event["ph"]] = event
    for slices in tracks.values():
        open_until = []
        for event in slices:  # in order: the outer one of two that begin together first
            start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], "slices of a track nest"
            open_until.append(end)
    for (number, phase), event in ends.items():
        other = ends[number, "f" if phase == "s" else "s"]
        assert ends[number, "s"]["ts"] <= ends[number, "f"]["ts"]
        assert (event["cat"], event["name"]) == (other["cat"], other["name"])
        category = "request" if phase == "s" else "batch"
        inside = [
            one
            for one in tracks[event["pid"], event["tid"]]
            if one["cat"] == category and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
        ]
        assert inside, "an arrow begins in a request and ends in a batch"
    return events


def ns(us):
    return round(us * 1000)


def of(events, category):
    return [event for event in events if event.get("cat") == category]


def traced(path, config, **options):
    texts = "".join(f",{key}={json.dumps(value)}" for key, value in options.items())
    return headrace.pipe({**config, "probes": [f'Trace("{path}"{texts})']})


def test_requests_batches_elements_and_arrows(tmp_path):
    path = tmp_path / "trace.json"
    config = {"backend": "S[TraceDevice,TracePicky]", "max": 4, "instance_num": 2}
    with traced(path, config) as pipe:
        pipe({"data": 1})
        for future in pipe.submit([{"data": k} for k in range(20)]):
            future.result()
        with pytest.raises(InputError):
            pipe({"data": "bad"})
        with pytest.raises(InputError):
            pipe({"no": "data"})
        batches = pipe.stats()["nodes"]["main"]["batches"]
    events = checked(path)
    requests = of(events, "request")
    assert len(requests) == 23
    assert len(of(events, "batch")) == batches
    assert sum(batch["args"]["size"] for batch in of(events, "batch")) == 22
    assert len([e for e in events if e["ph"] == "s"]) == 22
    outcomes = [request["args"]["outcome"] for request in requests]
    assert outcomes.count("ok") == 21
    assert outcomes.count("input") == 2
    assert [r["args"]["batch"] for r in requests].count(None) == 1
    paths = {event["args"]["element"] for event in of(events, "element")}
    assert paths == {"S", "S/0:TraceDevice", "S/1:TracePicky"}
    by_number = {batch["args"]["batch"]: batch for batch in of(events, "batch")}
    for inner in [*of(events, "element"), *of(events, "device")]:
        batch = by_number[inner["args"]["batch"]]
        assert batch["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= batch["ts"] + batch["dur"] + 0.001
    assert len(of(events, "device")) == batches
    text = path.read_text(encoding="utf-8")
    assert "secret" not in text


def test_nodes_of_a_graph_have_processes_of_their_own_and_background_threads_tracks(tmp_path):
    path = tmp_path / "trace.json"
    config = {
        "global": {"probes": [f'Trace("{path}")']},
        "a": {"backend": "S[Identity,BackgroundThread[TraceDevice]]", "next": "b", "max": 4},
        "b": {"backend": "BackgroundThread[TracePicky]", "max": 4},
    }
    with headrace.pipe(config) as pipe:
        pipe([{"data": k} for k in range(9)])
    events = checked(path)
    names = [
        event["args"]["name"]
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert sorted(names) == ["devices", "requests of a", "requests of b", "threads"]
    assert len(of(events, "request")) == 18
    elements = of(events, "element")
    tracks = {
        name: {e["tid"] for e in elements if e["name"] == name} for name in ("S", "TraceDevice")
    }
    assert tracks["S"].isdisjoint(tracks["TraceDevice"])


def test_any_pipeline_is_traced_for_a_while(tmp_path):
    path, again = tmp_path / "trace.json", tmp_path / "again.json"
    with headrace.pipe({"backend": "S[Identity,TraceDevice]", "max": 4}) as pipe:
        pipe({"data": 1})
        with headrace_observe.trace(pipe, path):
            pipe({"data": 2})
            with headrace_observe.trace(pipe, again, sample=1.0, max_bytes=200_000):
                pipe([{"data": 3}, {"data": 4}])
            assert len(of(checked(again), "request")) == 2
            pipe.submit({"data": 5}).result()
        pipe({"data": 6})
        events = checked(path)
        assert len(of(events, "request")) == 4
        assert len([e for e in events if e["ph"] == "s"]) == 4
        assert of(events, "element") == of(events, "device") == []  # nobody asked when it was built
        assert "probes" not in pipe.stats()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["again.json", "trace.json"]


def test_a_probe_without_a_path_lets_elements_and_devices_be_seen_in_a_trace_for_a_while(tmp_path):
    path = tmp_path / "trace.json"
    with headrace.pipe({"backend": "S[TraceDevice]", "probes": ["Trace"]}) as pipe:
        with headrace_observe.trace(pipe, path):
            pipe({"data": 1})
        assert pipe.stats()["probes"] == {"Trace": {"errors": 0, "last": None}}
    events = checked(path)
    assert len(of(events, "device")) == 1
    assert [event["args"]["element"] for event in of(events, "element")] == ["S", "S/0:TraceDevice"]


def test_a_trace_is_whole_after_an_error_and_after_the_end_of_the_pipeline(tmp_path):
    path = tmp_path / "trace.json"
    with headrace.pipe({"backend": "Identity"}) as pipe:
        with pytest.raises(InputError), headrace_observe.trace(pipe, path):
            pipe({"no": "data"})
        assert len(of(checked(path), "request")) == 1
    with headrace.pipe({"backend": "Identity"}) as pipe, headrace_observe.trace(pipe, path):
        pipe([{"data": 1}, {"data": 2}])
        pipe.close()
        assert len(of(checked(path), "request")) == 2
    with pytest.raises(ClosedError), headrace_observe.trace(pipe, path):
        pass


@pytest.mark.parametrize("wrong", [{"sample": 0}, {"sample": 1.5}, {"max_bytes": 10}], ids=str)
def test_a_trace_for_a_while_refuses_options_out_of_range(tmp_path, wrong):
    with headrace.pipe({"backend": "Identity"}) as pipe:
        tracing = headrace_observe.trace(pipe, tmp_path / "t.json", **wrong)
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tracing.__enter__()
        with pytest.raises(SetupError, match="cannot be written"):
            headrace_observe.trace(pipe, tmp_path / "gone" / "t.json").__enter__()
    with pytest.raises(TypeError, match=r"as headrace\.pipe returns it, got dict"):
        headrace_observe.trace({"backend": "Identity"}, tmp_path / "t.json").__enter__()
    assert list(tmp_path.iterdir()) == []


def test_beyond_max_bytes_the_oldest_go_and_what_is_left_keeps_the_rules(tmp_path):
    path = tmp_path / "trace.json"
    with traced(path, {"backend": "S[Identity,Identity]", "max": 4}, max_bytes=100_000) as pipe:
        for _ in range(60):
            pipe([{"data": k} for k in range(20)])
    assert path.stat().st_size <= 100_000
    events = checked(path)
    requests = of(events, "request")
    assert 50 < len(requests) < 1200
    assert len([e for e in events if e["ph"] == "s"]) == len(requests)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_a_sample_is_a_share_of_the_requests_each_with_its_batch(tmp_path):
    path, requests = tmp_path / "trace.json", 600
    with traced(path, {"backend": "S[TracePicky]", "max": 4}, sample=0.25) as pipe:
        for k in range(requests // 2):
            with suppress(InputError):
                pipe({"data": "bad" if k % 3 else k})
        with suppress(RequestsFailed):
            pipe([{"data": "bad" if k % 3 else k} for k in range(requests // 2)])
    events = checked(path)
    # 0.25 of 600 are 150, with a standard deviation of 11.
    assert 80 < len(of(events, "request")) < 220
    assert len(of(events, "element")) == 2 * len(of(events, "batch"))
    numbers = {batch["args"]["batch"] for batch in of(events, "batch")}
    assert {request["args"]["batch"] for request in of(events, "request")} == numbers


def test_a_request_that_is_left_while_it_runs_has_its_batch(tmp_path, left_while_it_runs):
    path = tmp_path / "trace.json"
    left_while_it_runs({"probes": [f'Trace("{path}")']})
    events = checked(path)
    (batch,) = of(events, "batch")
    found = [(one["args"]["outcome"], one["args"]["batch"]) for one in of(events, "request")]
    assert sorted(found, key=str) == [("cancelled", batch["args"]["batch"]), ("cancelled", None)]
    assert len(of(events, "run")) == len([e for e in events if e["ph"] == "s"]) == 1


def test_a_trace_of_nothing_is_valid_json(tmp_path):
    path = tmp_path / "t.json"
    with traced(path, {"backend": "Identity"}):
        pass
    assert [event["ph"] for event in json.loads(path.read_text())["traceEvents"]] == ["M"]


@given(st.integers(0, 10**8), st.integers(1, 10**7), st.integers(1, 10**7))
@example(start=0, waited=7_512_497, ran=574_003)
def test_what_is_inside_a_request_ends_within_it_for_a_viewer(start, waited, ran):
    """Chromium's page adds start and duration in milliseconds, and rounds the end to microseconds, a half upwards."""
    begun, end = (start + waited) / 1e9, (start + waited + ran) / 1e9
    batch = BatchHeard(1, "n", 0, 1, begun, end, 1, 1, 0, [])
    lines = EventMaker(0.0, {}).request(RequestHeard("n", start / 1e9, end, None, batch))
    slices = [one for one in map(json.loads, lines) if one["ph"] == "X"]
    ends = {e["cat"]: math.floor((e["ts"] / 1000 + e["dur"] / 1000) * 1000 + 0.5) for e in slices}
    assert ends.keys() == {"request", "queue", "run"}
    assert max(ends.values()) == ends["request"]


def test_requests_that_overlap_have_tracks_of_their_own():
    maker = EventMaker(10.0, {1: "one"})
    batch = BatchHeard(1, "n", 0, 1, 10.5, 10.8, 2, 2, 0, [])
    spans = [(10.0, 10.9), (10.1, 10.9), (10.9, 11.0), (9.0, 10.95)]
    events = [maker.request(RequestHeard("n", a, b, None, batch)) for a, b in spans]
    tracks = [json.loads(made[0])["tid"] for made in events[:3]]
    assert tracks == [1, 2, 1]
    assert events[3] == []  # it began before the trace


def test_what_overlaps_on_a_device_goes_side_by_side():
    maker = EventMaker(0.0, {})
    inside = [
        InsideHeard("S/0:X", "copy in", 1.0, 1.4, "cuda:0"),
        InsideHeard("S/0:X", "computation", 1.2, 1.6, "cuda:0"),
        InsideHeard("X", 1, 1.0, 1.9, 7),
    ]
    made = [json.loads(e) for e in maker.batch(BatchHeard(1, "n", 0, 7, 1, 2, 1, 1, 0, inside))]
    devices = [event for event in made if event["cat"] == "device"]
    assert [(e["tid"], e["ts"], e["dur"]) for e in devices] == [(1, 1e6, 4e5), (2, 1.2e6, 4e5)]


def test_names_of_anybody_are_valid_json(tmp_path):
    maker = EventMaker(0.0, {1: 'a "thread"\n'})
    batch = BatchHeard(1, 'n"\\', 0, 1, 1.0, 2.0, 1, 1, 0, [InsideHeard("X", "é\n", 1.1, 1.2, '"')])
    events = [*maker.batch(batch), *maker.request(RequestHeard("ü", 0.5, 2.0, None, batch))]
    lines = [maker.head({}), *events, *maker.tracks()]
    (tmp_path / "t.json").write_text(",\n".join(lines) + "]}")
    assert {event["name"] for event in of(checked(tmp_path / "t.json"), "device")} == {"é\n"}


def test_a_file_that_cannot_be_written_fails_the_setup(tmp_path):
    with pytest.raises(SetupError, match="cannot be written"):
        traced(tmp_path / "gone" / "trace.json", {"backend": "Identity"})
    with pytest.raises(SetupError, match="cannot be written: it is a folder"):
        headrace.pipe({"backend": "Identity", "probes": [f'Trace(path="{tmp_path}")']})


def test_a_file_has_the_permissions_of_any_new_one_and_the_mask_of_the_process_is_left_alone(
    tmp_path, monkeypatch
):
    def changed(mask):
        raise AssertionError("other threads make files meanwhile")

    monkeypatch.setattr(os, "umask", changed)
    with traced(tmp_path / "trace.json", {"backend": "Identity"}) as pipe:
        pipe({"data": 1})
    (tmp_path / "plain").write_text("")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert (len(list(tmp_path.iterdir())), len(modes)) == (2, 1)


def test_options_out_of_range_are_refused(tmp_path):
    with pytest.raises(ConfigError):
        traced(tmp_path / "t.json", {"backend": "Identity"}, sample=0)
    with pytest.raises(ConfigError):
        traced(tmp_path / "t.json", {"backend": "Identity"}, max_bytes=10)


def test_nvtx_ranges_open_and_close_around_elements(tmp_path, monkeypatch):
    heard = []
    fake = SimpleNamespace(
        push_range=lambda text, domain: heard.append(text),
        pop_range=lambda domain: heard.append("end"),
    )
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    with headrace.pipe({"backend": "S[Identity]", "probes": ["Trace(nvtx=true)"]}) as pipe:
        pipe({"data": 1})
    assert heard == ["main.0 S", "main.0 S/0:Identity", "end", "end"]


NVTX = """
import headrace
with headrace.pipe({"backend": "S[Identity]", "probes": ['Trace(nvtx=true,path="t.json")']}) as pipe:
    pipe({"data": 1})
"""


@pytest.mark.gpu
def test_a_tool_that_listens_to_nvtx_hears_the_elements(tmp_path):
    pytest.importorskip("nvtx")
    source, listener, log = HERE / "nvtx_listener.c", tmp_path / "listener.so", tmp_path / "log"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", listener, source], check=True)
    names = {"NVTX_INJECTION64_PATH": str(listener), "NVTX_LISTENER_LOG": str(log)}
    done = subprocess.run(
        [sys.executable, "-c", NVTX], env={**os.environ, **names}, cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    assert log.read_text().splitlines() == [
        *("push main.0 S", "push main.0 S/0:Identity", "pop", "pop")
    ]


def test_without_nvtx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(MissingDependencyError, match=r"nvtx") as caught:
        headrace.pipe({"backend": "Identity", "probes": ["Trace(nvtx=true)"]})
    assert "headrace-observe[gpu]" in str(caught.value)


# The command.


def headrace_says(*args, **options):
    command = [sys.executable, "-m", "headrace", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.first("measure, trace and tune: a trace of every batch")
def test_the_command_writes_a_trace(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}.txt").write_text(str(k))
    done = headrace_says(
        *("trace", "S[Identity]", "0.txt", "1.txt", "2.txt", "--repeat", 2, "-o", "out.json"),
        *("--set", "max=2", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 6
    assert "6 requests: 6 ok" in done.stderr
    assert len(of(checked(tmp_path / "out.json"), "request")) == 6


def test_failed_requests_are_counted_and_the_status_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("no picture")
    done = headrace_says("trace", "DecodeMat", "a.txt", "-o", "out.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 request failed with the code input: a.txt: the image format" in done.stderr
    assert "1 request: 0 ok, 1 failed; " in done.stderr
    assert len(of(checked(tmp_path / "out.json"), "request")) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="files have no limit here")
@pytest.mark.parametrize("before", [None, "an older trace"])
def test_a_trace_that_cannot_be_written_is_an_error_and_no_older_file_passes_for_it(
    tmp_path, before
):
    import resource

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    (tmp_path / "a.txt").write_text("a")
    if before is not None:
        (tmp_path / "out.json").write_text(before)
    args = ("trace", "Identity", "a.txt", "--repeat", "500", "-o", "out.json", "--json")
    done = run_process(
        [sys.executable, "-m", "headrace", *args],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limited,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    said = f"reading or writing failed: File too large: {tmp_path / 'out.json'}"
    assert json.loads(done.stdout)["error"]["message"] == said
    assert done.stderr.endswith(f"error: {said}\n")
    left = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert left == {"a.txt": "a", **({} if before is None else {"out.json": before})}


@pytest.mark.parametrize("share", ["0", "1.5", "nan"])
def test_a_share_out_of_its_range_is_told_by_its_option(tmp_path, share):
    (tmp_path / "a.txt").write_text("a")
    done = headrace_says("trace", "Identity", "a.txt", "--sample", share, cwd=tmp_path)
    said = f"error: --sample: expected a share above 0 and up to 1, got {float(share)}\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_ctrl_c_leaves_a_whole_file(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import threading, headrace\n"
        "class Slow:\n"
        "    def forward(self, batch):\n"
        "        for request in batch:\n"
        "            request['result'] = 1\n"
        "        print('ran', flush=True)\n"
        "        threading.Event().wait(0.01)\n"
        "headrace.register('Slow', Slow)\n"
    )
    (tmp_path / "slow.toml").write_text('import = ["slow.py"]\nbackend = "Slow"\n')
    (tmp_path / "a.txt").write_text("a")
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "trace", "slow.toml", "a.txt", "--repeat", "1000000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(3):
        assert process.stdout.readline() == "ran\n"
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert len(of(checked(tmp_path / "trace.json"), "batch")) >= 3


def test_a_trace_is_whole_however_soon_the_pipeline_has_to_be_closed(tmp_path, monkeypatch):
    # A pipeline that is closed waits for its probes until its timeout; a long trace takes longer to write.
    closed, make = threading.Event(), Recording._make

    def make_late(recording):
        assert closed.wait(60)
        make(recording)

    monkeypatch.setattr(Recording, "_make", make_late)
    pipe = headrace.pipe({"backend": "Identity"})
    with headrace_observe.trace(pipe, tmp_path / "out.json"):
        pipe({"data": 1})
        pipe.close(timeout=0)
        closed.set()
    assert len(of(checked(tmp_path / "out.json"), "request")) == 1


def test_a_ctrl_c_while_the_file_is_written_leaves_it_whole():
    handled, last = [], threading.Event()
    worker = WorkerThread(handled.extend, last.set, name="test")
    worker.put(1)
    thread, interrupts = worker._thread, [KeyboardInterrupt()]

    class Interrupted:
        def join(self):
            if interrupts:
                raise interrupts.pop()
            thread.join()

    worker._thread = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        worker.finish()
    assert (handled, last.is_set()) == ([1], True)


def test_a_trace_ends_with_the_process_that_forgot_to_close(tmp_path):
    program = (
        "import headrace\n"
        "pipe = headrace.pipe({'backend': 'Identity', 'probes': ['Trace(\"t.json\")']})\n"
        "pipe({'data': 1})\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert len(of(checked(tmp_path / "t.json"), "request")) == 1


def test_many_threads_trace_at_a_time(tmp_path):
    path = tmp_path / "trace.json"
    with traced(path, {"backend": "S[Identity]", "max": 4, "instance_num": 2}) as pipe:
        clients = [
            threading.Thread(target=lambda: [pipe({"data": k}) for k in range(100)])
            for _ in range(8)
        ]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    assert len(of(checked(path), "request")) == 800


def test_requests_that_their_callers_run_are_noted_with_their_batches(tmp_path):
    path = tmp_path / "trace.json"
    config = {
        "first": {"backend": "S[TracePicky,Forward[node.second]]", "max": 4},
        "second": {"backend": "TracePicky", "max": 4},
    }
    outcomes = []

    def client(pipe):
        for data in (1, 2, "bad", 3):
            try:
                outcomes.append(pipe({"data": data, "node_name": "first"})["result"])
            except InputError:
                outcomes.append("failed")

    with traced(path, config) as pipe:
        thread = threading.Thread(target=client, args=(pipe,), name="client")
        thread.start()
        thread.join()
    assert outcomes == [1, 2, "failed", 3]
    events = checked(path)
    batches = {one["args"]["batch"]: one["args"] for one in of(events, "batch")}
    assert sorted((one["node"], one["failed"]) for one in batches.values()) == [
        *([("first", 0)] * 3), ("first", 1), *([("second", 0)] * 3),
    ]  # fmt: skip
    assert {one["reason"] for one in batches.values()} == {"idle"}
    requests = [one["args"] for one in of(events, "request")]
    assert sorted(one["batch"] for one in requests) == sorted(batches)
    assert all(
        (one["outcome"] == "input") == (batches[one["batch"]]["failed"] == 1) for one in requests
    )


def test_a_request_that_runs_again_goes_on_where_it_was(tmp_path):
    recording = Recording(tmp_path / "trace.json", 1.0, 1_000_000)
    began, request = time.monotonic(), {"data": 1}
    for step in range(1, 4):
        only = [BatchRequest(request, began, began + step, 1)]
        about = (threading.get_ident(), only, began + step, began + step + 0.5, 1, [None])
        recording.batch(BatchRecord("main", 0, *about))
    recording.finish()
    found = of(checked(tmp_path / "trace.json"), "request")
    assert {one["tid"] for one in found} == {1}
    assert [round(one["dur"] / 1e6, 3) for one in found] == [1.5, 1.0, 1.0]


def test_a_signal_handler_may_come_to_the_trace_in_the_midst_of_it(tmp_path):
    recording = Recording(tmp_path / "trace.json", 1.0, 1_000_000)
    files = {
        sys.modules[one].__file__
        for one in ("headrace_observe.probes.recording", "headrace_observe.probes.packed")
    }
    kept, depth = [], 0

    def run_one():
        request = {"data": len(kept)}
        kept.append(request)
        instance, started = len(kept), time.monotonic()
        recording.element("main", instance, "Identity", 1, started, time.monotonic())
        ended = time.monotonic()
        about = (
            threading.get_ident(),
            [BatchRequest(request, started, started, 1)],
            started,
            ended,
            1,
            [None],
        )
        recording.batch(BatchRecord("main", instance, *about))

    def interrupt(frame, event, _):
        nonlocal depth
        if frame.f_code.co_filename not in files or depth:
            return None
        if event == "line":  # as a handler of a signal, which runs between any two lines
            depth += 1
            run_one()
            depth -= 1
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        for _ in range(3):
            run_one()
    finally:
        sys.settrace(before)
    recording.finish()
    events = checked(tmp_path / "trace.json")
    assert len(kept) > 30
    requests = [one["args"]["batch"] for one in of(events, "request")]
    assert sorted(requests) == sorted(one["args"]["batch"] for one in of(events, "batch"))
    assert len(requests) == len(of(events, "element")) == len(kept)
