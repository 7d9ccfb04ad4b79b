"""``headrace.plan``: what a configuration asks for, as frozen data with a JSON Schema."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pydantic
import pytest

import headrace
from headrace import plan as public

EXAMPLES = sorted(Path(__file__).parents[4].glob("examples/*/*.toml"))

LINE = {
    "global": {"threads": 6},
    "read": {"backend": "S[Identity,(key=wide)Identity]", "next": "split", "instance_num": 2},
    "split": {
        "backend": "Identity",
        "map": {"read": {"data": ["data", "parts"]}},
        "each": "parts:part",
        "each_errors": "none",
        "timeout_ms": 500,
        "next": "rest",
    },
    "rest": {"backend": "Identity", "or": True},
    "alias": {"backend": "Forward[node.read]"},
}


def test_the_plan_says_what_each_node_is_and_how_they_are_linked():
    nodes = headrace.PipelineConfig.load(LINE).plan().nodes
    assert list(nodes) == ["read", "split", "rest", "alias"]
    links = nodes["split"].links
    assert (links.each, links.each_errors, links.next) == ("parts:part", "none", ("rest",))
    assert links.map == {"read": {"data": ("data", "parts")}}
    assert (nodes["rest"].links.otherwise, links.otherwise) == (True, False)
    assert [one.run_by for one in nodes.values()] == ["caller", "worker", "caller", "caller"]
    assert [one.alias_of for one in nodes.values()] == [None, None, None, "read"]
    assert (nodes["alias"].instance_num, nodes["read"].instance_num) == (1, 2)
    assert [one.name for one in nodes["read"].tree.walk()] == ["S", "Identity", "Identity"]
    assert nodes["read"].values["instance_num"] == public.Value(2, "node")


def test_the_plan_is_frozen():
    plan = headrace.PipelineConfig.load(LINE).plan()
    for one in (plan, plan.nodes["read"], plan.nodes["read"].tree, plan.nodes["read"].links):
        assert dataclasses.is_dataclass(one)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, dataclasses.fields(one)[0].name, None)


def test_a_configuration_and_its_plan_may_be_fields_of_a_model_of_pydantic():
    class Job(pydantic.BaseModel):
        config: pydantic.InstanceOf[headrace.PipelineConfig]
        plan: public.Plan

    config = headrace.PipelineConfig.load(LINE)
    job = Job(config=config, plan=config.plan())
    assert (job.config, job.plan) == (config, config.plan())
    with pytest.raises(pydantic.ValidationError):
        Job(config=config, plan=config)


def test_what_is_warned_of_stands_in_the_plan_as_problems():
    plan = headrace.PipelineConfig.load(
        {"backend": "Call(math:sqrt)", "function": "math:cos"}
    ).plan()
    (warning,) = plan.warnings
    assert isinstance(warning, headrace.errors.Problem)
    assert (warning.code, warning.path) == ("unused_option", "main.function")


def loaded(path):
    try:
        return headrace.PipelineConfig.load(path)
    except headrace.errors.HeadraceError:
        return None  # the plugin or the model is not here


def test_every_plan_is_as_the_schema_says_and_explain_gives_the_same():
    validator = jsonschema.Draft202012Validator(public.Plan.json_schema())
    found = [one for one in map(loaded, EXAMPLES) if one is not None]
    for config in [headrace.PipelineConfig.load(LINE), *found]:
        plain = config.plan().to_dict()
        assert plain == json.loads(json.dumps(plain)) == headrace.explain(config)
        validator.validate(plain)


def test_the_schema_refuses_what_is_no_plan():
    validator = jsonschema.Draft202012Validator(public.Plan.json_schema())
    plain = headrace.explain(LINE)
    plain["nodes"]["read"]["run_by"] = "somebody"
    plain["nodes"]["rest"]["links"]["or"] = "yes"
    del plain["nodes"]["alias"]["tree"]
    assert len([*validator.iter_errors(plain)]) == 3


def test_the_roots_are_the_nodes_to_which_no_other_one_leads():
    def roots(**b):
        config = {"a": {"backend": "Identity"}, "b": {"backend": "Identity", **b}}
        return headrace.PipelineConfig.load(config).plan().roots

    assert roots() == ("a", "b")
    assert roots(next="a") == roots(backend="S[Forward[node.a],Identity]") == ("b",)
