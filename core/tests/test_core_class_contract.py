"""Classes that could not keep the contract: refused when they are registered or first looked up."""

from __future__ import annotations

import re
import sys
from typing import TypedDict

import pytest
from loading import problem

import headrace
from headrace.errors import ConfigError, ContractError, PluginError, SetupError


class Typed(TypedDict):
    data: int


class Keyed(headrace.Options):
    key: str = "mask"


def right(self, batch):
    for request in batch:
        request["result"] = request["data"]


async def asynchronous(self, batch):
    """Never awaited by anybody."""


def generator(self, batch):
    yield None


async def asynchronous_generator(self, batch):
    yield None


class Raises:
    """A descriptor with a bug."""

    def __get__(self, instance, owner):
        raise RuntimeError("boom")


WRONG = {
    "none": ({"forward": None}, "no method forward"),
    "number": ({"forward": 3}, "forward is no method"),
    "asynchronous": ({"forward": asynchronous}, "forward is asynchronous"),
    "asynchronous_generator": ({"forward": asynchronous_generator}, "forward is asynchronous"),
    "generator": ({"forward": generator}, "forward is a generator"),
    "init": ({"init": asynchronous}, "init is asynchronous"),
    "init_alone": ({"init": lambda self: None}, r"write def init\(self, options, context\)"),
    "no_self": ({"forward": lambda batch: None}, r"write def forward\(self, batch\)"),
    "close_more": ({"close": lambda self, timeout: None}, r"write def close\(self\)"),
    "reads": ({"reads": "data"}, r'reads = \("data",\)'),
    "writes": ({"writes": "mask"}, r'writes = \("mask",\)'),
    "reads_none": ({"reads": None}, "reads is None"),
    "reads_numbers": ({"reads": (1,)}, r"reads is \(1,\)"),
    "reads_class": ({"reads": int}, "reads is"),
    "reads_option": ({"reads": ("{key}",)}, r"reads has \{key\}, and there is no option 'key'"),
    "takes_text": ({"takes": "two"}, "takes is 'two'"),
    "takes_negative": ({"takes": -1}, "takes is -1"),
    "takes_bool": ({"takes": True}, "takes is True"),
    "takes_reversed": ({"takes": (2, 1)}, r"takes is \(2, 1\)"),
    "takes_one": ({"takes": (1,)}, r"takes is \(1,\)"),
    "phases": ({"phases": "two"}, "phases is 'two'"),
    "phases_zero": ({"phases": 0}, "phases is 0"),
    "prefixes": ({"prefixes": "or"}, "prefixes is 'or'"),
    "writes_none": ({"writes": None}, r'writes = \("result",\)'),
    "range": ({"min": 4, "max": 2}, "min=4, max=2 is no batch range"),
    "range_none": ({"min": None, "max": None}, "no batch range"),
    "range_text": ({"min": "1", "max": 2}, "no batch range"),
    "range_bool": ({"min": True, "max": 4}, "no batch range"),
    "range_zero": ({"min": 1, "max": 0}, "no batch range"),
    "options": ({"Options": int}, "Options is .*no subclass of headrace.Options"),
    "raises": ({"reads": Raises()}, "looking at its attributes raised RuntimeError: boom"),
    "prefixes_none": ({"prefixes": None}, "prefixes is None"),
}
RIGHT = [
    {},
    {"reads": Typed, "writes": ("result", "{key}"), "Options": Keyed},
    {"reads": ["data"], "takes": (1, None), "prefixes": ("or", "key=", "*")},
    {"takes": 2, "phases": 3},
    {"forward": lambda *args, **more: None, "init": lambda self, options, context, more=1: None},
    {"close": staticmethod(lambda: None), "describe": classmethod(lambda cls: {})},
    {"forward": None, "forward_with_dep": lambda self, batch, dependency: dependency(batch)},
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


def test_all_that_is_wrong_is_told_at_once():
    cls = type("Odd", (), {"forward": asynchronous, "reads": "data", "phases": 0})
    with pytest.raises(PluginError, match=r"forward is asynchronous.*reads is.*phases is 0"):
        headrace.register(cls)


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


OURS = sorted(
    {name for one in headrace.Backend.__mro__ for name in vars(one) if re.match("_[^_]", name)}
)


@pytest.mark.parametrize("name", OURS)
def test_init_that_sets_a_name_of_ours_is_told_so_and_its_own_error_stays(name, caplog):
    class Sets(headrace.Backend):
        def init(self, options, context):
            setattr(self, name, "cat")
            if options.broken:
                raise OSError("no such camera")

        class Options(headrace.Options):
            broken: bool = False

        forward = right

    headrace.register("Sets", Sets)
    for config, said in (
        ("Sets", f"init sets '{name}', which headrace.Backend keeps for itself"),
        ("Sets(broken=true)", "OSError: no such camera"),
    ):
        with pytest.raises(SetupError) as raised:
            headrace.pipe({"backend": config})
        assert raised.value.args[0].startswith(said)
        where = (raised.value.node, raised.value.backend, raised.value.instance)
        assert where == ("main", "Sets", 0)
    assert caplog.records == []  # nothing failed as it was closed
