"""model.py that breaks a rule of the interface, hangs, or dies: what becomes of its requests, and of the others."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import numpy as np
import pytest
from python_models import NUMBER, SQUARE, SQUARE_CONFIG, build, config

import headrace
from headrace.errors import (
    ConfigError,
    ContractError,
    DeadlineExceededError,
    InputError,
    InstanceLostError,
    RequestsFailed,
    SetupError,
)
from headrace_process import process
from headrace_process.places import Restarts

ONE = {"IN": np.array([1], np.int32)}


@pytest.fixture
def model(models):
    """Return a function that builds a model of the methods of its class."""

    def make(methods, about=None, **keys):
        about = about or config("m", {"IN": NUMBER}, {"OUT": NUMBER})
        code = "class TritonPythonModel:\n" + methods
        return models({about["name"]: (about, code)}, **keys)

    return make


ROWS = config("m", {"IN": NUMBER}, {"OUT": NUMBER}, most=2)
DECOUPLED = config("m", {"IN": NUMBER}, {"OUT": NUMBER}, decoupled=True)


@pytest.mark.parametrize("in_process", [True], indirect=True)
@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("answers[:1]", "execute gave 1 for 2 requests"),
        ("answers * 2", "execute gave 4 for 2 requests"),
        ("None", "execute gave None"),
        ("answers[0]", "execute gave InferenceResponse for 2 requests"),
        ("[None, None]", "execute gave NoneType in place of an InferenceResponse"),
    ],
)
def test_a_wrong_number_of_responses_fails_all(model, returned, text):
    execute = f"""
    def execute(self, requests):
        answers = [answer(number([[1]])) for _ in requests]
        return {returned}
"""
    models = model(execute, ROWS, batching_timeout=10_000, batch_sizes=[2])
    requests = [{"IN": np.array([[one]], np.int32)} for one in (0, 1)]
    with pytest.raises(RequestsFailed) as caught:
        models("m", requests)
    for error in caught.value.errors:
        assert isinstance(error, ContractError)
        assert text in str(error)


@pytest.mark.parametrize("in_process", [True], indirect=True)
@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        ("number([1.0], dtype=np.float32)", "the output 'OUT' is float32 [1]"),
        ("number([1, 2])", "the output 'OUT' is int32 [2]"),
        ("number(1)", "the output 'OUT' is int32 []"),
        ("number([1], 'OTHER')", "the model gave an output 'OTHER'"),
    ],
)
def test_outputs_are_those_of_the_configuration(model, tensor, text):
    execute = f"""
    def execute(self, requests):
        return [answer({tensor}) for _ in requests]
"""
    with pytest.raises(ContractError) as caught:
        model(execute)("m", dict(ONE))
    assert text in str(caught.value)
    assert "TYPE_INT32 [1]" in str(caught.value) or "OUT" in str(caught.value)


@pytest.mark.parametrize("in_process", [True], indirect=True)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "IN"),
        ({"IN": np.array([1.0])}, "expected TYPE_INT32 [1], got float64 [1]"),
        ({"IN": np.array([1, 2], np.int32)}, "expected TYPE_INT32 [1], got int32 [2]"),
    ],
)
def test_inputs_are_those_of_the_configuration(model, given, text):
    with pytest.raises(InputError) as caught:
        model("    def execute(self, requests):\n        pass\n")("m", given)
    assert text in str(caught.value)


def test_what_execute_raises_is_the_error(model):
    execute = """
    def execute(self, requests):
        raise pb_utils.TritonModelException("no weights")
"""
    with pytest.raises(headrace.errors.BackendError) as caught:
        model(execute)("m", dict(ONE))
    assert "no weights" in f"{caught.value} {caught.value.__cause__}"


SENDS = """
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        for one in requests:
            sender = one.get_response_sender()
            {sends}
"""


def test_a_sender_used_after_the_final_flag_raises_in_the_model(model, tmp_path):
    sends = f"""
            sender.send(answer(number([1])), FINAL)
            for use in (lambda: sender.send(answer(number([2]))), lambda: sender.send(flags=FINAL)):
                try:
                    use()
                except pb_utils.TritonModelException as error:
                    with open({str(tmp_path / "said")!r}, "a") as file:
                        file.write(str(error) + "\\n")
"""
    models = model(SENDS.format(sends=sends), DECOUPLED)
    assert models("m", dict(ONE))["result"]["OUT"].tolist() == [1]
    lines = (tmp_path / "said").read_text().splitlines()
    assert [one.startswith("the sender was used after the final flag") for one in lines] == [
        True
    ] * 2


def test_a_model_that_is_not_decoupled_sends_one_response(model):
    sends = """
            sender.send(answer(number([1])))
            sender.send(answer(number([2])), FINAL)
"""
    models = model(SENDS.format(sends=sends))
    assert models("m", dict(ONE))["result"]["OUT"].tolist() == [1]


@pytest.mark.parametrize("about", [DECOUPLED, None], ids=["decoupled", "one response"])
def test_a_sender_that_is_never_used_ends_by_the_deadline(model, about):
    models = model(SENDS.format(sends="self.kept.append(sender)"), about)
    with pytest.raises(DeadlineExceededError):
        models("m", dict(ONE), timeout=0.5)
    with pytest.raises(DeadlineExceededError):  # the instance goes on
        models("m", dict(ONE), timeout=0.5)


def test_a_sender_that_is_dropped_ends_its_request(model):
    with pytest.raises(ContractError, match="dropped a request without an answer"):
        model(SENDS.format(sends="pass"), DECOUPLED)("m", dict(ONE))


def test_a_request_is_cancelled_by_who_leaves(model, tmp_path):
    execute = f"""
    def execute(self, requests):
        threading.Thread(target=self.send, args=(requests[0].get_response_sender(),)).start()
    def send(self, sender):
        sender.send(answer(number([1])))
        while not sender.is_cancelled():
            pass
        sender.send(flags=FINAL)
        open({str(tmp_path / "left")!r}, "w").close()
    def finalize(self):
        pass
"""
    models = model(execute, DECOUPLED)
    with models.lease("m") as pipe:
        stream = pipe.stream(dict(ONE))
        assert next(stream)["OUT"].tolist() == [1]
        stream.close()
    poll = threading.Event()
    while not (tmp_path / "left").exists():
        poll.wait(0.01)


def test_a_thread_that_outlives_its_model_sends_nothing(model, tmp_path):
    execute = f"""
    def execute(self, requests):
        self.sender = requests[0].get_response_sender()
        self.sender.send(answer(number([1])), FINAL)
    def finalize(self):
        threading.Thread(target=self.late, args=(self.sender,)).start()
    def late(self, sender):
        try:
            sender.send(answer(number([2])))
        except pb_utils.TritonModelException as error:
            with open({str(tmp_path / "late")!r}, "w") as file:
                file.write(str(error))
"""
    models = model(execute, DECOUPLED)
    assert models("m", dict(ONE))["result"]["OUT"].tolist() == [1]
    models.close()
    poll = threading.Event()
    while not (tmp_path / "late").exists() or not (tmp_path / "late").read_text():
        poll.wait(0.01)
    assert "after its model" in (tmp_path / "late").read_text()


def test_an_initialize_that_raises_fails_the_build(model):
    methods = """
    def initialize(self, args):
        raise pb_utils.TritonModelException("no weights")
    def execute(self, requests):
        pass
"""
    with pytest.raises(SetupError) as caught:
        model(methods)
    assert "no weights" in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("code", ["x = 1\n", "class TritonPythonModel:\n    pass\n"])
def test_a_file_without_the_class_fails_the_build(tmp_path, in_process, code):
    about = config("m", {}, {})
    with pytest.raises(SetupError, match="no class TritonPythonModel with a method `execute`"):
        build(tmp_path, {"m": (about, code)}, in_process=in_process)


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ("[]", "an object"),
        ('{"max_batch_size": 1}', "has a name"),
        ('{"name": "m", "input": [{"name": "IN", "data_type": "FP32"}]}', "data_type"),
        ("{", "JSON"),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path, about, text):
    file = tmp_path / "model.py"
    file.write_text("x = 1\n")
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(
            {"backend": "TritonPython", "model": str(file), "config": about}
        )
    assert text in str(caught.value)


def test_code_is_refused_with_imports(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("x = 1\n")
    source = {"backend": "TritonPython", "model": str(file), "config": '{"name": "m"}'}
    with pytest.raises(SetupError, match="imports are refused"):
        headrace.pipe(source, allow_import=False)


CIRCLE = """
    def execute(self, requests):
        call = pb_utils.InferenceRequest(
            model_name="m", requested_output_names=["OUT"], inputs=requests[0].inputs()
        )
        found = call.exec()
        if found.has_error():
            return [pb_utils.InferenceResponse(error=found.error())]
        return [found]
"""
ASYNC_CIRCLE = CIRCLE.replace("def execute", "async def execute").replace(
    "call.exec()", "await call.async_exec()"
)


@pytest.mark.parametrize("code", [CIRCLE, ASYNC_CIRCLE], ids=["exec", "async_exec"])
def test_a_model_that_calls_itself_ends_with_an_error(model, code):
    models = model(code, instance_num=2)
    with pytest.raises(headrace.errors.BackendError, match="wait for each other in a circle"):
        models("m", dict(ONE))


def test_a_killed_process_costs_its_batch(tmp_path):
    execute = """
    def execute(self, requests):
        (value,) = requests[0].inputs()[0].as_numpy()
        if value == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return [answer(number([value])) for _ in requests]
"""
    about = config("m", {"IN": NUMBER}, {"OUT": NUMBER})
    code = "class TritonPythonModel:\n" + execute
    with build(tmp_path, {"m": (about, code)}) as models:
        for _ in range(2):
            with pytest.raises(InstanceLostError, match="SIGKILL"):
                models("m", {"IN": np.array([9], np.int32)})
            assert models("m", {"IN": np.array([3], np.int32)})["result"]["OUT"].tolist() == [3]


def test_a_caller_of_a_model_that_dies_gets_its_error(tmp_path):
    dies = """
class TritonPythonModel:
    def execute(self, requests):
        os.kill(os.getpid(), signal.SIGKILL)
"""
    calls = """
class TritonPythonModel:
    def execute(self, requests):
        call = pb_utils.InferenceRequest(model_name="dies", inputs=requests[0].inputs())
        return [pb_utils.InferenceResponse(error=call.exec().error())]
"""
    about = {one: config(one, {"IN": NUMBER}, {"OUT": NUMBER}) for one in ("dies", "calls")}
    models = build(tmp_path, {"dies": (about["dies"], dies), "calls": (about["calls"], calls)})
    with models, pytest.raises(headrace.errors.BackendError, match="SIGKILL"):
        models("calls", dict(ONE))


@pytest.mark.slow
def test_fifty_kills_under_load_cost_their_batches_alone(tmp_path, monkeypatch):
    # A process that dies again and again is started after long pauses. Here they are short.
    monkeypatch.setattr(process, "Restarts", partial(Restarts, longest_pause_s=0.01))
    execute = """
    def execute(self, requests):
        values = [one.inputs()[0].as_numpy() for one in requests]
        if any((one < 0).any() for one in values):
            os.kill(os.getpid(), signal.SIGKILL)
        return [answer(number(one * 2)) for one in values]
"""
    code = "class TritonPythonModel:\n" + execute
    outcomes, died = [], []

    def ask(seed):
        for one in range(50):
            value = -1 if seed < 5 and one % 5 == 0 else 100 * seed + one
            try:
                found = models("m", {"IN": np.array([[value]], np.int32)})["result"]["OUT"]
                outcomes.append(found.tolist() == [[2 * value]])
            except InstanceLostError:
                died.append(value)

    with build(tmp_path, {"m": (ROWS, code)}, instance_num=2) as models:
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(10)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        counts = models.pipeline("m", "1").stats()["nodes"]["main"]
    assert len(outcomes) + len(died) == 500
    assert all(outcomes)
    assert died.count(-1) == 50
    assert len(died) <= 100  # a kill costs one batch, of two requests at most
    assert counts["ok"] == len(outcomes)


def test_a_decoupled_process_that_dies_ends_its_streams(tmp_path):
    code = SQUARE.replace(
        "for _ in range(number[0]):",
        "if number[0] == 9:\n            import os\n            os.abort()\n        for _ in range(number[0]):",
    )
    with build(tmp_path, {"square": (SQUARE_CONFIG, code)}) as models:
        with models.lease("square") as pipe, pytest.raises(InstanceLostError):
            list(pipe.stream({"IN": np.array([9], np.int32)}))
        with models.lease("square") as pipe:
            assert len(list(pipe.stream({"IN": np.array([3], np.int32)}))) == 4


def test_a_coroutine_that_ends_its_loop_ends_its_batch_alone(model):
    execute = """
    async def execute(self, requests):
        import asyncio, sys
        (value,) = requests[0].inputs()[0].as_numpy()
        if value == 8:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
        if value == 9:
            sys.exit(3)
        return [answer(number([value]))]
"""
    models = model(execute)
    for value in (9, 8, 9, 1):
        given = {"IN": np.array([value], np.int32)}
        if value == 9:
            with pytest.raises(headrace.errors.BackendError, match="SystemExit"):
                models("m", given, timeout=30)
        else:
            assert models("m", given, timeout=30)["result"]["OUT"].tolist() == [value]


def test_a_batch_that_ended_by_sys_exit_lends_its_time_to_no_call(tmp_path, in_process):
    calls = """
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] == 9:
            os.sys.exit(3)
        call = pb_utils.InferenceRequest(model_name="told", inputs=requests[0].inputs())
        return [call.exec()]
"""
    told = """
    def execute(self, requests):
        return [answer(number([requests[0].timeout() > 0]))]
"""
    head = "class TritonPythonModel:\n"
    about = {one: config(one, {"IN": NUMBER}, {"OUT": NUMBER}) for one in ("calls", "told")}
    codes = {"calls": (about["calls"], head + calls), "told": (about["told"], head + told)}
    with build(tmp_path, codes, in_process=in_process) as models:
        with pytest.raises(headrace.errors.BackendError, match="SystemExit"):
            models("calls", {"IN": np.array([9], np.int32)})
        assert models("calls", dict(ONE), timeout=30)["result"]["OUT"].tolist() == [1]


def test_a_model_may_empty_the_list_of_its_requests(model):
    execute = """
    def execute(self, requests):
        answers = [answer(number([3])) for _ in requests]
        requests.clear()
        return answers
"""
    assert model(execute)("m", dict(ONE))["result"]["OUT"].tolist() == [3]


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("answer(None)", "outputs of a response are tensors"),
        ("pb_utils.InferenceResponse(error=3)", "3"),
    ],
)
def test_a_response_of_something_else_is_told(model, response, said):
    with pytest.raises(headrace.errors.BackendError, match=said):
        model(f"    def execute(self, requests):\n        return [{response}]\n")("m", dict(ONE))


def test_elements_of_text_that_are_none_are_told_as_text(model):
    about = config("m", {"IN": NUMBER}, {"OUT": {"data_type": "TYPE_STRING", "dims": [-1]}})
    execute = """
    def execute(self, requests):
        return [answer(number([1.5, None, "a", b"b"], dtype=object))]
"""
    found = model(execute, about)("m", dict(ONE))["result"]["OUT"]
    assert found.tolist() == ["1.5", "None", "a", b"b"]


def test_a_model_may_change_an_input_in_place(model):
    execute = """
    def execute(self, requests):
        found = requests[0].inputs()[0].as_numpy()
        found += 1
        return [answer(number(found))]
"""
    given = np.frombuffer(np.array([4], np.int32).tobytes(), np.int32)  # as of a client
    assert model(execute)("m", {"IN": given})["result"]["OUT"].tolist() == [5]
    assert given.tolist() == [4]


CHILD = """
import subprocess

class TritonPythonModel:
    def initialize(self, args):
        subprocess.Popen(["/bin/sh", "-c", "exec 3> '{0}'; exec sleep 1000"])
    def execute(self, requests):
        pid = np.array([os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pid)]) for _ in requests]
"""


@pytest.mark.parametrize("how", ["close", "kill"])
def test_what_a_model_starts_ends_with_its_process(tmp_path, how):
    held = tmp_path / "held"
    os.mkfifo(held)
    about = config("m", {}, {"OUT": NUMBER})
    with build(tmp_path, {"m": (about, CHILD.format(held))}) as models, held.open("rb") as first:
        (pid,) = models("m", {})["result"]["OUT"]
        if how == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            models.close()
        assert first.read() == b""  # its end, once nobody holds the other one
