"""A backend that calls the other models beside its own."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import headrace
from headrace.errors import ContractError, DeadlineExceededError, InputError
from headrace_models import Models, UnknownModelError, call_model, models_here


class Rows(headrace.Backend):
    """Doubles rows, and says how they are called."""

    max = 8
    reads = ("rows",)

    def forward(self, batch):
        for request in batch:
            self.seen.append(request.get("request_size"))
            request["result"] = request["rows"] * 2

    def init(self, options, context):
        self.seen = []

    def describe(self):
        about = {"dtype": "float32", "shape": [None, 2]}
        return {
            "inputs": {"X": {**about, "key": "rows"}},
            "outputs": {"Y": about},
            "seen": self.seen,
        }


class Calls(headrace.Backend):
    """Calls the model that ``data`` names."""

    max = 4

    def init(self, options, context):
        self.models = models_here()

    def forward(self, batch):
        for request in batch:
            name, tensors = request["data"]
            asked = call_model(self.models, name, tensors, thread=threading.get_ident())
            request["result"] = asked.result()


class Counts(headrace.Backend):
    """Gives the numbers below ``data`` as parts."""

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        for request in batch:
            for one in range(request["data"]):
                self.context.request.emit(self.context.request.keep(request), {"N": one})
            request["result"] = None


@pytest.fixture
def models():
    for cls in (Rows, Calls, Counts):
        headrace.register(cls.__name__, cls, replace=True)
    configs = {
        one.__name__.lower(): {
            "global": {"deadlock_after_s": 0.01},
            "main": {"backend": one.__name__},
        }
        for one in (Rows, Calls, Counts)
    }
    with Models({**configs, "rows:2": {"backend": "Rows"}}) as made:
        yield made


def test_tensors_go_by_the_names_that_the_pipeline_describes(models):
    rows = np.ones((3, 2), np.float32)
    answer = call_model(models, "rows", {"X": rows}, version=1, outputs=["Y"]).result()
    assert answer["Y"].tolist() == (rows * 2).tolist()
    built = models.pipeline("rows", "1").describe()["nodes"]["main"]["tree"]["built"]
    assert built["seen"] == [3]


def test_a_backend_knows_the_models_beside_it(models):
    data = {"data": ("rows", {"X": np.zeros((1, 2))})}
    assert [*models("calls", data)["result"]] == ["Y"]
    assert models_here() is None


def test_parts_come_with_the_names_of_outputs(models):
    parts = []
    found = call_model(
        models, "counts", {"IN": 3}, on_part=lambda part, waits: parts.append(part["N"])
    )
    assert found.result() == {}
    assert parts == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "tensors", "more", "error"),
    [
        ("row", {}, {}, UnknownModelError),
        ("rows", {}, {"version": 7}, UnknownModelError),
        ("rows", {"Z": 1}, {}, InputError),
        ("rows", {}, {"outputs": ["Z"]}, InputError),
    ],
)
def test_what_is_not_there_is_named(models, name, tensors, more, error):
    with pytest.raises(error, match=r"Z|row"):
        call_model(models, name, tensors, **more)


def test_a_call_has_the_time_that_is_left(models):
    with pytest.raises(DeadlineExceededError):
        call_model(models, "rows", {"X": np.ones((1, 2))}, timeout=0).result()


def test_a_circle_is_refused(models):
    data = {"data": ("calls", {"IN": ("rows", {})})}
    with pytest.raises(headrace.errors.BackendError) as caught:
        models("calls", data)
    assert isinstance(caught.value.__cause__ or caught.value, ContractError)
