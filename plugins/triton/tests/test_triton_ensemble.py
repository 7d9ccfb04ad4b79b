"""An ensemble whose models fail, wait, or answer in parts."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import headrace
from headrace.errors import (
    BackendError,
    ConfigError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
)
from headrace_models import Memory, Models

pytestmark = pytest.mark.first("an ensemble of Triton is served as it is")

ONE = np.ones((1, 2), np.float32)


class Acts(headrace.Backend):
    """Do what a test says, for a request that it knows by its first number."""

    reads = ("x",)
    keeps = True
    acts = staticmethod(lambda backend, request: None)

    def init(self, options, context):
        self.context = context.request

    def forward(self, batch):
        return [Acts.acts(self, request) for request in batch]

    def describe(self):
        port = {"dtype": "float32", "shape": [None, 2], "batched": True}
        return {"inputs": {"x": {"key": "x", **port}}, "outputs": {"y": port}}


headrace.register("EnsembleActs", Acts)


def config(optional=False):
    def port(name, **more):
        return {"name": name, "data_type": "TYPE_FP32", "dims": [2], "optional": False, **more}

    step = {
        "model_name": "m",
        "model_version": -1,
        "input_map": {"x": "A"},
        "output_map": {"y": "B"},
    }
    made = {
        "max_batch_size": 4,
        "input": [port("A"), port("O", optional=True)] if optional else [port("A")],
        "output": [port("B")],
        "ensemble_scheduling": {"step": [step]},
    }
    return {"backend": "TritonEnsemble", "config": json.dumps(made)}


@pytest.fixture
def models(monkeypatch):
    def acts(function):
        monkeypatch.setattr(Acts, "acts", staticmethod(function))

    with Models(
        {"e": config(), "optional": config(optional=True), "m": {"backend": "EnsembleActs"}}
    ) as made:
        made.acts = acts
        yield made


def doubles(backend, request):
    request["result"] = 2 * request["x"]


def test_an_input_that_is_optional_may_be_missing_and_another_may_not(models):
    models.acts(doubles)
    found = models("optional", {"A": ONE, "request_size": 1})["result"]
    np.testing.assert_array_equal(found["B"], 2 * ONE)
    with pytest.raises(InputError, match="'A'"):
        models("e", {"request_size": 1})


def test_an_ensemble_counts_with_its_models_in_a_budget():
    given = {"e": config(), "m": {"backend": "EnsembleActs"}}
    memory = Memory({"host": "3 GiB"}, sizes={"e": "1 GiB", "m": "2.5 GiB"})
    with pytest.raises(
        ConfigError, match=r"'e:1' takes .* bytes on host .e:1 1073741824, m:1 2684354560"
    ):
        Models(given, memory=memory)


def test_the_error_of_a_model_is_that_of_the_ensemble(models):
    models.acts(lambda backend, request: InputError("this is bad"))
    with pytest.raises(InputError, match="this is bad"):
        models("e", {"A": ONE, "request_size": 1})


def test_a_model_that_is_unloaded_is_told_as_one_that_may_be_back(models):
    models.acts(doubles)
    models.unload("m")
    with pytest.raises(OverloadedError, match="model 'm:1' takes no requests"):
        models("e", {"A": ONE})
    models.load("m")
    assert models("e", {"A": ONE})["result"]["B"].tolist() == [[2, 2]]


def test_a_request_fails_alone(models):
    def act(backend, request):
        return InputError("zero") if not request["x"].any() else doubles(backend, request)

    models.acts(act)
    good, bad = ({"A": one, "request_size": 1} for one in (ONE, 0 * ONE))
    futures = models.submit("e", [good, bad])
    np.testing.assert_array_equal(futures[0].result()["result"]["B"], 2 * ONE)
    with pytest.raises(InputError, match="zero"):
        futures[1].result()


def test_the_deadline_of_a_request_is_that_of_its_models(models):
    deadlines = []

    def act(backend, request):
        deadlines.append(backend.context.deadline(request))
        backend.context.keep(request)
        return headrace.PENDING  # until the deadline

    models.acts(act)
    with pytest.raises(DeadlineExceededError):
        models("e", {"A": ONE, "request_size": 1}, timeout=0.05)
    assert deadlines[0] is not None


def test_a_request_that_is_cancelled_gives_up_its_models(models):
    entered, left = threading.Event(), threading.Event()

    def act(backend, request):
        backend.context.on_end(backend.context.keep(request), lambda _: left.set())
        entered.set()
        return headrace.PENDING

    models.acts(act)
    future = models.submit("e", {"A": ONE, "request_size": 1})
    assert entered.wait(60)
    assert future.cancel()
    assert left.wait(60)


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_model_that_answers_in_parts_gives_one(models, parts):
    def act(backend, request):
        for _ in range(parts):
            backend.context.emit(backend.context.keep(request), 3 * request["x"])
        request["result"] = None

    models.acts(act)
    if parts == 1:
        found = models("e", {"A": ONE, "request_size": 1})["result"]
        np.testing.assert_array_equal(found["B"], 3 * ONE)
        return
    said = f"model 'm' gave {parts} answers to an ensemble" if parts else "no model gave the output"
    with pytest.raises(BackendError, match=said):
        models("e", {"A": ONE, "request_size": 1})


def test_an_output_that_no_model_gives_is_an_error(models):
    models.acts(lambda backend, request: request.update(result={"other": request["x"]}))
    with pytest.raises(BackendError, match=r"no model gave the output 'B'|gave 0 answers"):
        models("e", {"A": ONE, "request_size": 1})


def test_many_requests_at_a_time_get_their_own_answers(models):
    models.acts(doubles)
    asked = [{"A": n * ONE, "request_size": 1} for n in range(200)]
    for n, future in enumerate(models.submit("e", asked)):
        np.testing.assert_array_equal(future.result()["result"]["B"], 2 * n * ONE)
