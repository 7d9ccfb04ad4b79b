"""Process: a part of an expression in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import headrace
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ConfigError,
    ContractError,
    InputError,
    InstanceLostError,
    RequestsFailed,
    SetupError,
)

FILE = '''
import os, threading
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
        context.at_batch_end(lambda: None)
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

class Adds(headrace.Backend):
    reads = ("left", "right")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["left"] + request["right"]


headrace.register("Adds", Adds)


@headrace.register("Triple")
def triple(number):
    return number * 3
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with backends; what closes writes into ``closed``."""
    monkeypatch.setenv("CLOSED_FILE", str(tmp_path / "closed"))
    path = tmp_path / "far_words.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_what_is_inside_runs_in_a_process_of_its_own_and_is_closed_there(file, tmp_path):
    config = {"import": [file], "backend": "S[Identity,Process[Where]]", "max": 4}
    with headrace.pipe({**config, "instance_num": 2}) as pipe:
        pid, count, thread = pipe({"data": 1})["result"]
        assert pid != os.getpid()
        assert (count, thread) == (1, "MainThread")
        built = pipe.describe()["nodes"]["main"]["tree"]["children"][1]["built"]
        assert built["process"] == pid
        assert built["tree"]["name"] == "Where"
    with headrace.pipe({"import": [file], "backend": "Process[Far]"}) as pipe:
        node = pipe.describe()["nodes"]["main"]
        assert (node["owns_thread"], node["range"]) == (True, [1, 4])
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


@pytest.mark.parametrize("inside", ["Adds", "S[Adds,Triple]", "IoC[Adds;S[Adds,Triple]]"])
def test_what_is_inside_says_which_keys_a_request_needs(file, inside):
    with headrace.pipe({"import": [file], "backend": f"Process[{inside}]"}) as pipe:
        assert pipe({"left": 1, "right": 2})["result"] == (3 if inside == "Adds" else 9)
        with pytest.raises(InputError) as caught:
            pipe({"left": 1})
    assert caught.value.key == "right"


def test_functions_and_plain_classes_are_known_there(file):
    backend = "Process[S[Triple,Call(builtins:str)]]"
    with headrace.pipe({"import": [file], "backend": backend}) as pipe:
        assert pipe({"data": 2})["result"] == "6"


def test_what_another_process_cannot_know_is_told_at_setup(file):
    class Local:
        def forward(self, batch):
            pass

    headrace.register("LocalToTest", Local)
    with pytest.raises(SetupError, match="put them into a module"):
        headrace.pipe({"backend": "Process[LocalToTest]"})
    with pytest.raises(SetupError, match="lambda"):
        headrace.pipe({"import": [file], "backend": "Process[Double]"})
    with pytest.raises(SetupError, match="a float, not callable"):
        headrace.pipe({"backend": "Process[Call(math:pi)]"})


@pytest.mark.parametrize(
    "backend",
    [
        "Process[Send(q)]",
        "Process[Recv(q)]",
        "Process[Forward[node.other]]",
        "IoC[Identity;Process[Identity]]",
        "Process[S[Identity,Repost[other]]]",
    ],
)
def test_what_reaches_out_of_the_process_is_refused(backend):
    with pytest.raises(ConfigError, match="cannot stand in Process"):
        headrace.PipelineConfig.load({"a": {"backend": backend}, "other": {"backend": "Identity"}})


def test_instances_inside_are_its_own():
    with headrace.pipe({"backend": "Process[IoC[Identity;S[Identity,Identity]]]"}) as pipe:
        assert pipe({"data": 7})["result"] == 7


def test_a_process_that_dies_fails_its_batch_and_reload_brings_another():
    backend = "Process[Call(os:_exit)]"
    with headrace.pipe({"backend": backend, "max": 2}) as pipe:
        with pytest.raises(InstanceLostError, match="status 7"):
            pipe({"data": 7})
        assert not pipe.ready
        pipe.reload("main", {})
        assert pipe.ready
        with pytest.raises(BackendError, match="TypeError"):
            pipe({"data": "no number"})


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
    done = subprocess.run(
        [sys.executable, program, how], capture_output=True, text=True, check=False, timeout=60
    )
    # Its output is open as long as a process that has inherited it lives: run() has seen the end.
    assert done.returncode == (0 if how == "ended" else -9), done.stderr
    assert done.stdout.strip().isdigit()
