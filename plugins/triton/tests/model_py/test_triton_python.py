"""model.py as it is: the kinds of models that Triton's documentation describes, in a process and in this one."""

from __future__ import annotations

import numpy as np
import pytest
from python_models import (
    ADD_SUB,
    ADD_SUB_CONFIG,
    BLS,
    BLS_ASYNC,
    BLS_CONFIG,
    FLOATS,
    NUMBER,
    SQUARE,
    SQUARE_CONFIG,
    SUM_ASYNC,
    SUM_CONFIG,
    SUM_SYNC,
    TEXT,
    config,
)

from headrace.errors import BackendError

A, B = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)


def add_sub(models, name="add_sub", **more):
    found = models(name, {"INPUT0": A, "INPUT1": B, **more})["result"]
    assert found["OUTPUT0"].tolist() == (A + B).tolist()
    assert found["OUTPUT1"].tolist() == (A - B).tolist()
    assert found["OUTPUT0"].dtype == np.float32


def parts_of(models, name, request):
    with models.lease(name) as pipe:
        *parts, last = pipe.stream(request)
    return parts, last["result"]


def test_a_model_adds_and_subtracts(models):
    add_sub(models({"add_sub": (ADD_SUB_CONFIG, ADD_SUB)}))


def test_a_model_is_told_where_it_lives(models, tmp_path):
    code = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        told = {**self.args, "dir": pb_utils.get_model_dir()}
        text = np.array([json.dumps(told).encode()], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""
    made = models({"tells": (config("tells", {}, {"OUT": TEXT}), code)})
    import json

    told = json.loads(made("tells", {})["result"]["OUT"][0])
    assert json.loads(told.pop("model_config"))["name"] == "tells"
    assert told == {
        "model_name": "tells",
        "model_version": "1",
        "model_repository": str(tmp_path / "tells"),
        "model_instance_name": "tells_0_0",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "dir": str(tmp_path / "tells" / "1"),
    }


def test_requests_share_a_batch_of_rows(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        rows = [one.inputs()[0].as_numpy() for one in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * 0 + len(rows))]) for one in rows
        ]
"""
    about = config("rows", {"IN": FLOATS}, {"OUT": FLOATS}, most=8)
    made = models({"rows": (about, code)}, batching_timeout=10_000, batch_sizes=[6])
    requests = [{"IN": np.ones((2, 4), np.float32), "request_size": 2} for _ in range(3)]
    for one in made("rows", requests):
        assert one["result"]["OUT"].tolist() == [[3.0] * 4] * 2


def test_a_request_tells_what_came_with_it(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for one in requests:
            told = [
                one.request_id(), json.loads(one.parameters()), one.correlation_id(), one.flags(),
                one.requested_output_names(), one.timeout() > 0, one.is_cancelled(), one.model_name(),
            ]
            text = np.array([json.dumps(told)], object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]))
        return answers
"""
    import json

    made = models({"tells": (config("tells", {}, {"OUT": TEXT}), code)})
    request = {
        "request_id": "7",
        "context": {"parameters": {"k": 1}},
        "sequence_id": 9,
        "sequence_start": True,
    }
    (text,) = made("tells", request, timeout=100)["result"]["OUT"]
    told = ["7", {"k": 1}, 9, 1, ["OUT"], True, False, "tells"]
    assert json.loads(text) == told


@pytest.mark.parametrize("in_process", [True], indirect=True)
def test_text_is_bytes(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy() + b"!")])
            for one in requests
        ]
"""
    made = models({"text": (config("text", {"IN": TEXT}, {"OUT": TEXT}), code)})
    for given in (np.array(["hällo"], object), np.array(["hällo"])):
        assert made("text", {"IN": given})["result"]["OUT"].tolist() == ["hällo!".encode()]


@pytest.mark.parametrize("in_process", [True], indirect=True)
def test_a_response_is_an_error_of_its_request_alone(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for one in requests:
            (number,) = one.inputs()[0].as_numpy().ravel()
            if number:
                error = pb_utils.TritonError("no such row", pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=error))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy())]))
        return answers
"""
    about = config("picks", {"IN": NUMBER}, {"OUT": NUMBER}, most=2)
    made = models({"picks": (about, code)}, batching_timeout=10_000, batch_sizes=[2])
    requests = [{"IN": np.array([[one]], np.int32)} for one in (0, 1)]
    from headrace.errors import InputError, RequestsFailed

    with pytest.raises(RequestsFailed) as caught:
        made("picks", requests)
    assert caught.value.errors[0] is None
    assert isinstance(caught.value.errors[1], InputError)
    assert "no such row" in str(caught.value.errors[1])


@pytest.mark.parametrize("code", [BLS, BLS_ASYNC], ids=["exec", "async_exec"])
def test_a_model_calls_another_by_its_name(models, code):
    made = models({"add_sub": (ADD_SUB_CONFIG, ADD_SUB), "bls": (BLS_CONFIG, code)})
    more = {"MODEL_NAME": np.array([b"add_sub"], object)} if code is BLS else {}
    add_sub(made, "bls", **more)


def test_a_call_of_a_model_that_is_not_there_is_an_error(models):
    made = models({"add_sub": (ADD_SUB_CONFIG, ADD_SUB), "bls": (BLS_CONFIG, BLS)})
    with pytest.raises(BackendError) as caught:
        made("bls", {"INPUT0": A, "INPUT1": B, "MODEL_NAME": np.array([b"add_subs"], object)})
    assert "add_subs" in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("number", [0, 5])
def test_a_decoupled_model_sends_any_number_of_responses(models, number):
    made = models({"square": (SQUARE_CONFIG, SQUARE)})
    parts, last = parts_of(made, "square", {"IN": np.array([number], np.int32)})
    assert [one["OUT"].tolist() for one in parts] == [[number]] * number
    assert last is None


def test_a_response_with_the_final_flag_is_the_result(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        for one in requests:
            sender = one.get_response_sender()
            for left in (2, 1, 0):
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([left], np.int32))])
                sender.send(answer, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if not left else 0)
"""
    about = config("down", {}, {"OUT": NUMBER}, decoupled=True)
    parts, last = parts_of(models({"down": (about, code)}), "down", {})
    assert [one["OUT"].tolist() for one in parts] == [[2], [1]]
    assert last["OUT"].tolist() == [0]


@pytest.mark.parametrize("code", [SUM_SYNC, SUM_ASYNC], ids=["exec", "async_exec"])
def test_a_model_calls_a_decoupled_one(models, code):
    made = models({"square": (SQUARE_CONFIG, SQUARE), "sum": (SUM_CONFIG, code)}, instance_num=2)
    assert made("sum", {"IN": np.array([4], np.int32)})["result"]["SUM"].tolist() == [32]


def test_a_decoupled_coroutine_answers_later(models):
    code = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        for one in requests:
            await asyncio.sleep(0)
            answer = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy() * 2)])
            one.get_response_sender().send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    about = config("later", {"IN": NUMBER}, {"OUT": NUMBER}, decoupled=True)
    made = models({"later": (about, code)})
    assert made("later", {"IN": np.array([4], np.int32)})["result"]["OUT"].tolist() == [8]


@pytest.mark.parametrize("in_process", [True], indirect=True)
def test_tensors_go_to_other_libraries_and_back(models):
    code = """
class Foreign:
    def __init__(self, array):
        self.array = array
    def __dlpack__(self, **settings):
        return self.array.__dlpack__()
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for one in requests:
            seen = np.from_dlpack(one.inputs()[0]) * 2
            first = pb_utils.Tensor.from_dlpack("OUT", Foreign(seen))
            second = pb_utils.Tensor.from_dlpack("CAPSULE", first.to_dlpack())
            assert first.is_cpu() and first.shape() == (4,)
            answers.append(pb_utils.InferenceResponse([first, second]))
        return answers
"""
    about = config("dl", {"IN": FLOATS}, {"OUT": FLOATS, "CAPSULE": FLOATS})
    found = models({"dl": (about, code)})("dl", {"IN": A})["result"]
    assert found["OUT"].tolist() == found["CAPSULE"].tolist() == (A * 2).tolist()


def test_helpers_of_one_name_do_not_meet(models, tmp_path):
    code = """
from helper import VALUE

class TritonPythonModel:
    def execute(self, requests):
        from lazily import LATER
        value = np.array([VALUE + LATER], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for _ in requests]
"""
    about = {one: config(one, {}, {"OUT": NUMBER}) for one in ("one", "two")}
    for number, name in enumerate(about):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "helper.py").write_text(f"VALUE = {number}")
        (tmp_path / name / "1" / "lazily.py").write_text(f"LATER = {10 * number}")
    made = models({name: (about[name], code) for name in about})
    assert [made(name, {})["result"]["OUT"].tolist() for name in about] == [[0], [11]]


def test_what_a_model_logs_is_logged_here(models, caplog):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_warn("fish")
        pb_utils.Logger.log("chips", pb_utils.Logger.ERROR)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
    models({"logs": (config("logs", {}, {}), code)})("logs", {})
    found = [
        (one.levelname, one.message) for one in caplog.records if one.name == "headrace.triton"
    ]
    assert found == [("WARNING", "fish"), ("ERROR", "chips")]


def test_numbers_of_another_width_become_those_of_the_configuration(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        given = [one.inputs()[0].as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("WHOLE", np.array([int(one[0])])), pb_utils.Tensor("REAL", one.astype(np.float64))
        ]) for one in given]
"""
    about = config("wide", {"IN": FLOATS}, {"WHOLE": NUMBER, "REAL": FLOATS})
    made = models({"wide": (about, code)})
    found = made("wide", {"IN": A + 3})["result"]
    assert (found["WHOLE"].dtype, found["REAL"].dtype) == (np.int32, np.float32)
    assert (found["WHOLE"].tolist(), found["REAL"].tolist()) == ([3], (A + 3).tolist())
    with pytest.raises(BackendError, match=r"the output 'WHOLE' is int64 \[1\]"):
        made("wide", {"IN": A + 2**40})


def test_the_name_of_a_called_model_may_be_an_element_of_text(models):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        asked = pb_utils.InferenceRequest(model_name=b"add_sub", inputs=requests[0].inputs())
        return [pb_utils.InferenceResponse(asked.exec().output_tensors())]
"""
    both = {"INPUT0": FLOATS, "INPUT1": FLOATS}
    about = config("by_bytes", both, {"OUTPUT0": FLOATS, "OUTPUT1": FLOATS})
    add_sub(models({"by_bytes": (about, code), "add_sub": (ADD_SUB_CONFIG, ADD_SUB)}), "by_bytes")
