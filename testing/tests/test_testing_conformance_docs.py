"""What the section Writes says of an array: sentences with one type, with two, and with a word beside a type."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
from headrace.errors import InputError
from headrace_testing import BackendConformance
from headrace_testing.conformance import ConformanceRun

DOC = """Give an array.

Reads:
    data: An int.
Writes:
    result: %s
Batch:
    1 or more

Raises:
    InputError: ``data`` is missing or no int.
Source:
    own
"""


def outcome(text, value):
    """Judge a backend that writes this value and says this of it."""

    class Gives(headrace.Backend):
        __doc__ = DOC % text

        def forward(self, batch):
            outcomes = [None] * len(batch)
            for place, request in enumerate(batch):
                if type(request.get("data")) is int:
                    request["result"] = value.copy()
                else:
                    outcomes[place] = InputError("no int", key="data")
            return outcomes

    headrace.register("GivesAnArray", Gives, replace=True)
    attributes = {"expression": "GivesAnArray", "make_item": lambda self, k: {"data": k}}
    with ConformanceRun(type("Kit", (BackendConformance,), attributes)) as run:
        return run.verdict("docstring-results").outcome


SCALAR = np.int64(3)
VECTOR = np.zeros(3, "float32")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a label, or ``float [K]``", SCALAR),
        ("a label, or ``float [K]``", VECTOR),
        ("either the class or float [K]", SCALAR),
        ("``int64``, or ``float32 [K]``", SCALAR),
        ("``int64`` or ``float32 [K]``", SCALAR),
        ("an int64 class where ``top`` is 1, else ``float32 [K]``", SCALAR),
        ("``float32 [K]``. Where ``top`` is 1, an int64 class.", SCALAR),
        ("``uint8 [H, W]`` or ``float32 [N]``", VECTOR),
        ("uint8 or float32 ``[K]``", VECTOR),
    ],
)
def test_an_array_that_one_clause_describes_is_right(text, value):
    assert outcome(text, value) == "passed"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a label, or ``float [K]``", np.zeros(3, "int64")),
        ("a label, or ``float [K]``", np.zeros((3, 3), "float32")),
        ("``int64`` or ``float32 [K]``", np.float32(3)),
        ("``uint8 [H, W]`` or ``float32 [N]``", np.zeros(3, "uint8")),
        ("uint8 or float32 ``[H, W]``", VECTOR),
        ("``float32 [K]``, sorted or not", np.zeros((1, 3), "float32")),
        ("``uint8 [H, W, 3]``, RGB", VECTOR),
    ],
)
def test_an_array_that_no_clause_describes_is_refused(text, value):
    assert outcome(text, value) == "failed"
