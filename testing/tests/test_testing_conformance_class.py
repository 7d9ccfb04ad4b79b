"""What the kit says of a class whose attributes or methods are not what core reads and calls."""

from __future__ import annotations

import pytest

import headrace
from headrace.words import Bracket
from headrace_testing import BackendConformance
from headrace_testing.conformance import ConformanceRun


def right(self, batch):
    for request in batch:
        request["result"] = request["data"]


async def asynchronous(*arguments):
    """Never awaited by anybody."""


async def asynchronous_generator(*arguments):
    yield None


WRONG = {
    "reads_option": ("attributes", {"reads": ("{key}",)}, "there is no option 'key'"),
    "phases": ("attributes", {"bracket": Bracket(phases="two")}, "bracket.phases is 'two'"),
    "phases_zero": ("attributes", {"bracket": Bracket(phases=0)}, "bracket.phases is 0"),
    "prefixes": ("attributes", {"bracket": Bracket(prefixes="or")}, "bracket.prefixes is 'or'"),
    "prefixes_none": (
        "attributes",
        {"bracket": Bracket(prefixes=None)},
        "bracket.prefixes is None",
    ),
    "elsewhere": (
        "attributes",
        {"builds_elsewhere": True},
        "it takes no children: write takes = 1",
    ),
    "takes_one": ("resolves", {"takes": (1,)}, "not what the planner reads: ValueError"),
    "takes_text": ("resolves", {"takes": "two"}, "not what the planner reads: ValueError"),
    "init": ("methods", {"init": asynchronous}, "init is asynchronous"),
    "warm_up": ("methods", {"warm_up": asynchronous_generator}, "warm_up is asynchronous"),
    "close_more": ("methods", {"close": lambda self, timeout: None}, "close cannot be called"),
    "enter": ("methods", {"enter": lambda: None}, "enter cannot be called with (request)"),
    "lint": ("methods", {"lint": staticmethod(lambda: ())}, "with (options, largest_batch)"),
}
RIGHT = [
    {"init": lambda self, options, context, more=1: None},
    {"close": staticmethod(lambda: None), "describe": classmethod(lambda cls: {})},
    {"enter": staticmethod(lambda request: None), "init": lambda *arguments: None},
]
OURS = sorted(
    name
    for name in {name for one in headrace.Backend.__mro__ for name in vars(one)}
    if name.startswith("_") and not name.startswith("__")
)


def verdict(rule, body):
    """Judge a class of this body by one rule."""
    made = type("Odd", (headrace.Backend,), {"forward": right, **body})
    headrace.register("Odd", made, replace=True)
    with ConformanceRun(type("Kit", (BackendConformance,), {"expression": "Odd"})) as run:
        return run.verdict(rule)


@pytest.mark.parametrize("name", WRONG)
def test_what_a_class_says_wrong_is_told(name):
    rule, body, told = WRONG[name]
    found = verdict(rule, body)
    assert found.outcome == "failed"
    assert told in found.detail


@pytest.mark.parametrize("body", RIGHT)
def test_methods_may_be_of_any_kind_that_takes_what_they_are_given(body):
    assert verdict("methods", body).outcome == "passed"


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_private_name_of_core_is_no_name_for_a_part_of_a_class(name):
    mixin = type("Mixin", (), {name: getattr(headrace.Backend, name)})
    made = type("Odd", (mixin, headrace.Backend), {"forward": right})
    headrace.register("Odd", made, replace=True)
    with ConformanceRun(type("Kit", (BackendConformance,), {"expression": "Odd"})) as run:
        found = run.verdict("private-names")
    assert (found.outcome, name in found.detail) == ("failed", True)
    assert "the class Mixin sets" in found.detail


def test_a_private_name_of_core_is_no_name_for_what_init_sets():
    def init(self, options, context):
        self.shape = self._name = (3, 4)

    found = verdict("private-names", {"init": init})
    assert found.detail == "init sets '_name', which headrace.Backend keeps for itself"
    assert verdict("private-names", {}).outcome == "passed"
