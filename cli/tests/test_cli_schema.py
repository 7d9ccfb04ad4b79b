"""The JSON Schema of the configuration."""

from __future__ import annotations

import json

import pytest

from headrace._language.config.sections import LINK_KEYS, NODE_KEYS
from headrace_cli.commands.schema import json_schema

jsonschema = pytest.importorskip("jsonschema")


SIZED = """
import headrace
from pydantic import Field
class Sized(headrace.Backend):
    class Options(headrace.Options):
        width: int = Field(ge=1, description="Width in pixels.")
        file: headrace.FilePath | None = Field(None, description="A file.")

    def forward(self, batch):
        pass

class Counts:
    class Options(headrace.Options):
        every: int = Field(1, ge=1, description="One in how many is counted.")

    def request_done(self, node, request, started, ended, error):
        pass
"""

HOOKS = """
from headrace.hookspecs import hookimpl

@hookimpl
def headrace_probes():
    return {"Counts": "hrt_sized:Counts"}
"""


@pytest.fixture(scope="module")
def validator(site_of_module):
    points = (
        "[headrace.backends]\nSized = hrt_sized:Sized\n[headrace.plugins]\nh = hrt_sized_hooks\n"
        "[headrace.rewriters]\nreplicas = hrt_sized:translate\nOlder = hrt_sized:translate\n"
    )
    site_of_module.add("headrace-sized", points, {"hrt_sized": SIZED, "hrt_sized_hooks": HOOKS})
    schema = json_schema()
    assert "Counts" in schema["$defs"]["global"]["properties"]["probes"]["examples"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(schema)))


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "Sized", "width": 3, "max": 4, "device": ["cpu"]},
        {"backend": "Sized", "width": "${W}", "instance_num": "${N:-2}"},
        {"backend": "X", "table": {"a": 1}, "import": ["x.py"]},
        {"n": {"backend": "Sized", "width": 3, "Sized::file": "x"}, "max": 3},
        {"global": {"threads": 3, "width": 2}, "n": {"backend": "X"}},
        {"extends": "b.toml", "global": {"of_it": 3}, "n": {"unknown": [1]}, "at_top": 3},
        {"global": {"backend": "X"}, "n": {"max": 3}},
        {"extends": ["a.toml"]},
        {"backend": "X", "import": "x.py"},
        {"backend": "Sized", "probes": ["Counts(every=2)"], "every": 3},
        {
            "width": {"backend": "X", "next": ["file", "max"]},
            "max": {"backend": "Sized", "width": 3},
        },
        {
            "n": {
                "backend": "X",
                "map": "a[result:data]",
                "or": "${OR}",
                "each": "data:box",
                "each_errors": "none",
            }
        },
        {
            "n": {
                "backend": "X",
                "init": "X",
                "map": {"a": {"result": ["data", "other"], "color": "color"}},
                "or": True,
            }
        },
        {"global": {"replicas": 2}, "n": {"replicas": 3}},
        {"backend": "S[Reflect[before,Identity],Sized]", "before": "X"},
        {
            "global": {"each_errors": "none", "Sized::width": 3},
            "n": {"backend": "X", "batch_sizes": [1, 2]},
        },
    ],
)
def test_right_configurations_pass(validator, config):
    validator.validate(config)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"backend": "X", "max": 0}, ["max"]),
        ({"backend": 3}, ["backend"]),
        ({"n": {"backend": "Sized", "width": 0}}, ["n", "width"]),
        ({"n": {"queue_full": "drop"}}, ["n", "queue_full"]),
        ({"import": 3}, ["import"]),
        ({"global": {"threads": 0}}, ["global", "threads"]),
        ({"n": {"next": 3}}, ["n", "next"]),
        ({"n": {"map": {"a": {}}}}, ["n", "map"]),
        ({"n": {"or": "always"}}, ["n", "or"]),
        ({"n": {"each_errors": "skip"}}, ["n", "each_errors"]),
        ({"n": {"batch_sizes": []}}, ["n", "batch_sizes"]),
        ({"n": {"batch_sizes": [0]}}, ["n", "batch_sizes"]),
        ({"n": {"device": ""}}, ["n", "device"]),
        ({"n": {"threads": 2}}, ["n", "threads"]),
        ({"global": {"next": "n"}}, ["global", "next"]),
        ({"next": "n", "m": {"backend": "X"}}, ["next"]),
        ({"width": 0, "m": {"backend": "X"}}, ["width"]),
        ({"backend": "X", "n": {"backend": "X"}}, ["n"]),
        ({"1st": {"backend": "X"}}, ["1st"]),
        # What is misspelt.
        ({"backend": "Sized", "widht": 3}, ["widht"]),
        ({"backend": "Sized", "Sized::widht": 3}, ["Sized::widht"]),
        ({"n": {"backend": "Sized", "x:Sized::widht": 3}}, ["n", "x:Sized::widht"]),
        ({"global": {"Sized::widht": 3}, "n": {"backend": "Sized"}}, ["global", "Sized::widht"]),
        ({"backend": "Sized", "instance_nm": 3}, ["instance_nm"]),
        ({"n": {"backend": "Sized", "batch_size": 3}}, ["n", "batch_size"]),
        ({"instance_nm": 3, "n": {"backend": "Sized"}}, ["instance_nm"]),
        ({"global": {"thread": 3}, "n": {"backend": "Sized"}}, ["global", "thread"]),
        ({"glbal": {"threads": 3}, "n": {"backend": "Sized"}}, ["glbal"]),
    ],
)
def test_wrong_values_are_shown_where_they_stand(validator, config, path):
    assert path in [list(error.path) for error in validator.iter_errors(config)]


def test_every_key_is_described(validator):
    node = validator.schema["$defs"]["node"]["properties"]
    assert {"backend", "max", "width", "next", "map", "or", "each", "each_errors"} <= set(node)
    assert all(schema.get("description") for schema in node.values())


def test_the_links_that_the_schema_has_are_those_that_are_read(validator):
    node = validator.schema["$defs"]["node"]["properties"]
    assert set(LINK_KEYS) | set(NODE_KEYS) <= set(node)


CURVED = """
import headrace
from pydantic import Field
class Curve:
    pass
class Curved(headrace.Backend):
    class Options(headrace.Options, arbitrary_types_allowed=True):
        curve: Curve | None = Field(None, description="A curve.")

    def forward(self, batch):
        pass
"""


def test_an_option_that_has_no_json_form_takes_nothing_else_from_the_schema(site, monkeypatch):
    monkeypatch.setenv("HEADRACE_PLUGINS", "curve")
    site.add(
        "headrace-curve", "[headrace.backends]\nCurved = hrt_curve:Curved\n", {"hrt_curve": CURVED}
    )
    schema = json_schema()
    jsonschema.validate({"backend": "Curved", "max": 4}, schema)
    assert "batching_timeout" in schema["$defs"]["node"]["properties"]
    jsonschema.validate({"backend": "Curved", "curve": "known to it alone"}, schema)
