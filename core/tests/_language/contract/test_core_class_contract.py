"""Classes that can run no batch: refused when they are registered or first looked up."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TypedDict

import pytest
from loading import problem

import headrace
from headrace.errors import ConfigError, ContractError, PluginError
from headrace.words import Bracket


class Typed(TypedDict):
    data: int


class Keyed(headrace.Options):
    key: str = "mask"


def right(self, batch):
    for request in batch:
        request["result"] = request["data"]


async def asynchronous(self, batch):
    """Never awaited by anybody."""


async def asynchronous_generator(self, batch):
    yield None


WRONG = {
    "none": ({"forward": None}, r"no method forward\(self, batch\)"),
    "number": ({"forward": 3}, "forward is no method, it is 3"),
    "place": ({"place": "here"}, "bracket and place are of headrace.words"),
    "asynchronous": ({"forward": asynchronous}, "write def forward"),
    "asynchronous_generator": ({"forward": asynchronous_generator}, "forward is asynchronous"),
    "no_self": ({"forward": lambda batch: None}, r"write def forward\(self, batch\)"),
}
RIGHT = [
    {},
    {"reads": Typed, "writes": ("result", "{key}"), "Options": Keyed},
    {"reads": ["data"], "takes": (1, None), "bracket": Bracket(prefixes=("or", "key=", "*"))},
    {"takes": 2, "bracket": Bracket(phases=3), "keep": 3, "places": 2, "reader": ("a",)},
    {"forward": lambda *args, **more: None, "init": lambda self, options, context, more=1: None},
    {"close": staticmethod(lambda: None), "describe": classmethod(lambda cls: {})},
]


@pytest.mark.parametrize("base", [object, headrace.Backend])
@pytest.mark.parametrize("name", WRONG)
def test_a_class_that_is_wrong_is_refused_when_it_is_registered(name, base):
    body, message = WRONG[name]
    cls = type("Odd", (base,), {"forward": right, **body})
    with pytest.raises(PluginError, match=message) as caught:
        headrace.register("Odd", cls)
    assert f"{__name__}.Odd" in str(caught.value)
    with pytest.raises(ConfigError, match="unknown backend"):
        headrace.PipelineConfig.load({"backend": "Odd"})


def test_an_abstract_class_is_refused_with_what_it_lacks():
    class Base(headrace.Backend, ABC):
        forward = right

        @abstractmethod
        def model(self): ...

    with pytest.raises(PluginError, match=r"Base is no backend: it is abstract: write model"):
        headrace.register(Base)


async def later(data):
    return data


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (type("Made", (), {"forward": right})(), "an object of Made is no backend\n  Register the"),
        (3, "an object of int is no backend\n  A backend is a class with forward(self, batch)"),
        (later, "the function 'later' is asynchronous"),
        (lambda: 1, "the function '<lambda>' takes other arguments than it is given: too many"),
    ],
    ids=["object", "number", "asynchronous", "arguments"],
)
def test_what_is_no_class_and_no_function_is_named_without_its_address(given, message):
    with pytest.raises(PluginError) as caught:
        headrace.register("Odd", given)
    assert str(caught.value).startswith(message)


def test_results_that_are_returned_are_told_where_to_go():
    headrace.register("Returns", type("Returns", (), {"forward": lambda self, batch: [1]}))
    with headrace.pipe({"backend": "Returns"}) as pipe, pytest.raises(ContractError) as caught:
        pipe({"data": 1})
    assert 'forward writes request["result"]' in str(caught.value)


@pytest.mark.parametrize("body", RIGHT)
@pytest.mark.parametrize("base", [object, headrace.Backend])
def test_what_a_class_may_say_is_taken(body, base):
    headrace.register("Fine", type("Fine", (base,), {"forward": right, **body}))


PLUGIN = """
import headrace
class Odd(headrace.Backend):
    reads = "data"
    async def forward(self, batch): ...
class Fine:
    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]
"""


def test_a_class_of_a_plugin_is_refused_when_it_is_looked_up_with_whose_it_is(site, monkeypatch):
    monkeypatch.setenv("HEADRACE_PLUGINS", "contract")
    points = "[headrace.backends]\nOdd = hrt_contract:Odd\nFine = hrt_contract:Fine\n"
    site.add("headrace-contract", points, {"hrt_contract": PLUGIN})
    found = problem({"backend": "S[Fine,Odd]"})
    assert found.text[slice(*found.span)] == "Odd"
    assert "headrace-contract" in found.message
    assert "hrt_contract.Odd" in found.message


@pytest.mark.parametrize(
    "written", ["hrt_blanks : Fine [gpu]", "hrt_blanks:Fine[gpu,cpu]", " hrt_blanks  :  Fine "]
)
def test_entry_points_may_have_blanks_and_extras(written, site):
    site.add("headrace-blanks", f"[headrace.backends]\nodd = {written}\n", {"hrt_blanks": PLUGIN})
    with headrace.pipe({"backend": "S[odd,blanks:odd]"}) as pipe:
        assert pipe({"data": 4})["result"] == 4
    (plugin,) = [p for p in headrace.plugins.installed() if p.plugin == "blanks"]
    assert plugin.backends == {"odd": "hrt_blanks:Fine"}
    sys.modules.pop("hrt_blanks")


def test_a_node_has_no_more_instances_than_a_backend_of_it_works_in():
    @headrace.register("Few")
    class Few(headrace.Backend):
        class Options(headrace.Options):
            most: int

        @classmethod
        def most_instances(cls, options):
            return options.most

        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    @headrace.register("Apart")
    class Apart(Few):
        takes, builds_elsewhere, Options = 1, True, headrace.Options
        most_instances = headrace.Backend.most_instances

    headrace.PipelineConfig.load({"backend": "Apart[Few(most=1)]", "instance_num": 3})
    found = problem({"backend": "S[Identity,Few(most=2)]", "instance_num": 3})
    assert found.text[slice(*found.span)] == "Few"
    assert found.message == "Few allows no more than 2 instances in one process: instance_num is 3"
    assert found.hint == "Write instance_num = 2."
    headrace.PipelineConfig.load({"backend": "Few(most=2)", "instance_num": 2})
