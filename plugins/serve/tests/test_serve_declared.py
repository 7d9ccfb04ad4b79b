"""Serving files with several inputs and outputs: what cannot be answered is an error of the start."""

from __future__ import annotations

import httpx
import pytest
from pages import Page

import headrace
from headrace.errors import SetupError
from headrace_serve import Server
from headrace_serve.models.entries import read_models


class Compare(headrace.Backend):
    """Sum and difference."""

    reads = ("left", "right")

    def forward(self, batch):
        for request in batch:
            left, right = request["left"], request["right"]
            request["result"] = {"sum": left + right, "difference": left - right}


class Scaled(headrace.Backend):
    """The product of two keys, the name of one of which is an option."""

    class Options(headrace.Options):
        by: str = "scale"

    reads = ("data", "{by}")

    def init(self, options, context):
        self.by = options.by

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"] * request[self.by]


headrace.register("ServeCompare", Compare)
headrace.register("ServeByOption", Scaled)


def ports(*names):
    return {name: {"datatype": "FP32", "shape": [-1]} for name in names}


def test_a_model_without_an_input_for_data_and_with_several_outputs_as_the_page_has_it(
    serving, tmp_path
):
    (tmp_path / "serve.toml").write_text(
        Page("plugins/serve/README.md").block("toml", "[models.compare]")
    )
    (tmp_path / "compare.toml").write_text('backend = "ServeCompare"')
    server = serving(read_models([], str(tmp_path / "serve.toml")))
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [2], "data": data}
        for name, data in (("left", [3, 4]), ("right", [1, 2]))
    ]
    answer = httpx.post(f"{server.url}/v2/models/compare/infer", json={"inputs": tensors}).json()
    found = {one["name"]: one["data"] for one in answer["outputs"]}
    assert found == {"sum": [4, 6], "difference": [2, 2]}


LEFT = {"left": {"datatype": "FP32", "shape": [-1], "key": "left"}}


@pytest.mark.parametrize(
    ("config", "inputs", "missing"),
    [
        ({"backend": "Identity"}, ports("left", "right"), "data"),
        ({"backend": "ServeCompare"}, ports("left", "data"), "right"),
        ({"backend": "S[ServeCompare,Identity]"}, LEFT, "right"),
        ({"backend": "ServeByOption(by='factor')"}, ports("data", "scale"), "factor"),
        (
            {"a": {"backend": "ServeCompare", "next": "b"}, "b": {"backend": "Identity"}},
            LEFT,
            "right",
        ),
    ],
)
def test_a_key_that_no_input_has_is_an_error_of_the_start(config, inputs, missing):
    with pytest.raises(SetupError, match=f"reads the key '{missing}', which no input has"):
        Server({"m": {"config": config, "inputs": inputs}}, port=0)


def test_inputs_for_every_key_are_accepted():
    inputs = ports("data", "factor")
    Server({"m": {"config": {"backend": "ServeByOption(by='factor')"}, "inputs": inputs}}).close()


def test_one_of_several_outputs_that_the_model_does_not_describe_is_an_error_of_the_start():
    class Described(headrace.Backend):
        def forward(self, batch):
            raise AssertionError

        def describe(self):
            port = {"dtype": "float32", "shape": [None, 2]}
            return {"outputs": {"boxes": port, "scores": port}}

    headrace.register("ServeDescribed", Described, replace=True)
    model = {"config": {"backend": "ServeDescribed"}, "outputs": ports("boxes", "score")}
    with pytest.raises(SetupError, match=r"output 'score'.*\n.*Did you mean 'scores'"):
        Server({"m": model}, port=0)
