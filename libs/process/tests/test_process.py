"""Process: a part of an expression in a process of its own."""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import logging
import math
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs import problems, python

import headrace
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ContractError,
    DeadlineExceededError,
    InputError,
    InstanceLostError,
    NoResultError,
    RequestsFailed,
    SetupError,
)
from headrace.isolation import Liveness
from headrace_process import exchange as exchanges
from headrace_process import local, packing, pipes, spawning, supervisor
from headrace_process.apart import Siblings
from headrace_process.exchange import Exchange
from headrace_process.local import ChildProcess
from headrace_process.packing import apply, changes, pack, unpack
from headrace_process.pipes import PipeLink
from headrace_process.places import Restarts
from headrace_process.process import Process
from headrace_process.running import RunningBatch
from headrace_process.supervisor import Child, Supervisor

FILE = '''
import array, logging, os, signal, socket, threading, warnings
import headrace
from headrace.errors import InputError

class Odd(Exception):
    def __init__(self, number, more):
        super().__init__(number)

@headrace.register("Where")
class Where:
    """A plain class, which tells where it runs."""
    def forward(self, batch):
        print("printed in the other process")
        for request in batch:
            request["result"] = (os.getpid(), len(batch), threading.current_thread().name)

@headrace.register("Far")
class Far(headrace.Backend):
    """Half the data; wants two or more, four at most."""
    class Options(headrace.Options):
        unit: int = 2
    owns_thread = True
    min, max = 1, 9
    reads = ("data", "mask")
    def init(self, options, context):
        self.unit, self.max, self.context = options.unit, 4, context
        self.home = threading.get_ident()
        context.batch.at_end(lambda: None)
    def forward(self, batch):
        outcomes = []
        for request in batch:
            number = request["data"]
            try:
                if number == "odd":
                    raise Odd(1, 2)
                if number == "lock":
                    request["result"] = threading.Lock()
                elif isinstance(number, str):
                    raise InputError(key="data", expected="a number", got=number)
                else:
                    request["same"] = request["data"]
                    request["result"] = number / self.unit
                    request["threads"] = self.context.threads
                    request.pop("mask", None)
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
            assert self.home == threading.get_ident()
        return outcomes
    def close(self):
        with open(os.environ["CLOSED_FILE"], "a") as file:
            file.write("closed\\n")

headrace.register("Double", lambda number: number * 2)

@headrace.register("Silent")
class Silent:
    def forward(self, batch):
        pass

class Adds(headrace.Backend):
    reads = ("left", "right")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["left"] + request["right"]


headrace.register("Adds", Adds)


class Fragile(headrace.Backend):
    """Notes each run; dies of what it is told to."""
    max = None
    def forward(self, batch):
        with open(os.environ["CLOSED_FILE"], "a") as file:
            for request in batch:
                file.write(f"{len(batch)} {request['data']}\\n")
        for request in batch:
            if request["data"] == "poison":
                os.kill(os.getpid(), 9)
            request["result"] = request["data"]

class Innocent(Fragile):
    rerun = True

class DiesOnce(headrace.Backend):
    """Dies with the first batch that holds what it is told to, and says where each item ran."""
    max, rerun = None, True
    def forward(self, batch):
        for request in batch:
            if request["data"] == "poison" and not os.path.exists(os.environ["CLOSED_FILE"]):
                open(os.environ["CLOSED_FILE"], "w").close()
                os._exit(9)
            request["result"] = os.getpid()

headrace.register("DiesOnce", DiesOnce)
headrace.register("Fragile", Fragile)
headrace.register("Innocent", Innocent)

class Keys(headrace.Backend):
    reads = ("data", "mask")
    def forward(self, batch):
        for request in batch:
            request["result"] = sorted(request)

headrace.register("Keys", Keys)

@headrace.register("Speaks")
def speaks(text):
    log = logging.getLogger("far.away")
    log.debug("not %s", "shown")
    log.info("said %s", text)
    warnings.warn(f"beware of {text}", FutureWarning)
    print("printed", text, flush=True)

@headrace.register("Grows")
def grows(parts):
    """Change arrays and texts in place where that is possible, and give them back."""
    for part in parts.values():
        if isinstance(part, array.array):
            part.append(1)
        elif isinstance(part, bytearray):
            part[:1] = b"x"
    return parts

class Alien:
    def __reduce__(self):
        return int, ("no number",)

@headrace.register("MakesAlien")
def makes_alien(data):
    return Alien() if data == "alien" else data

@headrace.register("Leaves")
def leaves(data):
    """Start a process that has all descriptors of this one and outlives it, note it, and die."""
    number = os.fork()
    if number == 0:
        signal.pause()
    with open(os.environ["CLOSED_FILE"], "w") as file:
        file.write(str(number))
    os.kill(os.getpid(), 9)

@headrace.register("Triple")
def triple(number):
    return number * 3

@headrace.register("Level")
def level(name):
    return logging.getLogger(name).level

@headrace.register("Hangs")
class Hangs(headrace.Backend):
    max, rerun = None, True
    def forward(self, batch):
        for request in batch:
            if request["data"]:
                threading.Event().wait()
            request["result"] = request["data"]

@headrace.register("Stays")
class Stays(Hangs):
    def close(self):
        threading.Event().wait()

@headrace.register("Loads")
class Loads(Hangs):
    class Options(headrace.Options):
        model: headrace.FilePath

@headrace.register("Starts")
class Starts(Hangs):
    class Options(headrace.Options):
        how: str
    def init(self, options, context):
        print(f"started {os.getpid()}", flush=True)
        if options.how == "fails":
            raise headrace.errors.SetupError("no device is left")
        if options.how == "raises":
            raise ValueError("no such model")
        if options.how == "exits":
            raise SystemExit(3)
        if options.how == "dies":
            os._exit(4)
        if options.how == "hangs":
            threading.Event().wait()

@headrace.register("Meets")
class Meets(headrace.Backend):
    class Options(headrace.Options):
        port: int
    def init(self, options, context):
        self.index = context.instance_index
        os.write(1, f"started {os.getpid()}\\n".encode())  # at once: the others write, too
        with socket.create_connection(("127.0.0.1", options.port), 30) as connection:
            assert connection.recv(1)
    def forward(self, batch):
        for request in batch:
            request["result"] = self.index
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with backends; what closes writes into ``closed``."""
    monkeypatch.setenv("CLOSED_FILE", str(tmp_path / "closed"))
    path = tmp_path / "far_words.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_classes_of_helpers_travel_and_each_model_has_its_own(tmp_path):
    text = """
import headrace
from helper import Box

@headrace.register("Pack")
def pack(x):
    return (isinstance(x, Box), x.n) if isinstance(x, Box) else Box()
"""
    for folder, number in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.py").write_text(text)
        (tmp_path / folder / "helper.py").write_text(f"class Box:\n    n = {number}\n")
        config = {"import": [str(tmp_path / folder / "model.py")], "backend": "Process[Pack]"}
        with headrace.pipe(config) as pipe:
            box = pipe({"data": 0})["result"]
            assert (type(box).__name__, box.n) == ("Box", number)
            assert pipe({"data": box})["result"] == (True, number)


@pytest.mark.first(
    "use other processes and machines: a part lives in a process of its own, which may crash"
)
def test_what_is_inside_runs_in_a_process_of_its_own_and_is_closed_there(file, tmp_path):
    config = {"import": [file], "backend": "S[Identity,Process[Where]]", "max": 4}
    with headrace.pipe({**config, "instance_num": 2}) as pipe:
        pid, count, thread = pipe({"data": 1})["result"]
        assert pid != os.getpid()
        assert (count, thread) == (1, "MainThread")
        process = pipe.describe()["nodes"]["main"]["tree"]["children"][1]
        assert process["built"] == {"process": pid}
        assert [one["name"] for one in process["children"]] == ["Where"]
    lacking = {"backend": "Process[S[Identity,Fallback[TorchModule(module='no:net'),Identity]]]"}
    with headrace.pipe(lacking) as pipe:
        (inside,) = pipe.describe()["nodes"]["main"]["tree"]["children"]
        assert inside["children"][1]["built"]["chosen"] == "Identity"
        assert "TorchModule" in inside["children"][1]["built"]["not_chosen"][0]
    with headrace.pipe({"import": [file], "backend": "Process[Far]"}) as pipe:
        node = pipe.describe()["nodes"]["main"]
        assert (node["owns_thread"], node["range"]) == (False, [1, 4])
        (inside,) = node["tree"]["children"]
        assert (inside["range"], inside["options"]["unit"]["origin"]) == ([1, 4], "default")
        pid = node["tree"]["built"]["process"]
    assert (tmp_path / "closed").read_text() == "closed\n"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_request_comes_back_as_if_it_had_run_here(file):
    data, lock, other = 6, threading.Lock(), ["kept"]
    config = {"import": [file], "backend": "Process[Far]", "unit": 3, "max": 4}
    with headrace.pipe(config) as pipe:
        request = {"data": data, "lock": lock, "other": other}
        pipe(request)
        assert request.pop("threads") == pipe.describe()["nodes"]["main"]["threads"]
        assert request == {"data": 6, "lock": lock, "other": other, "same": 6, "result": 2.0}
        assert request["other"] is other
        pipe({"data": 3, "mask": "taken out"})
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": one} for one in (3, "bad", "odd", "lock")] + [{"data": 1, "mask": lock}])
    good, bad, odd, result, read = failed.value.errors
    assert good is None
    assert (type(bad), bad.key, bad.backend) == (InputError, "data", "Far")
    assert type(odd) is BackendError
    assert "Odd" in str(odd.__cause__)
    assert isinstance(result, ContractError)
    assert "sent back" in str(result)
    assert isinstance(read, InputError)
    assert read.key == "mask"


@pytest.mark.first(
    "use other processes and machines: a part lives in a process of its own, which may crash"
)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes since Python 3.11")
def test_an_error_tells_where_it_was_raised_there(file, starts):
    with headrace.pipe({"import": [file], "backend": "Process[Far]", "max": 2}) as pipe:
        with pytest.raises(BackendError) as failed:
            pipe({"data": ("no", "number")})
        (note,) = failed.value.__notes__
        assert "in forward" in note
        assert "number / self.unit" in note
        with pytest.raises(InputError) as refused:
            pipe({"data": "text"})
        assert not hasattr(refused.value, "__notes__")
    with pytest.raises(SetupError) as unbuilt:
        headrace.pipe({**starts, "how": "raises"})
    (note,) = unbuilt.value.__notes__
    assert "in init" in note


@pytest.mark.parametrize("inside", ["Adds", "S[Adds,Triple]", "IoC[Adds;S[Adds,Triple]]"])
def test_what_is_inside_says_which_keys_a_request_needs(file, inside):
    with headrace.pipe({"import": [file], "backend": f"Process[{inside}]"}) as pipe:
        assert pipe({"left": 1, "right": 2})["result"] == (3 if inside == "Adds" else 9)
        with pytest.raises(InputError) as caught:
            pipe({"left": 1})
    assert caught.value.key == "right"


def test_what_goes_from_element_to_element_stays_in_the_process():
    backend = "Process[S[Call(builtins:memoryview),Call(builtins:bytes)]]"  # no view can be copied
    with headrace.pipe({"backend": backend}) as pipe:
        assert pipe({"data": b"seen"}) == {"data": b"seen", "result": b"seen"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
@pytest.mark.parametrize("write", ["{}", '"{0},{0}"', "{0}-{0}"])
def test_a_process_keeps_to_the_processors_it_is_told(write):
    last = max(os.sched_getaffinity(0))
    inside = f"Process(cpus={write.format(last)})[Call(os:sched_getaffinity)]"
    with headrace.pipe({"backend": inside}) as pipe:
        assert pipe({"data": 0})["result"] == {last}


@pytest.mark.parametrize("cpus", ["3-1", "a", "-1", "1,,2", "0-99999", "true", "1.5", '""'])
def test_processors_that_cannot_be_are_refused_before_a_process_starts(cpus):
    with pytest.raises(headrace.errors.ConfigError, match="cpus") as caught:
        headrace.PipelineConfig.load({"backend": f"Process(cpus={cpus})[Identity]"})
    assert len(caught.value.problems) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_processors_that_the_machine_lacks_are_told_at_setup():
    with pytest.raises(headrace.errors.SetupError, match=r"cpus: '9999' cannot be used"):
        headrace.pipe({"backend": "Process(cpus=9999)[Identity]"})


def test_what_code_has_registered_goes_by_its_import_path():
    headrace.register("Root", math.sqrt)
    headrace.register("Ordered", sorted, batched=True)
    with headrace.pipe({"backend": "Process[S[Root,Ordered]]", "max": 2}) as pipe:
        assert [one["result"] for one in pipe([{"data": 16}, {"data": 4}])] == [2, 4]


def test_what_another_process_cannot_know_is_told_at_setup(file):
    class Local:
        def forward(self, batch):
            pass

    headrace.register("LocalToTest", Local)
    with pytest.raises(SetupError, match="put them into a module"):
        headrace.pipe({"backend": "Process[LocalToTest]"})
    headrace.register("LambdaOfTest", lambda number: number * 2)
    with pytest.raises(SetupError, match="lambda"):
        headrace.pipe({"backend": "Process[LambdaOfTest]"})
    with headrace.pipe({"import": [file], "backend": "Process[Double]"}) as pipe:
        assert pipe({"data": 2})["result"] == 4  # the file registers it there, too
    with pytest.raises(SetupError, match="a float, not callable"):
        headrace.pipe({"backend": "Process[Call(math:pi)]"})


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ({"a": {"backend": "Process[Forward[node.other]]"}}, "Forward"),
        ({"a": {"backend": "IoC[Identity;Process[Identity]]"}}, "Identity"),
        ({"a": {"backend": "Process[S[Identity,Repost[other]]]"}}, "Repost"),
    ],
)
def test_what_reaches_out_of_the_process_is_refused(source, refused):
    found = [one.message for one in problems({**source, "other": {"backend": "Identity"}})]
    assert any(f"{refused} cannot stand in Process" in one for one in found)


class Pauses(Restarts):
    """Pauses that a test tells, in place of those of the second, third, ... death."""

    def __init__(self, *pauses, limit=None):
        super().__init__(limit)
        self.pauses = pauses

    def pause_s(self, now):
        super().pause_s(now)
        return self.pauses[min(self.count, len(self.pauses)) - 1]


def test_deaths_in_a_row_never_end_an_instance_and_are_told(monkeypatch):
    monkeypatch.setattr(Process, "restarts", lambda self: Pauses(0.0, limit=self.restart_limit))
    backend = "Process(restart_limit=3)[Call(os:_exit)]"
    with headrace.pipe({"backend": backend, "max": 2}) as pipe:
        for deaths in range(1, 9):
            with pytest.raises(InstanceLostError, match="status 7"):
                pipe({"data": 7})
            told = pipe.stats()["processes"]["main"]
            assert told == {"ended": deaths, "failing": deaths > 3}


def test_requests_are_refused_only_where_no_process_will_live_soon(file, monkeypatch, until):
    monkeypatch.setattr(Process, "restarts", lambda self: Pauses(1000.0))
    config = {"import": [file], "backend": "Process[Fragile]", "instance_num": 2}
    with headrace.pipe(config) as pipe:
        with pytest.raises(InstanceLostError, match="SIGKILL"):
            pipe({"data": "poison"})
        for _ in range(4):
            assert pipe({"data": "good"})["result"] == "good"  # of the other process
        with pytest.raises(InstanceLostError, match="SIGKILL"):
            pipe({"data": "poison"})
        until(lambda: not pipe.ready)
        for inside in ("good", "poison"):
            with pytest.raises(InstanceLostError, match="again and again"):
                pipe({"data": inside})
        instances = pipe.stats()["nodes"]["main"]["instances"]
        assert [one["alive"] for one in instances] == [True, True]  # they come back


def test_an_item_that_could_run_once_more_learns_why_it_does_not(file, monkeypatch):
    monkeypatch.setattr(Process, "restarts", lambda self: Pauses(1000.0))
    config = {"import": [file], "backend": "Process[Innocent]"}
    with (
        headrace.pipe(config) as pipe,
        pytest.raises(InstanceLostError, match="again and again") as lost,
    ):
        pipe({"data": "poison"})
    assert "Send no more" in lost.value.hint


@pytest.mark.parametrize("inside", ["Fragile", "Innocent"])
def test_an_instance_comes_back_behind_a_long_pause(file, monkeypatch, until, inside):
    monkeypatch.setattr(supervisor, "_WAITED_S", 0.0)
    monkeypatch.setattr(Process, "restarts", lambda self: Pauses(0.05))
    with headrace.pipe({"import": [file], "backend": f"Process[{inside}]"}) as pipe:
        for _ in range(3):
            with pytest.raises(InstanceLostError):
                pipe({"data": "poison"})
            until(lambda: pipe.ready)
            assert pipe({"data": "good"})["result"] == "good"


def test_a_backend_that_writes_no_result_there_is_named(file):
    silent = pytest.raises(NoResultError, match=r"^Silent wrote no 'result'")
    with headrace.pipe({"import": [file], "backend": "Process[Silent]"}) as pipe, silent:
        pipe({"data": 1})


def test_ranges_hold_as_inside(file):
    config = {"import": [file], "backend": "S[Identity,Process[Far]]", "max": 9}
    with headrace.pipe(config) as pipe, pytest.raises(BatchRangeError):
        pipe({"data": 1, "request_size": 5})


PROGRAM = """
import os, sys, headrace
pipe = headrace.pipe({"backend": "Process[Call(time:sleep)]"})
print(pipe.describe()["nodes"]["main"]["tree"]["built"]["process"], flush=True)
future = pipe.submit({"data": 0.0})
future.result()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_no_process_outlives_the_one_that_started_it(how, tmp_path):
    program = tmp_path / "program.py"  # without a guard around what it does
    program.write_text(PROGRAM, encoding="utf-8")
    done = python(program, how)
    # Its output is open as long as a process that has inherited it lives: run() has seen the end.
    assert done.returncode == (0 if how == "ended" else -9), done.stderr
    assert done.stdout.strip().isdigit()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs a signal without a name")
OF_MEMORY = "\n  Perhaps the system has killed it because memory ran out."


@pytest.mark.parametrize(
    ("call", "number", "how", "hint"),
    [
        ("ctypes:string_at", 0, "of signal SIGSEGV", ""),
        ("signal:raise_signal", 9, "of signal SIGKILL", OF_MEMORY),
        ("signal:raise_signal", signal.SIGUSR1, "of signal SIGUSR1", ""),
        pytest.param("signal:raise_signal", 40, "of signal 40", "", marks=LINUX),
        ("os:_exit", 0, "with status 0", ""),
    ],
)
def test_a_process_that_dies_fails_its_batch_and_is_started_again(call, number, how, hint):
    with headrace.pipe({"backend": f"Process[Call({call})]"}) as pipe:
        before = _process_of(pipe)
        with pytest.raises(InstanceLostError) as died:
            pipe({"data": number})
        told = f"its process has died {how} [node 'main', backend 'Process', instance 0]{hint}"
        assert str(died.value) == told
        with pytest.raises(BackendError, match="Error"):
            pipe({"data": {}})
        assert pipe.ready
        assert _process_of(pipe) != before
        failed = pipe.stats()["nodes"]["main"]["failed"]
        assert failed == {"instance_lost": 1, "backend": 1}


def test_a_process_that_dies_inside_of_another_is_started_again_there():
    with headrace.pipe({"backend": "Process[Process[Call(os:_exit)]]"}) as pipe:
        outer = pipe.describe()["nodes"]["main"]["tree"]["built"]["process"]
        for status in (7, 8):
            with pytest.raises(InstanceLostError, match=f"status {status}"):
                pipe({"data": status})
        assert pipe.ready
        assert pipe.describe()["nodes"]["main"]["tree"]["built"]["process"] == outer


def test_a_death_is_seen_while_a_process_that_was_started_there_lives_on(file, tmp_path, until):
    with headrace.pipe({"import": [file], "backend": "Process[Leaves]"}) as pipe:
        with pytest.raises(InstanceLostError, match="SIGKILL"):
            pipe({"data": 0})
        number = int((tmp_path / "closed").read_text())
        os.kill(number, 9)  # it was there all the time
        until(lambda: pipe.ready)


def _processes_of(pipe):
    """Find the numbers of the processes in the expression."""
    trees = [pipe.describe()["nodes"]["main"]["tree"]]
    for tree in trees:
        trees += tree["children"]
    return [tree["built"]["process"] for tree in trees if "process" in (tree["built"] or ())]


def _process_of(pipe):
    """Find the number of the last process in the expression."""
    return _processes_of(pipe)[-1]


@pytest.mark.parametrize("inside", ["Innocent", "S[Identity,Innocent]", "Fragile"])
def test_only_what_says_rerun_runs_once_more_alone(file, tmp_path, inside):
    config = {"import": [file], "backend": f"Process[{inside}]", "max": 4}
    data = ["a", "poison", "b"]
    with headrace.pipe(config) as pipe:
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": one} for one in data])
        assert pipe({"data": "later"})["result"] == "later"
    lost = [isinstance(one, InstanceLostError) for one in failed.value.errors]
    runs = (tmp_path / "closed").read_text().splitlines()
    together = [f"3 {one}" for one in data]
    if inside == "Fragile":
        assert lost == [True, True, True]
        assert runs == [*together, "1 later"]
    else:
        assert lost == [False, True, False]
        assert runs == [*together, "1 a", "1 poison", "1 b", "1 later"]


def test_an_item_runs_once_more_in_the_process_of_another_instance(file):
    config = {"import": [file], "backend": "Process[DiesOnce]", "max": 4, "instance_num": 2}
    with headrace.pipe(config) as pipe:
        data = ["a", "poison", "b"]
        results = {one["result"] for one in pipe([{"data": one} for one in data])}
        assert len(results) == 1  # the other process ran all three
        assert pipe.stats()["processes"]["main"] == {"ended": 1, "failing": False}


def test_a_process_that_was_killed_for_running_on_is_said_to_be_slow_or_to_hang():
    how = ("of signal SIGKILL", "Perhaps it was something else.")
    child = types.SimpleNamespace(ended=threading.Event(), how=how)
    child.ended.set()
    process = Process()
    process._here = ("n", 0)
    died = process._death(child, True)
    how = "of signal SIGKILL, killed for running on after the deadlines [node 'n', instance 0]"
    assert str(died).endswith(f"{how}\n  X is slower than the deadlines, or hangs.")


def sibling(siblings, *, lives=False, over=False):
    child = types.SimpleNamespace(close=lambda: None)
    supervisor = types.SimpleNamespace(lives=lives, over=over, kill=print, pausing=False)
    one = Process()
    one.supervisor, one.exchanging, one._child = supervisor, threading.Lock(), child
    one._siblings, one._borrower, one.liveness = siblings, None, Liveness()
    supervisor.close = lambda: vars(supervisor).update(lives=False, over=True)
    siblings.members.append(one)
    return one


def test_who_needs_another_process_waits_for_the_first_that_is_left_or_comes_back(until):
    siblings = Siblings()
    own, other = sibling(siblings), sibling(siblings, lives=True)
    assert siblings.borrow(own) is other
    other.exchanging.release()

    def borrowed(then):
        found = []
        thread = threading.Thread(target=lambda: found.append(siblings.borrow(own)), daemon=True)
        thread.start()
        until(lambda: siblings.waiting)
        siblings.look()
        assert found == []
        then()
        siblings.look()
        thread.join(60)
        return found

    other.exchanging.acquire()
    assert borrowed(other.exchanging.release) == [other]
    assert borrowed(lambda: setattr(own.supervisor, "lives", True)) == [own]
    own.exchanging.release()
    own.supervisor.lives, own.supervisor.over, other.supervisor.lives = False, True, False
    assert borrowed(lambda: setattr(other.supervisor, "over", True)) == [own]


def test_a_process_is_started_again_after_growing_pauses_until_a_minute_was_quiet():
    restarts, now, pauses = Restarts(), 0.0, []
    for _ in range(13):  # each start dies at once
        pauses.append(restarts.pause_s(now))
        now += pauses[-1]
    assert pauses == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30])
    now += 59.9  # it lives again, and not for a minute
    assert restarts.pause_s(now) == 30.0
    now += 30 + 60
    assert [restarts.pause_s(now), restarts.pause_s(now + 1)] == [0.0, 0.1]
    assert restarts.count == 16


def test_more_deaths_than_the_limit_within_a_minute_are_too_many():
    restarts = Restarts(2)
    told = []
    for now in (0.0, 10.0, 20.0):
        restarts.pause_s(now)
        told.append(restarts.too_often(now))
    assert told == [False, False, True]
    assert [restarts.too_often(now) for now in (59.9, 60.0)] == [True, False]
    never, at_once = Restarts(), Restarts(0)
    for _ in range(100):
        never.pause_s(0.0)
    at_once.pause_s(0.0)
    assert (never.too_often(0.0), at_once.too_often(0.0)) == (False, True)


def test_only_the_keys_that_are_read_go_there(file):
    with headrace.pipe({"import": [file], "backend": "Process[S[Identity,Keys]]"}) as pipe:
        request = {"data": 1, "mask": 2, "other": 3, "request_id": "r"}
        assert pipe(request)["result"] == ["data", "mask", "request_id"]
        assert request["other"] == 3


def test_log_records_warnings_and_prints_arrive(file, caplog, capfd):
    caplog.set_level(logging.INFO, logger="far.away")
    config = {"import": [file], "backend": "Process[Speaks]"}
    with (
        headrace.pipe(config) as pipe,
        pytest.warns(FutureWarning, match="beware of ghosts"),
    ):
        pipe({"data": "ghosts"})
    records = [r for r in caplog.records if r.name == "far.away"]
    assert [(r.levelname, r.getMessage()) for r in records] == [("INFO", "said ghosts")]
    assert records[0].process != os.getpid()
    assert capfd.readouterr().out == "printed ghosts\n"


def test_large_values_come_back_as_they_were_and_may_be_changed_there(file):
    sizes = [1, 8191, 8192, 32768, 131072, 300_001, 1 << 20]
    with headrace.pipe({"import": [file], "backend": "Process[Grows]"}) as pipe:
        for size in [*sizes, *reversed(sizes)]:
            content = os.urandom(size)
            parts = {
                "bytes": content,
                "bytearray": bytearray(content),
                "text": content.hex(),
                "array": array.array("B", content),
                "view": pickle.PickleBuffer(content),
            }
            result = pipe({"data": parts})["result"]
            assert result["bytes"] == content
            assert result["bytearray"] == b"x" + content[1:]
            assert result["text"] == parts["text"]
            assert result["array"].tobytes() == content + b"\x01"
            assert bytes(result["view"]) == content
            assert parts["bytearray"] == content


class Keeps(dict):
    """Refuses to let go of its mask."""

    def pop(self, key, *default):
        if key == "mask":
            raise TypeError("it stays")
        return super().pop(key, *default)


def test_a_dict_that_cannot_be_answered_costs_its_neighbours_nothing(file):
    with headrace.pipe({"import": [file], "backend": "Process[Far]"}) as pipe:
        requests = [{"data": 4, "mask": 1}, Keeps(data=6, mask=1), {"data": 8, "mask": 1}]
        with pytest.raises(RequestsFailed) as caught:
            pipe(requests)
    first, second, third = caught.value.errors
    assert first is third is None
    assert isinstance(second.__cause__, TypeError)
    assert [requests[0]["result"], requests[2]["result"]] == [2.0, 4.0]


@pytest.fixture
def open_link():
    """Return a function that opens a link, which is closed after the test."""
    with contextlib.ExitStack() as closing:
        yield lambda file: closing.enter_context(contextlib.closing(PipeLink(*os.pipe(), file)))


def there_and_back(requests):
    """Return requests as another process would make them again."""
    with contextlib.closing(PipeLink(*os.pipe(), spawning.memory_file())) as link:
        packed, bad = pack(requests, link)
        assert bad == {}
        found, unknown = unpack(pickle.loads(pickle.dumps(packed)), link)
    assert unknown == []
    return found


def test_a_link_that_is_closed_maps_no_memory():
    pipe, file = os.pipe(), spawning.memory_file()
    link = PipeLink(*pipe, file)
    packed, _ = pack([{"data": bytearray(3000)}], link)
    unpack(packed, link)
    link.close()
    assert link._mapped.closed
    for one in (*pipe, file):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(one)


def test_a_link_keeps_the_memory_of_large_messages_while_they_come(monkeypatch, open_link):
    monkeypatch.setattr(pipes, "_KEPT_BYTES", 2 * pipes._MAPPED_BYTES)
    link = open_link(file := spawning.memory_file())
    large, small = 4 * pipes._MAPPED_BYTES, 8
    sizes = []
    for size in (large, large, small):
        link.begin()
        link.put(bytes(size), size)
        sizes.append(os.fstat(file).st_size)
    link.begin()
    assert [*sizes, os.fstat(file).st_size] == [large, large, large, pipes._MAPPED_BYTES]


def test_what_the_system_copies_in_parts_arrives_whole(monkeypatch, open_link):
    # Linux copies at most 2 GiB in one call; here it is as if that were 100 kB.
    most, write, read_into = 100_000, os.pwrite, os.preadv
    monkeypatch.setattr(pipes, "_MOST_COPIED_BYTES", 3 * most)
    monkeypatch.setattr(os, "pwrite", lambda file, view, at: write(file, view[:most], at))
    cut = lambda views: [views[0][:most]]  # noqa: E731
    monkeypatch.setattr(os, "preadv", lambda file, views, at: read_into(file, cut(views), at))
    draw = random.Random(0)
    sent = {
        "bytes": draw.randbytes(1_350_001),
        "bytearray": bytearray(draw.randbytes(99_999)),
        "array": array.array("B", draw.randbytes(1_000_003)),
        "small": draw.randbytes(100_000),
    }
    here = open_link(file := spawning.memory_file())
    there = open_link(os.dup(file))
    packed, _ = pack([sent], here)
    assert unpack(packed, there) == ([sent], [])
    here.begin()
    assert os.fstat(file).st_size > sum(map(len, sent.values()))
    monkeypatch.setattr(pipes, "_KEPT_BYTES", 2 << 20)
    for _ in range(2):
        packed, _ = pack([{"small": sent["small"]}], here)
        assert unpack(packed, there) == ([{"small": sent["small"]}], [])
    assert os.fstat(file).st_size < 2 << 20


def test_what_is_known_of_arrays_does_not_grow_with_their_dtypes():
    numpy = pytest.importorskip("numpy")
    for count in range(300):
        array = numpy.zeros(1, dtype=[(f"field_{count}", "u1")])
        assert there_and_back([{"data": array}])[0]["data"].dtype == array.dtype
    assert len(packing._makers) <= packing._MOST_KEPT
    assert packing._made_by.cache_info().currsize <= packing._MOST_KEPT


class Unmade:
    """It can be pickled, and not be made again."""

    def __reduce__(self):
        return int, ("no number",)


def test_what_is_unknown_on_the_other_side_names_its_key(file):
    with headrace.pipe({"import": [file], "backend": "Process[MakesAlien]", "max": 4}) as pipe:
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": one} for one in ("plain", "alien", Unmade())])
        assert pipe({"data": "later"})["result"] == "later"
    plain, there, here = failed.value.errors
    assert plain is None
    assert isinstance(there, ContractError)
    assert "'result'" in str(there)
    assert isinstance(here, InputError)
    assert here.key == "data"


MAIN = """
import headrace
@headrace.register("Local")
def local(data):
    return data
for backend in ("Process[Local]", "Process[S[Identity,Call(__main__:local)]]"):
    try:
        headrace.explain({"backend": backend})
    except headrace.errors.ConfigError as error:
        print(error)
with headrace.pipe({"backend": "Call(__main__:local)"}) as pipe:
    print(pipe({"data": "runs here"})["result"])
"""


def test_a_backend_of_the_program_itself_has_to_be_imported(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(MAIN, encoding="utf-8")
    done = python(program)
    assert "Local cannot stand in Process" in done.stdout, done.stderr
    assert "`import`" in done.stdout
    assert "Call cannot stand in Process" in done.stdout
    assert "a module of its own" in done.stdout
    assert "runs here" in done.stdout


def is_lent(pipe, node="main"):
    """Tell whether the process has a copy of a request, whose owner may leave with it since."""
    (instance,) = pipe._engine.built[node].node.instances
    return any(entry.lent for entry in instance.entries or ())


def test_a_deadline_frees_its_caller_while_the_process_runs_on(client, until, expire):
    with headrace.pipe({"backend": "Process[Call(time:sleep)]"}) as pipe:
        request = {"data": 1.0}
        calling = client(pipe, request, timeout=60)
        until(lambda: is_lent(pipe))
        expire(pipe, 1.0)
        with pytest.raises(DeadlineExceededError, match="while a backend ran on it") as late:
            calling.outcome()
        assert late.value.abandoned is False
        request["data"] = 0.0  # it is the caller's again
        assert pipe(request)["result"] is None
        future = pipe.submit({"data": 1.0}, timeout=60)
        until(lambda: is_lent(pipe))
        expire(pipe, 1.0)
        with pytest.raises(DeadlineExceededError) as late:
            future.result(60)
        assert late.value.abandoned is False


@pytest.mark.parametrize("around", ["{}", "S[Identity,{}]", "S[Identity,BackgroundThread[{}]]"])
def test_a_process_that_runs_on_after_the_last_deadline_is_killed(around):
    config = {"backend": around.format("Process(kill_after_ms=20)[Call(time:sleep)]")}
    with headrace.pipe(config) as pipe:
        before = _process_of(pipe)
        while _process_of(pipe) == before:  # a slow machine may not have sent it in that time
            with pytest.raises(DeadlineExceededError):
                pipe({"data": 1000.0}, timeout=0.05)
            assert pipe({"data": 0.0})["result"] is None
        assert (
            pipe({"data": 0.0}, timeout=1e7)["result"] is None
        )  # more than the system waits at once


def test_items_that_nobody_waits_for_are_not_run_once_more(file, monkeypatch, expire):
    backend = "S[Identity,Process(kill_after_ms=20,restart_limit=1)[Hangs]]"
    config = {"import": [file], "backend": backend, "batch_sizes": [3], "pad": True}
    with headrace.pipe(config) as pipe:
        before = _process_of(pipe)

        def after_all_deadlines():
            """The thread of the batch asks once the process has it, and again when it has been killed."""
            expire(pipe, True)
            return time.monotonic() + 3600

        clock = types.SimpleNamespace(monotonic=after_all_deadlines)
        with monkeypatch.context() as patched:
            patched.setattr(exchanges, "time", clock)
            patched.setattr(sys.modules[RunningBatch.__module__], "time", clock)
            for one in pipe.submit([{"data": True} for _ in range(3)], timeout=60):
                with pytest.raises(DeadlineExceededError):
                    one.result(60)
            requests = pipe([{"data": False} for _ in range(3)])
        assert [request["result"] for request in requests] == [False] * 3
        assert _process_of(pipe) != before


def test_ctrl_c_ends_the_process_of_the_batch_and_the_next_request_has_another(until, takes_turns):
    with headrace.pipe({"backend": "Process[Call(time:sleep)]"}) as pipe:
        before = _process_of(pipe)

        def interrupt():
            until(lambda: pipe.stats()["nodes"]["main"]["instances"][0]["busy"])
            until(lambda: pipe._engine.nodes[0].instances[0].backend._child.link.awaits)
            # CPython does not see a signal that comes just before a thread goes to sleep: once more.
            while not hit.is_set():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                hit.wait(0.05)

        def handle(signum, frame):
            if not hit.is_set():
                hit.set()
                raise KeyboardInterrupt

        hit = threading.Event()
        old = signal.signal(signal.SIGINT, handle)
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            with pytest.raises(KeyboardInterrupt) as caught:
                pipe({"data": 1000.0})
            thread.join()
        finally:
            signal.signal(signal.SIGINT, old)
        assert caught.value.abandoned is False
        assert pipe({"data": 0.0})["result"] is None
        assert _process_of(pipe) != before


@pytest.mark.parametrize("word", ["Process", "BackgroundThread"])
def test_an_exception_that_is_no_error_ends_neither_thread_nor_process(word):
    with headrace.pipe({"backend": f"{word}[Call(sys:exit)]", "max": 2}) as pipe:
        before = _process_of(pipe) if word == "Process" else None
        with pytest.raises(BackendError) as failed:
            pipe({"data": 3})
        assert type(failed.value) is BackendError
        assert isinstance(failed.value.__cause__, SystemExit)
        assert failed.value.__cause__.code == 3
        assert before == (_process_of(pipe) if word == "Process" else None)
        assert pipe.ready


def test_that_a_caller_has_left_is_no_fault_of_x(until, expire, caplog):
    with headrace.pipe({"backend": "Process[Call(time:sleep)]"}) as pipe:
        future = pipe.submit({"data": 0.1})
        until(lambda: is_lent(pipe))
        expire(pipe, 0.1)
        with pytest.raises(DeadlineExceededError):
            future.result()
        with pytest.raises(BackendError):  # once the process is idle
            pipe({"data": "none"})
        assert pipe.stats()["nodes"]["main"]["failed"] == {"deadline": 1, "backend": 1}
    assert "TypeError" in caplog.text
    assert "wrote no" not in caplog.text


def test_closing_kills_a_process_that_hangs(until, caplog):
    pipe = headrace.pipe({"backend": "Process[Call(time:sleep)]"})
    process = _process_of(pipe)
    future = pipe.submit({"data": 1000.0})
    until(lambda: is_lent(pipe))
    pipe.close(timeout=0.3)
    with pytest.raises(ClosedError) as closed:
        future.result()
    assert closed.value.abandoned is False
    _wait_until_gone(process)
    until(lambda: "SIGKILL" in caplog.text)
    assert "memory ran out" not in caplog.text


def test_branches_in_processes_that_hang_leave_their_caller_its_dict(until):
    hangs = {"backend": "Process[Call(time:sleep)]"}
    nodes = {"a": {"backend": "Identity", "next": "b,c"}, "b": hangs, "c": hangs}
    pipe = headrace.pipe(nodes)
    future = pipe.submit({"data": 1000.0})
    until(lambda: is_lent(pipe, "b") and is_lent(pipe, "c"))
    pipe.close(timeout=0)
    with pytest.raises(ClosedError) as closed:
        future.result(60)
    assert closed.value.abandoned is False


def test_closing_kills_a_process_that_hangs_while_it_is_closed(file, monkeypatch):
    monkeypatch.setattr(supervisor, "_CLOSE_S", 1000.0)
    pipe = headrace.pipe({"import": [file], "backend": "S[Process[Stays],Process[Stays]]"})
    monkeypatch.setattr(sys.modules[type(pipe._engine.closer).__module__], "_GRACE_S", 0.0)
    processes = _processes_of(pipe)
    assert len(processes) == 2
    pipe.close(timeout=0)
    for process in processes:
        _wait_until_gone(process)


def _wait_until_gone(process):
    """Wait for the end of a process that somebody else waits for, too."""
    try:
        file = os.pidfd_open(process)
    except ProcessLookupError:
        return
    with contextlib.closing(os.fdopen(file)) as end:
        assert select.select([end], [], [], 60.0)[0]


def test_requests_wait_while_the_only_instance_is_started_again_and_others_serve(file):
    config = {"import": [file], "backend": "Process[Fragile]", "instance_num": 2}
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": "poison"}, *({"data": n} for n in range(40))])
        with pytest.raises(InstanceLostError):
            futures[0].result()
        assert [one.result()["result"] for one in futures[1:]] == list(range(40))


@pytest.mark.first(
    "use other processes and machines: a part lives in a process of its own, which may crash"
)
def test_a_process_killed_while_nothing_runs_is_started_again(until):
    with headrace.pipe({"backend": "Process[Identity]"}) as pipe:
        process = _process_of(pipe)
        os.kill(process, 9)
        _wait_until_gone(process)
        until(lambda: _process_of(pipe) != process)  # also before it has run anything
        assert pipe({"data": 1}) == {"data": 1, "result": 1}
        assert pipe.stats()["nodes"]["main"]["failed"] == {}


def test_explain_shows_the_processes_and_how_often_they_load_a_file(file):
    config = {"import": [file], "backend": "S[Identity,Process[Loads]]"}
    found = headrace.explain({**config, "model": file, "instance_num": 8})["nodes"]["main"]
    assert found["processes"] == {"count": 8, "loads": {file: 8}}
    found = headrace.explain({"backend": "Identity"})["nodes"]["main"]
    assert "processes" not in found


@pytest.fixture
def starts(file):
    return {"import": [file], "backend": "Process[Starts]"}


@pytest.mark.parametrize(
    ("how", "message"),
    [("fails", "no device is left"), ("exits", "ended with status 3"), ("dies", "status 4")],
)
def test_a_start_that_fails_says_how(starts, capfd, how, message):
    with pytest.raises(SetupError, match=message):
        headrace.pipe({**starts, "how": how})
    number = capfd.readouterr().out.split()[1]
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


def test_a_start_that_is_given_up_says_so_and_ends_its_process():
    supervisor = Supervisor("given-up", ChildProcess, {}, Restarts(0), Liveness(), bool)
    with pytest.raises(SetupError, match="the build was given up"):
        supervisor.start(lambda: True)
    assert supervisor.over
    assert not supervisor.lives
    assert supervisor._closing  # so that no other process is started by its thread, which has ended
    assert not supervisor._thread.is_alive()


def test_a_process_that_dies_as_it_is_closed_keeps_its_descriptors_until_it_was_told():
    supervisor = Supervisor("told", ChildProcess, {}, Restarts(0), Liveness(), bool)
    found = []

    def end():
        # What closes the descriptors after a death takes this lock in the supervising thread.
        look = threading.Thread(target=lambda: found.append(supervisor._changed.acquire(False)))
        look.start()
        look.join()

    died = threading.Event()
    died.set()
    link = types.SimpleNamespace(end=end)
    supervisor.current = types.SimpleNamespace(link=link, ended=died)
    supervisor.close()
    assert found == [False]


def test_every_process_that_was_given_is_closed_though_its_caller_was_interrupted():
    supervisor = Supervisor("given", ChildProcess, {}, Restarts(0), Liveness(), bool)
    closed, died = [], threading.Event()
    died.set()

    def process(name):
        link = types.SimpleNamespace(end=bool)
        return types.SimpleNamespace(link=link, ended=died, close=lambda: closed.append(name))

    for name, before in (("a", []), ("b", ["a"]), ("c", ["a", "b"])):
        supervisor.current = process(name)
        assert supervisor.child() is supervisor.child() is supervisor.current
        assert closed == before
    supervisor.close()
    assert closed == ["a", "b", "c"]


def test_who_waits_for_a_report_goes_on_when_the_process_has_ended(monkeypatch, until):
    monkeypatch.setattr(local, "spawn", lambda code, files: None)
    child = Child(ChildProcess())
    waiting = threading.Thread(target=child.wait_reported, args=(1,), daemon=True)
    waiting.start()
    until(lambda: child._arrived._waiters)
    child.end()
    waiting.join(60)
    assert not waiting.is_alive()
    child.close()


def test_loggers_have_the_levels_that_they_have_here(file, request):
    for name, level in (("hrt.loud", 7), (None, 35)):
        logger = logging.getLogger(name)
        request.addfinalizer(lambda logger=logger, before=logger.level: logger.setLevel(before))
        logger.setLevel(level)
    with headrace.pipe({"import": [file], "backend": "Process[Level]"}) as p:
        assert [p({"data": name})["result"] for name in ("hrt.loud", "", "hrt.else")] == [7, 35, 0]


def test_a_process_that_cannot_be_sent_its_part_ends_and_the_build_says_why(monkeypatch):
    def fails(*args, **how):
        raise OSError(errno.ENOMEM, "no memory for the plan")

    monkeypatch.setattr(PipeLink, "send", fails)
    with pytest.raises(SetupError, match="no memory for the plan"):
        headrace.pipe({"backend": "Process[Identity]"})


@pytest.mark.parametrize("failing", ["memory_file", "pipe", "second pipe", "PipeLink", "spawn"])
def test_a_process_that_cannot_be_started_keeps_no_descriptors(monkeypatch, failing):
    calls = []

    def fails(*args, **more):
        calls.append(args)
        if failing == "second pipe" and len(calls) == 1:
            return pipe()
        raise OSError(errno.EMFILE, "too many")

    pipe = os.pipe
    if "pipe" in failing:
        monkeypatch.setattr(os, "pipe", fails)
    else:
        monkeypatch.setattr(local, failing, fails)
    gc.collect()
    before = _open_files()
    with pytest.raises(OSError, match="too many"):
        Child(ChildProcess())
    gc.collect()
    # Those of earlier tests may be closed meanwhile.
    assert not _open_files() - before


def _open_files():
    """Return the descriptors of this process, each with what it is of."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # such as that of the folder itself
            found.add((one.name, one.readlink()))
    return found


def test_a_system_that_is_no_posix_has_no_processes(monkeypatch):
    monkeypatch.setattr(spawning, "os", types.SimpleNamespace(name="nt"))
    with pytest.raises(SetupError, match="BackgroundThread"):
        spawning.spawn("pass", ())


def test_a_program_that_is_frozen_starts_no_process_for_that_would_be_the_program(
    tmp_path, monkeypatch
):
    started = tmp_path / "started"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(SetupError, match="frozen into a program"):
        headrace.pipe({"backend": "Process[Identity]"})
    assert not started.exists()


def test_a_file_in_memory_has_no_name_where_the_system_makes_no_such_files(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    file = spawning.memory_file()
    assert os.fstat(file).st_nlink == 0
    assert os.write(file, b"kept") == 4
    assert os.pread(file, 4, 0) == b"kept"
    os.close(file)


def test_what_is_printed_at_the_start_disturbs_nothing(starts, capfd):
    with headrace.pipe({**starts, "how": "prints"}) as pipe:
        assert pipe({"data": 0})["result"] == 0
    assert capfd.readouterr().out.startswith("started")


def test_a_start_that_hangs_is_left_by_ctrl_c_and_leaves_nothing(starts, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"import headrace\nheadrace.pipe({ {**starts, 'how': 'hangs'}!r})\n")
    done = subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with done:
        number = int(done.stdout.readline().split()[1])
        os.killpg(done.pid, signal.SIGINT)  # as a terminal does: the process inside gets it, too
        assert done.wait(60) != 0
        _wait_until_gone(number)


@pytest.fixture
def meeting(file):
    """Give a configuration whose three instances are built only once all three are in their ``init``."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as met:
        server.settimeout(60)

        def meet():
            for guest in [met.enter_context(server.accept()[0]) for _ in range(3)]:
                guest.sendall(b"1")

        host = threading.Thread(target=meet, daemon=True)
        host.start()
        yield {"import": [file], "port": server.getsockname()[1], "instance_num": 3}
        host.join(60)


def test_the_processes_of_all_instances_start_at_the_same_time(meeting):
    with headrace.pipe({**meeting, "backend": "Process[Meets]"}) as pipe:
        assert pipe({"data": 0})["result"] in range(3)


def test_the_processes_of_instances_that_are_not_built_end(meeting, capfd):
    def never(self, options, context):
        raise ValueError("no such model")

    headrace.register(
        "Never", type("Never", (headrace.Backend,), {"init": never, "forward": print})
    )
    with pytest.raises(SetupError, match="no such model"):
        headrace.pipe({**meeting, "backend": "S[Process[Meets],Never]"})
    numbers = [line.split()[1] for line in capfd.readouterr().out.splitlines()]
    assert len(numbers) == 3
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_what_cannot_be_sent_and_nobody_reads_stays_here(open_link):
    exchange = Exchange({"data", "context"}, {"data"}, None, None)
    batch = [{"data": 1, "context": threading.Lock()}, {"data": threading.Lock(), "context": 2}]
    packed, bad = pack(batch, open_link(spawning.memory_file()), {"data", "context"})
    errors = {}
    (values, sent), left = exchange._without(bad, packed, batch, errors)
    assert [{key: values[at] for key, at in one.items()} for one in sent] == [{"data": 1}]
    assert left == batch[:1]
    assert {number: error.key for number, error in errors.items()} == {id(batch[1]): "data"}


def test_only_what_has_become_of_a_request_is_sent_back():
    large, small = bytearray(9), "small"
    before = {"data": large, "a": small, "b": 7, "gone": 1}
    assert changes(before, {**before}) == ({}, {}, [])
    after = {"data": object(), "a": small, "c": small, "b": large, "result": 8}
    assert changes(before, after) == ({"c": "a"}, {"b": large, "result": 8}, ["gone"])
    apply(*changes(before, after), before)
    assert before == {**after, "data": large}  # what a result was made of is left as it came


def test_who_waits_for_another_process_looks_again_when_the_last_is_closed(client, until):
    siblings = Siblings()
    own, other = sibling(siblings, over=True), sibling(siblings)
    waits = client(siblings.borrow, own)
    until(lambda: siblings.waiting == 1)
    with siblings._changed:  # it sleeps
        pass
    other.close()
    assert waits.outcome() is own
    assert siblings.members == [own]


def test_who_waits_for_another_process_has_it_when_the_batch_there_has_ended(client, until):
    siblings = Siblings()
    own, other = sibling(siblings, over=True), sibling(siblings, lives=True)
    waits = []

    def run(batch, running):
        waits.append(client(siblings.borrow, own))
        until(lambda: siblings.waiting == 1)
        with siblings._changed:  # it sleeps
            pass

    other.min, other.liveness.outermost, other.run = 1, other, run
    other.forward([])
    assert waits[0].outcome() is other


@pytest.mark.parametrize("alone", [True, False])
def test_an_item_that_loses_the_instance_it_is_run_on_once_more_loses_that_one(alone):
    siblings = Siblings()
    own = sibling(siblings, lives=alone)
    own._here = ("n", 0)
    own.run = lambda batch, running: [InstanceLostError("its device is gone")]
    one = own if alone else sibling(siblings, lives=True)
    one.run = own.run
    outcome = own._once_more([{"data": 1}], RunningBatch((), may_leave=False))
    assert one.liveness.lost is not alone
    assert outcome.node == (None if alone else "n")  # raised anew here, own is found to be lost
    assert one.exchanging.acquire(blocking=False)


@pytest.mark.parametrize(
    "how",
    [
        "end(0, print)",  # the parent has ended before it looks
        "sys.modules['ctypes'] = None; end(os.getppid(), int)",  # where the system does not tell
    ],
)
def test_a_process_ends_with_its_parent(how):
    code = (
        "import os, sys, threading; from headrace_process.spawning import end_with_parent as end;"
        f"{how}; threading.Event().wait(60); print('it lives')"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (1, "")


OF_GROUPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.mark.parametrize("inside", ["{}", "Process[{}]"])
@pytest.mark.parametrize("number", OF_GROUPS)
def test_a_signal_to_the_group_is_left_to_the_program(number, inside):
    with headrace.pipe(
        {"backend": f"Process[{inside.format('Call(signal:raise_signal)')}]"}
    ) as pipe:
        before = _processes_of(pipe)
        assert pipe({"data": number})["result"] is None
        assert _processes_of(pipe) == before


@pytest.mark.parametrize("number", OF_GROUPS)
def test_a_signal_to_the_group_is_left_to_the_program_while_the_process_starts(number, capfd):
    code = (
        f"import os, signal; signal.raise_signal({int(number)});"
        "from headrace_process.spawning import end_with_parent as end; end(os.getppid(), int);"
        f"signal.raise_signal({int(number)}); print('it lives', flush=True)"
    )
    assert spawning.spawn(code, []).wait(300) == 0
    assert capfd.readouterr().out == "it lives\n"


SIGNALS = """
import multiprocessing, os, signal, subprocess, sys, threading
import headrace

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHOWS = "import signal; print([str(signal.getsignal(n)) for n in (15, 2, 1)])"


@headrace.register("Started")
def started(data):
    shown = [sys.executable, "-c", SHOWS]
    forked = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
    forked.start()
    forked.terminate()
    forked.join()
    return subprocess.run(shown, capture_output=True, text=True).stdout, forked.exitcode


@headrace.register("Handles")
class Handles:
    def __init__(self):
        self.came = []
        signal.signal(signal.SIGTERM, lambda number, frame: self.came.append(number))

    def forward(self, batch):
        for request in batch:
            signal.raise_signal(signal.SIGTERM)
            request["result"] = list(self.came)
"""


@pytest.fixture
def of_signals(tmp_path):
    (tmp_path / "of_signals.py").write_text(SIGNALS, encoding="utf-8")
    return str(tmp_path / "of_signals.py")


def test_what_is_started_in_the_process_takes_signals_as_ever(of_signals):
    shown = python("-c", "import signal; print([str(signal.getsignal(n)) for n in (15, 2, 1)])")
    with headrace.pipe({"import": [of_signals], "backend": "Process[Started]"}) as pipe:
        assert pipe({"data": 0})["result"] == (shown.stdout, -signal.SIGTERM)


def test_a_handler_of_the_backend_wins(of_signals):
    with headrace.pipe({"import": [of_signals], "backend": "Process[Handles]"}) as pipe:
        assert pipe({"data": 0})["result"] == [signal.SIGTERM]


IGNORED = """
import signal, headrace
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
with headrace.pipe({"backend": "Process[Call(signal:getsignal)]"}) as pipe:
    print(pipe({"data": 1})["result"] is signal.SIG_IGN)
"""


def test_a_signal_that_the_program_ignores_is_ignored_by_what_is_started_there_too():
    done = python("-c", IGNORED)
    assert done.stdout == "True\n", done.stderr


SHOWS_FILES = """
import os
for number in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink("/proc/self/fd/" + number))
    except FileNotFoundError:  # the one that has listed them
        pass
"""

STARTS_ANOTHER = f"""
import subprocess, sys
import headrace

@headrace.register("FilesOfAnother")
def files_of_another(data):
    command = [sys.executable, "-c", {SHOWS_FILES!r}]
    return subprocess.check_output(command, close_fds=False, text=True)
"""


def _files_of(process):
    """Find the descriptors of a process beside its standard streams, and what each is open for."""
    found = {}
    for one in [*Path(f"/proc/{process}/fd").iterdir()]:
        with contextlib.suppress(FileNotFoundError):  # the one that has listed them
            if int(one.name) > 2:
                found[one] = str(one.readlink())
    return found


def _listening():
    """Find all sockets of this machine at which somebody listens, as the system writes them."""
    found = set()
    for name, column, listens in (("tcp", 3, "0A"), ("tcp6", 3, "0A"), ("unix", 3, "00010000")):
        table = Path(f"/proc/net/{name}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[column] == listens:
                found.add(f"socket:[{fields[6 if name == 'unix' else 9]}]")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_only_the_two_processes_can_write_what_is_unpickled(tmp_path):
    (tmp_path / "another.py").write_text(STARTS_ANOTHER, encoding="utf-8")
    config = {"import": [str(tmp_path / "another.py")], "backend": "Process[FilesOfAnother]"}
    with headrace.pipe(config) as one, headrace.pipe(config) as other:
        process, second = _process_of(one), _process_of(other)
        files = _files_of(process)
        kinds = sorted(what.partition("[")[0] for what in {*files.values()})
        assert kinds == ["/memfd:headrace (deleted)", "pipe:", "pipe:", "socket:"]
        # The files in memory have one text for all, so they are told apart by their inodes below.
        way = {what for what in files.values() if not what.startswith("/memfd")}
        here = set(_files_of(os.getpid()).values())
        assert {what for what in way if what.startswith("pipe")} <= here
        with socket.create_server(("127.0.0.1", 0)) as known:
            listening = _listening()
            assert str(Path(f"/proc/self/fd/{known.fileno()}").readlink()) in listening
        assert not way & listening
        ours = subprocess.check_output(
            [sys.executable, "-c", SHOWS_FILES], close_fds=False, text=True
        )
        theirs = one({"data": 0})["result"]
        for elsewhere in (ours, theirs, "\n".join(_files_of(second).values())):
            assert elsewhere
            assert not way & set(elsewhere.splitlines())
        for shown in (ours, theirs):
            assert "/memfd:headrace" not in shown
        memory = {
            one.stat().st_ino: one.stat().st_nlink
            for one, what in files.items()
            if what.startswith("/memfd")
        }
        assert [*memory.values()] == [0]
        beside = {one.stat().st_ino for one in _files_of(second)}
        assert not beside & {*memory}
        assert Path(f"/proc/{process}/fd").stat().st_mode & 0o077 == 0  # for the owner alone
