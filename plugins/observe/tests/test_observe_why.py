"""Why a request was slow: what the probe Remember keeps, and the causes into which its time is split."""

from __future__ import annotations

import http.server
import json
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
import headrace_observe
from headrace.errors import InputError, SetupError
from headrace.hookspecs import attached
from headrace_cli.app import app
from headrace_observe.bench.arrivals import read_arrivals
from headrace_observe.explain.causes import CAUSES, slowest
from headrace_observe.explain.cures import cures
from headrace_observe.memory import Memory, memories, parse_dump, read_dump
from headrace_observe.simulate.service_times import read_times
from headrace_testing import virtual_time


class WhyNap(headrace.Backend):
    """Take 2 ms and 1 ms a request; one whose data is negative fails, and one with a list gives its parts."""

    max = 8
    auto_instances = classmethod(lambda cls, options, device, threads: threads)

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        time.sleep(0.002 + 0.001 * len(batch))
        outcomes = []
        for request in batch:
            data = request["data"]
            if isinstance(data, list):
                for part in data:
                    self.context.request.emit(self.context.request.keep(request), part)
                    time.sleep(0.0005)
            request["result"] = data
            failed = isinstance(data, int) and data < 0
            outcomes.append(InputError("negative") if failed else None)
        return outcomes


class WhyWide(WhyNap):
    """Is quicker with more threads."""

    wide = True


@pytest.fixture(autouse=True)
def nap():
    headrace.register("WhyNap", WhyNap, replace=True)
    headrace.register("WhyWide", WhyWide, replace=True)


def remembering(threads=2, **nodes):
    above = {"probes": ["Remember(64MiB)"], "threads": threads}
    return headrace.pipe({"global": above, **nodes})


def threads_of(*calls):
    threads = [threading.Thread(target=one) for one in calls]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


GRAPHS = {
    "one node": {
        "a": {
            "backend": "WhyNap",
            "instance_num": 2,
            "max": 4,
            "batching_timeout": 3,
            "queue_size": 6,
        }
    },
    "a line": {"a": {"backend": "WhyNap", "next": "b"}, "b": {"backend": "WhyNap", "max": 2}},
    "branches that join": {
        "a": {"backend": "Identity", "next": "b,c"},
        "b": {"backend": "WhyNap", "max": 1, "next": "d"},
        "c": {"backend": "WhyNap", "instance_num": 2, "next": "d"},
        "d": {"backend": "Identity", "map": {"b": {"result": "data"}, "c": {"result": "other"}}},
    },
    "a call": {
        "a": {"backend": "S[Identity,Forward[node.b]]", "max": 2},
        "b": {"backend": "WhyNap"},
    },
}


def send_at_random(pipe, now, seed, count, took):
    """Send requests of every kind, one after the other, and note what their caller has waited."""
    draw = random.Random(seed)
    for number in range(count):
        time.sleep(draw.random() * 0.006)
        name, kind = f"{seed}.{number}", draw.randrange(6)
        request = {"data": draw.randrange(-1, 9), "request_id": name}
        began, priority = now(), draw.randrange(3)
        with suppress(
            headrace.errors.HeadraceError, headrace.errors.RequestsFailed, CancelledError
        ):
            if kind == 0:  # withdrawn, perhaps while it runs
                future = pipe.submit(request, priority=priority)
                time.sleep(draw.random() * 0.004)
                future.cancel()
                future.exception()
            elif kind == 1:
                pipe(request, timeout=0.002 + draw.random() * 0.004)
            elif kind == 2:
                many = [{"data": one, "request_id": f"{name}.{one}"} for one in range(3)]
                pipe(many, priority=priority)
            elif kind == 3:
                for _ in pipe.stream({"data": [1, 2], "request_id": name}):
                    pass
            else:
                pipe(request, priority=priority)
        took[name] = now() - began


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_causes_add_up_to_the_time_of_each_of_2500_random_requests(graph):
    took = {}
    with virtual_time() as now, remembering(**GRAPHS[graph]) as pipe:
        threads_of(
            *[lambda seed=seed: send_at_random(pipe, now, seed, 250, took) for seed in range(10)]
        )
        memory = memories[pipe]()
    assert len(memory.by_name) >= 2400
    for name in memory.by_name:
        for one in headrace_observe.why(memory, name):
            assert abs(sum(part.seconds for part in one.parts) - one.seconds) < 1e-6, str(one)
            assert all(part.seconds >= 0 and part.cause in CAUSES for part in one.parts), str(one)
            if name in took and one.code == "ok":
                assert one.seconds <= took[name] + 1e-6
    found = {
        p.cause for n in memory.by_name for e in headrace_observe.why(memory, n) for p in e.parts
    }
    assert {"run", "instance"} <= found


def later(seconds, call):
    def run():
        time.sleep(seconds)
        call()

    return run


def explained(config, *calls):
    """Let calls run at a pipeline in virtual time; give the explanation of the request ``slow``."""
    with virtual_time(), remembering(main={"backend": "WhyNap", **config}) as pipe:
        threads_of(*[later(at, lambda call=call: call(pipe)) for at, call in calls])
        (found,) = headrace_observe.why(pipe, "slow")
    return found


def call(count=1, name=None, **how):
    def send(pipe):
        requests = [{"data": 1, "request_id": name} for _ in range(count)]
        pipe(requests if count > 1 else requests[0], **how)

    return send


SLOW = call(name="slow")


def test_too_few_instances_are_the_cause():
    calls = [(0.0001 * k, call()) for k in range(5)]
    found = explained({"max": 1}, *calls, (0.001, SLOW))
    assert (found.greatest.cause, found.greatest.detail) == ("instance", "one ran a batch of 1")
    assert found.greatest.seconds == pytest.approx(5 * 0.003 - 0.001)
    assert str(found).startswith(
        "17.0 ms: 14.0 waited for an instance (one ran a batch of 1); 3.0 ran"
    )


def test_the_instance_for_a_request_alone_is_none_that_a_request_waits_for():
    """It runs the first of the requests, and is aside while the two others are busy."""
    config = {"backend": "WhyWide", "max": 1, "instance_num": "auto", "batching_timeout": 1}
    calls = [(0.0, call()), (0.001, call()), (0.0012, call()), (0.0035, SLOW)]
    found = explained(config, *calls)
    assert (found.greatest.cause, found.greatest.detail) == (
        "run",
        "1 in the batch, instance 0, formed by full",
    )
    (wait,) = [one for one in found.parts if one.cause != "run"]
    assert (wait.cause, wait.detail) == ("instance", "all 2 ran batches of 1")
    assert wait.seconds == pytest.approx(0.0005)


def test_a_long_batch_is_the_cause():
    def together(pipe):
        pipe([{"data": 1, "request_id": "slow" if one == 0 else None} for one in range(8)])

    found = explained({"max": 8}, (0.0, together))
    assert found.greatest.cause == "run"
    assert found.greatest.detail == "8 in the batch, instance 0, formed by full"


def test_a_greater_priority_is_the_cause():
    calls = [(0.0, call()), *[(0.002, call(priority=5)) for _ in range(4)]]
    found = explained({"max": 1}, *calls, (0.001, SLOW))
    assert (found.greatest.cause, found.greatest.detail) == ("priority", "priority 5")
    assert found.greatest.seconds == pytest.approx(4 * 0.003)


def test_the_wait_for_others_is_the_cause():
    config = {"max": 8, "instance_num": 2, "batching_timeout": 20}
    found = explained(config, (0.0, call(8)), (0.001, SLOW))
    assert (found.greatest.cause, found.greatest.detail) == ("others", "formed by idle")
    config = {"max": 8, "min": 2, "batching_timeout": 20, "pad": True}
    found = explained(config, (0.0, SLOW))
    assert (found.greatest.cause, found.greatest.detail) == ("others", "formed by timer")
    assert found.greatest.seconds == pytest.approx(0.020)


def test_a_full_queue_is_the_cause():
    calls = [(0.0001 * k, call()) for k in range(7)]
    found = explained({"max": 1, "queue_size": 1}, *calls, (0.001, SLOW))
    assert found.greatest.cause == "room"


def test_an_instance_that_is_away_is_the_cause():
    class Leaves(headrace.Backend):
        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                request["result"] = 1
                if request["data"] == "leave":
                    self.context.health.away()

    headrace.register("WhyLeaves", Leaves, replace=True)
    found = explained({"backend": "WhyLeaves"}, (0.0, SLOW))
    assert found.greatest.cause == "run"
    contexts = []
    Leaves.init = lambda self, options, context: contexts.append(context)
    calls = [
        (0.0, lambda pipe: contexts[0].health.away()),
        (0.030, lambda pipe: contexts[0].health.back()),
    ]
    found = explained({"backend": "WhyLeaves"}, *calls, (0.010, SLOW))
    assert (found.greatest.cause, found.greatest.detail) == ("pause", "instance 0")
    assert found.greatest.seconds == pytest.approx(0.020)


def test_an_identifier_that_came_twice_shows_both():
    with virtual_time(), remembering(main={"backend": "WhyNap"}) as pipe:
        SLOW(pipe)
        time.sleep(0.001)
        SLOW(pipe)
        found = headrace_observe.why(pipe, "slow")
    assert [one.seconds for one in found] == [pytest.approx(0.003)] * 2
    assert found[0].began < found[1].began


def test_a_failure_is_explained_and_one_that_never_ran():
    with virtual_time(), remembering(main={"backend": "WhyNap", "max": 1}) as pipe:

        def late(pipe):
            with pytest.raises(headrace.errors.DeadlineExceededError):
                call(name="late", timeout=0.002)(pipe)

        threads_of(lambda: SLOW(pipe), later(0.0005, lambda: late(pipe)))
        (found,) = headrace_observe.why(pipe, "late")
    assert (found.code, found.greatest.cause) == ("deadline", "instance")
    assert found.seconds == pytest.approx(0.002)
    assert "failed with the code deadline" in str(found)


def test_who_is_not_remembered_is_said():
    with (
        headrace.pipe({"backend": "Identity"}) as pipe,
        pytest.raises(SetupError, match="Remember"),
    ):
        headrace_observe.why(pipe, "a")
    with remembering(main={"backend": "Identity"}) as pipe:
        pipe({"data": 1, "request_id": "abcd"})
        with pytest.raises(InputError, match="'abce' is remembered") as refused:
            headrace_observe.why(pipe, "abce")
    assert "'abcd'" in str(refused.value)


def test_two_pipelines_keep_their_own():
    with (
        remembering(main={"backend": "Identity"}) as one,
        remembering(main={"backend": "Identity"}) as two,
    ):
        one({"data": 1, "request_id": "same"})
        assert len(headrace_observe.why(one, "same")) == 1
        with pytest.raises(InputError):
            headrace_observe.why(two, "same")


@pytest.mark.parametrize("size", ["0", "1000", "999999TiB"])
def test_a_size_that_keeps_nothing_or_is_not_there_is_refused(size):
    with pytest.raises(SetupError, match="takes 1 MiB to"):
        headrace.pipe({"backend": "Identity", "probes": [f"Remember({size})"]})


def test_the_oldest_is_forgotten_first_and_the_memory_is_bounded():
    probe = headrace_observe.Remember(headrace_observe.Remember.Options(size="1MiB"))
    with headrace.pipe({"backend": "Identity"}) as pipe, attached(pipe, probe):
        for number in range(40000):
            pipe({"data": 1, "request_id": str(number)})
        names = [one.request_id for one in memories[pipe]().visits]
        assert probe.notes.nbytes <= 1.1 * 2**20
    assert names == [str(number) for number in range(40000 - len(names), 40000)]
    assert 10000 < len(names) < 40000


def test_no_input_is_kept():
    class Data:
        """What a weak reference can name."""

    import gc
    import weakref

    with remembering(main={"backend": "Identity"}) as pipe:
        data = Data()
        known = weakref.ref(data)
        pipe({"data": data, "request_id": "a"})
        del data
        gc.collect()
        assert known() is None


def test_the_slowest_come_first():
    with virtual_time(), remembering(main={"backend": "WhyNap", "max": 1}) as pipe:
        threads_of(*[later(0.0001 * k, lambda k=k: call(name=str(k))(pipe)) for k in range(6)])
        found = slowest(memories[pipe](), 3)
    assert [one.request_id for one in found] == ["5", "4", "3"]


def dumped(tmp_path):
    with virtual_time(), remembering(main={"backend": "WhyNap"}) as pipe:
        for number in range(5):
            pipe({"data": 1, "request_id": str(number)})
        memory = memories[pipe]()
    memory.write(tmp_path / "dump.jsonl")
    return memory, tmp_path / "dump.jsonl"


def test_a_dump_is_read_as_it_was_written(tmp_path, caplog):
    memory, path = dumped(tmp_path)
    read = read_dump(path)
    assert (read.visits, read.changes, read.nodes) == (memory.visits, memory.changes, memory.nodes)
    assert not caplog.records
    assert headrace_observe.why(read, "3") == headrace_observe.why(memory, "3")


def test_a_dump_that_is_cut_off_is_read_up_to_there_and_each_command_says_so_once(tmp_path):
    memory, path = dumped(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    assert read_dump(path).visits == memory.visits[:-1]
    said = f"{path}:6: the rest is cut off; 4 visits before it were read"
    times, tuned = ["--times", path], ["--trials", "1", "-o", tmp_path / "tuned.toml"]
    for args in (
        ["observe", "why", path],
        ["simulate", "Identity", *times, "--clients", "1", "--requests", "20"],
        ["simulate", "Identity", *times, "--arrivals", path],
        ["tune", "Identity", path, "--goal", "min p99", *tuned],
        ["bench", "Identity", "--data", "uint8:4", "--arrivals", path],
    ):
        done = CliRunner().invoke(app, list(map(str, args)))
        assert done.exit_code == 0, done.output
        assert done.stderr.count(said) == 1, args


def test_a_path_is_no_source():
    with pytest.raises(TypeError, match="a Pipeline or a Memory, got str"):
        headrace_observe.why("dump.jsonl", "7f3a")


def test_a_dump_without_names_says_how_a_request_gets_one(tmp_path):
    with virtual_time(), remembering(main={"backend": "WhyNap"}) as pipe:
        pipe({"data": 1})
        memory = memories[pipe]()
    memory.write(tmp_path / "dump.jsonl")
    done = CliRunner().invoke(app, ["observe", "why", str(tmp_path / "dump.jsonl")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "remembers 1 run, and no request with a name" in done.stderr
    assert "X-Request-Id" in done.stderr


def test_a_full_disk_leaves_the_file_that_was_saved_before(tmp_path):
    _, path = dumped(tmp_path)
    saved = tmp_path / "saved.jsonl"
    saved.write_text("before")
    small = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", sys.executable, "-m", "headrace_cli"]
    done = subprocess.run(
        [*small, "observe", "why", path, "--save", saved], capture_output=True, check=False
    )
    assert (done.returncode, saved.read_text()) == (1, "before"), done.stderr


def test_an_address_needs_no_scheme():
    done = CliRunner().invoke(app, ["observe", "why", "127.0.0.1:1", "7f3a"])
    assert done.exit_code == 2
    assert "127.0.0.1:1 does not answer" in done.stderr


def test_why_says_whose_certificates_to_trust(monkeypatch):
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: raises(refused))
    done = CliRunner().invoke(app, ["observe", "why", "https://server:1"])
    assert done.exit_code == 2
    assert "self-signed certificate" in done.stderr
    assert "SSL_CERT_FILE" in done.stderr


def raises(reason):
    raise urllib.error.URLError(reason)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "ftp://host", "host:port", "h:0"])
def test_why_refuses_what_is_no_address(url):
    done = CliRunner().invoke(app, ["observe", "why", url, "--json"])
    assert done.exit_code == 2
    assert "expected an address" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-other\r\n", "does not answer: SSH-2.0-other"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>hello", "it is no dump"),
        (b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe", "does not answer: "),
        (b"HTTP/1.0 404 No\r\n\r\n", "answers 404 No"),
    ],
)
def test_why_says_who_answers_with_something_else(answer, message):
    with socket.create_server(("127.0.0.1", 0)) as one:

        def serve():
            client, _ = one.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
        done = CliRunner().invoke(app, ["observe", "why", url])
        thread.join()
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.fixture
def keyed(tmp_path):
    """The address of a server that gives what it remembers to whoever has the key, and what it was sent."""
    dump = dumped(tmp_path)[1].read_bytes()

    class Keyed(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            given = self.headers["Authorization"]
            sent.append((self.path, given))
            if self.path == "/moved/v2/memory":
                self.send_response(302)
                self.send_header("Location", "/v2/memory")
                self.end_headers()
                return
            right = given == "Bearer swordfish"
            body = dump if right else b'{"error": "a key is needed"}'
            self.send_response(200 if right else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Be silent."""

    sent = []
    with http.server.HTTPServer(("127.0.0.1", 0), Keyed) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{one.server_port}", sent
        one.shutdown()
        thread.join()


def test_why_shows_a_server_with_keys_its_key_and_nobody_else(keyed, tmp_path):
    url, sent = keyed
    file = tmp_path / "operator.key"
    file.write_bytes(b"\xef\xbb\xbfswordfish\r\n")
    seen = ["--json", "--key-file", str(file)]
    done = CliRunner().invoke(app, ["observe", "why", url, *seen])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["requests"]
    without = CliRunner().invoke(app, ["observe", "why", url, *seen[:-2]])
    assert without.exit_code == 2
    assert "answers 401 Unauthorized: a key is needed" in without.stdout
    assert "--key-file FILE" in without.stdout
    sent.clear()
    assert CliRunner().invoke(app, ["observe", "why", f"{url}/moved", *seen]).exit_code == 2
    assert sent == [("/moved/v2/memory", "Bearer swordfish"), ("/v2/memory", None)]


@pytest.mark.parametrize("written", ["", "two keys", "one\ntwo", "caf\u00e9", None])
def test_why_refuses_what_is_no_file_with_a_key(written, tmp_path):
    file = tmp_path / "operator.key"
    if written is not None:
        file.write_text(written, encoding="utf-8")
    done = CliRunner().invoke(app, ["observe", "why", "h:1", "--key-file", str(file)])
    assert done.exit_code == 2
    assert f"--key-file {file}: " in done.stderr
    assert not written or written not in done.stderr


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no dump"),
        (["{}"], "no dump"),
        (["nonsense"], "no dump"),
        (['{"kind": "headrace-memory", "version": 9}'], "has the version 9"),
        (['{"kind": "headrace-memory", "version": 1, "nodes": 3}'], "first line .* is broken"),
    ],
)
def test_what_is_no_dump_of_this_version_is_refused(lines, said):
    with pytest.raises(InputError, match=said):
        parse_dump(lines, "file")


def test_a_memory_of_nothing_has_no_slowest():
    assert slowest(Memory([], [], {})) == []


# What would have helped.


def busy(instance_num, **keys):
    """Let 600 requests come at random to a node that is too slow for them; give what is remembered."""
    draw = random.Random(1)
    config = {"backend": "WhyNap", "max": 2, "instance_num": instance_num, "queue_size": 5000}
    with virtual_time(), remembering(main={**config, **keys}) as pipe:
        sent = []
        for number in range(600):
            time.sleep(draw.expovariate(1100))
            sent.append(
                pipe.submit({"data": number, "request_id": str(number)}, priority=number % 2)
            )
        for one in sent:
            one.result()
        return memories[pipe]()


@pytest.mark.parametrize(
    ("number", "setting", "keys"),
    [
        (2, "instance_num=3", {"instance_num": 3}),
        (2, "max=4", {"max": 4}),
        ("auto", "instance_num=3", {"instance_num": 3}),
        ("auto", "max=4", {"max": 4}),
    ],
)
def test_what_would_have_helped_is_what_a_run_with_it_shows(number, setting, keys, tmp_path):
    busy(number).write(tmp_path / "dump.jsonl")
    memory = read_dump(tmp_path / "dump.jsonl")
    (slow,) = slowest(memory, 1)
    found = cures(memory, slow.request_id)
    assert found[0].setting == ""
    assert found[0].ms == pytest.approx(1000 * slow.seconds, rel=0.01)
    (cure,) = [one for one in found if one.setting == f"main.{setting}"]
    really = headrace_observe.why(busy(**{"instance_num": number, **keys}), slow.request_id)[0]
    assert cure.ms == pytest.approx(1000 * really.seconds, rel=0.05)
    assert cure.ms < found[0].ms


def test_only_requests_since_the_pipeline_was_idle_are_simulated_and_none_after_the_answer():
    with virtual_time(), remembering(main={"backend": "WhyNap", "max": 1}) as pipe:
        for name in ("a", "b"):  # after each of these nothing is left to do
            call(name=name)(pipe)
            time.sleep(0.001)
        threads_of(*[later(0.0001 * k, lambda k=k: call(name=str(k))(pipe)) for k in range(40)])
        memory = memories[pipe]()
    found = cures(memory, "9")
    as_it_is, instances, batches = found
    assert (as_it_is.requests, instances.requests) == (10, 10)
    assert as_it_is.ms == pytest.approx(10 * 3 - 0.9)
    assert instances.ms == pytest.approx(5 * 3, abs=1)
    assert (batches.ms, "for batches of 1 alone" in batches.why_not) == (None, True)


def test_what_is_remembered_is_tuned_without_its_backends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    busy(1, max=1).write("monday.jsonl")
    Path("line.toml").write_text('backend = "Identity"\ninstance_num = 1\nmax = 1\n')
    args = ["tune", "line.toml", "monday.jsonl", "--goal", "min p99", "--json"]
    ranges = ["--range", "instance_num=1..4", "--trials", "4"]
    done = CliRunner().invoke(app, [*args, *ranges])
    assert done.exit_code == 0, done.output
    trials = json.loads(done.stdout)["trials"]
    p99 = {t["values"]["main.instance_num"]: t["point"]["latency_ms"]["p99"] for t in trials}
    assert p99[1] > p99[2] > p99[3] > p99[4] > 0
    assert trials[0]["point"]["load"]["kind"] == "arrivals"
    assert headrace.PipelineConfig.load("tuned.toml").to_dict()["instance_num"] == 4
    for more, said in (
        (["--seconds", "1"], "no --seconds"),
        (["--range", "global.threads=1,2"], "global.threads is not simulated"),
        (["--data", "uint8"], "not both"),
    ):
        done = CliRunner().invoke(app, [*args, *more])
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_dump_from_elsewhere_runs_no_backend_and_no_file_that_it_names(tmp_path):
    memory, path = dumped(tmp_path)
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    memory.replay["config"]["import"] = [str(tmp_path / "code.py")]
    memory.replay["config"]["main"] |= {"backend": "Call(os:system)", "init": "Call(os:system)"}
    memory.write(path)
    found = cures(read_dump(path), "3")
    assert found[0].ms == pytest.approx(3)
    assert not ran.exists()


def test_a_long_identifier_is_found_by_all_of_it():
    with remembering(main={"backend": "Identity"}) as pipe:
        pipe({"data": 1, "request_id": "a" * 500})
        pipe({"data": 1, "request_id": 7})
        assert len(headrace_observe.why(pipe, "a" * 500)) == 1
        assert len(headrace_observe.why(pipe, 7)) == 1


def test_without_its_extra_a_cure_says_once_what_to_install(tmp_path, monkeypatch):
    _, path = dumped(tmp_path)
    monkeypatch.setitem(sys.modules, "headrace_testing", None)
    done = CliRunner().invoke(app, ["observe", "why", str(path), "3"])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.count("is not known: ") == 1
    assert 'pip install "headrace-observe[simulate]"' in done.stderr


def test_a_pipeline_that_cannot_be_simulated_says_why(tmp_path):
    with virtual_time(), remembering(**GRAPHS["a call"]) as pipe:
        SLOW(pipe)
        memory = memories[pipe]()
    (only,) = cures(memory, "slow")
    assert only.ms is None
    assert "cannot be simulated" in only.why_not


def test_arrivals_of_a_dump_have_priorities_weights_and_deadlines(tmp_path):
    with virtual_time(), remembering(main={"backend": "WhyNap"}) as pipe:
        pipe({"data": 1, "request_size": 3}, priority=2)
        time.sleep(0.5)
        pipe({"data": 1}, timeout=4)
        memory = memories[pipe]()
    memory.write(tmp_path / "dump.jsonl")
    found = read_arrivals(tmp_path / "dump.jsonl")
    assert [round(one, 3) for one in found] == [0.0, 0.503]
    assert [(one.visit.priority, one.visit.own_weight) for one in found] == [(2, 3), (0, 1)]
    assert found[0].timeout_s is None
    assert found[1].timeout_s == pytest.approx(4)
    times = read_times(tmp_path / "dump.jsonl")["main"]
    assert times.requests == 2
    assert times.seconds(1, 0.5) == pytest.approx(0.003)


# Each answer tells its times.


def test_a_list_of_the_caller_is_filled_in_order_also_for_a_failure():
    nodes = {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "WhyNap"}}
    told, none = [], []
    with virtual_time(), headrace.pipe({"global": {"probes": ["Times"]}, **nodes}) as pipe:
        pipe({"data": 1, "context": {"times": told}})
        with pytest.raises(InputError):
            pipe({"data": -1, "context": {"times": none}})
        pipe({"data": 1, "context": {"times": "no list"}})
        pipe({"data": 1})
    about = {"instance": 0, "size": 1, "reason": "idle"}
    assert [{**one, "waited_ms": 0, "ran_ms": 0} for one in told] == [
        {"node": node, **about, "waited_ms": 0, "ran_ms": 0} for node in "ab"
    ]
    assert (told[1]["waited_ms"], told[1]["ran_ms"]) == (pytest.approx(0), pytest.approx(3))
    assert [one["node"] for one in none] == ["a", "b"]
