"""Keys that a node reads and the map before it cannot bring: refused before anything is built."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from loading import Divides
from pydantic import Field

import headrace
from headrace import errors


def make(name, *, reads=None, writes=None, base=headrace.Backend, **body):
    attributes = {**body, "forward": lambda self, batch: None}
    if reads is not None:
        attributes["reads"] = reads
    if writes is not None:
        attributes["writes"] = writes
    headrace.register(name, type(name, (base,), attributes), replace=True)


class Typed(TypedDict, total=False):
    data: Any
    hint: Any


class TypedStrict(Typed):
    mask: Any


class Named(headrace.Options):
    where: str = Field("mask", description="The key of the mask.")


class Several(headrace.Options):
    inputs: dict[str, str] = Field(description="The key of each input.")


headrace.register(Divides, replace=True)
make("RPlain", base=object)
make("RUnsaid")
make("RResult", writes=("result",))
make("RWithMask", writes=("result", "mask"))
make("RMask", reads=("data", "mask"), writes=("result",))
make("RMaskHere", reads=("data", "{where}"), writes=("result",), Options=Named)
make("RInputs", reads=("data", "{inputs}"), writes=("result",), Options=Several)
make("RWritesHere", writes=("result", "{where}"), Options=Named)
make("RTypedMask", reads=TypedStrict, writes=("result",))
make("RMayWrite", writes=Typed)
make("RReserved", reads=("data", "request_id", "context", "request_size"), writes=("result",))


def graph(expression, mapped="a[result:data]", **keys):
    return {
        "a": {"backend": "RUnsaid", "next": "b"},
        "b": {"backend": expression, "map": mapped, **keys},
    }


def problems(config):
    try:
        headrace.PipelineConfig.load(config)
    except errors.ConfigError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    "expression",
    [
        "RMask",
        "RMaskHere",
        "RTypedMask",
        "S[RMask,RResult]",
        "IoC[RResult,RMask;S[RMask,RResult]]",
        "BackgroundThread[RMask]",
        "Divides(x)[RMask,RMaskHere]",
        "CatSplit[RMask,RResult,RResult]",
        "RInputs(inputs={0})",
    ],
)
def test_a_key_that_the_map_does_not_bring_is_named(expression):
    keys = {}
    if "inputs" in expression:
        expression, keys = "RInputs", {"inputs": {"a": "data", "b": "mask"}}
    (found,) = problems(graph(expression, **keys))
    assert (found.code, found.path) == ("graph", "b.map")
    assert "'mask'" in found.message
    assert "'b'" in found.message
    assert "a[mask:mask]" in found.hint


@pytest.mark.parametrize(
    "expression",
    [
        "RResult",
        "RPlain",
        "RUnsaid",
        "RReserved",
        "S[RWithMask,RMask]",
        "S[RUnsaid,RMask]",  # who says nothing may write anything
        "S[RPlain,RMask]",
        "S[RResult,(key=mask)RMask]",
        "S[RUnsaid,(or)RMask]",
        "S[RResult,(or)RMask]",
        "Divides(mask)[RMask,RResult]",
        "Divides(mask)[RMask]",
        "S[RWritesHere(where=mask),RMask]",
        "RMaskHere(where=data)",
        "S[Divides(x)[RWithMask,RResult],RMask]",
        "CatSplit[RResult,RMask,RResult]",  # what runs in the middle is a gathered item
    ],
)
def test_what_may_be_right_is_not_refused(expression):
    assert not problems(graph(expression))


class ReadsMask(headrace.Backend):
    reads = ("data", "mask")

    def forward(self, batch):
        for request in batch:
            if "mask" not in request:
                raise errors.InputError(key="mask", expected="anything", got="nothing")
            request["result"] = request["mask"]


headrace.register("RReadsMask", ReadsMask, replace=True)


@pytest.mark.parametrize(
    "expression",
    ["S[Identity,RReadsMask]", "IoC[RReadsMask;S[Identity,RReadsMask]]"],
)
def test_a_key_that_a_later_backend_misses_is_named_by_the_first_request(expression):
    config = graph(expression)
    config["a"]["backend"] = "Identity"
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError) as caught:
        pipe({"data": 1})
    assert (caught.value.key, caught.value.node) == ("mask", "b")


def test_what_the_map_brings_is_there():
    assert not problems(graph("RMask", "a[result:data,what:mask]"))


def test_before_the_first_map_any_key_may_be_there():
    assert not problems({"a": {"backend": "RResult", "next": "b"}, "b": {"backend": "RMask"}})


def test_each_reads_its_list_and_brings_its_element():
    (found,) = problems(graph("RResult", each="boxes"))
    assert "'boxes'" in found.message
    assert not problems(graph("RMask", "a[result:data,list:boxes]", each="boxes:mask"))


def test_an_alias_reads_what_the_node_that_answers_reads():
    config = {
        "a": {"backend": "RUnsaid", "next": "d"},
        "d": {"backend": "Forward[node.x]", "map": "a[result:data]"},
        "x": {"backend": "RMask"},
    }
    (found,) = problems(config)
    assert found.path == "d.map"


def test_a_join_is_judged_by_all_that_its_map_brings():
    config = {
        "x": {"backend": "RUnsaid", "next": "y,z"},
        "y": {"backend": "RResult", "next": "w"},
        "z": {"backend": "RResult", "next": "w"},
        "w": {"backend": "RMask", "map": "y[result:data],z[result:mask]"},
    }
    assert not problems(config)
    config["w"]["map"] = "y[result:data],z[result:masks]"
    (found,) = problems(config)
    assert found.path == "w.map"


def test_keys_are_named_once_however_many_read_them():
    assert len(problems(graph("S[RMask,RMask]"))) == 1


def test_the_error_shows_what_to_do():
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load(graph("RMask"))
    text = str(caught.value)
    assert "RMask of node 'b' reads 'mask'" in text
    assert "a[mask:mask]" in text


def test_a_typed_dict_that_says_not_required_as_text_is_believed():
    class Open(TypedDict):
        data: Any
        hint: NotRequired[Any]  # noqa: F821 - never evaluated

    make("RTypedOpen", reads=Open)
    assert not problems(graph("RTypedOpen"))
    assert "'data'" in problems(graph("RTypedOpen", "a[result:hint]"))[0].message


def test_a_missing_key_is_reported_beside_what_is_wrong_with_the_graph():
    config = {**graph("RMask"), "c": {"backend": "RUnsaid", "next": "d"}}
    assert {problem.path for problem in problems(config)} == {"b.map", "c.next"}
