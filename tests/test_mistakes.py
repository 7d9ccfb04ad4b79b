"""Mistakes that a newcomer makes, and the messages that answer them, graded by four rules.

A message says what is wrong, where, what to do, and, for a name, the nearest that there is. ``mistakes.toml`` has these parts of
each. A part ``-`` says that the rule does not apply: a name that is near needs no other advice, an exception of the user's own
code has none. The grade is A where each rule that applies is kept, and B where one is not. Nothing here is worse.
"""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from distributions import tomllib
from typer.testing import CliRunner

import headrace
from headrace import PipelineConfig
from headrace.errors import RequestsFailed
from headrace_cli.app import app

for needed in ("headrace_cv", "headrace_ort", "headrace_flow", "headrace_observe"):
    pytest.importorskip(needed)
serve = pytest.importorskip("headrace_serve")

RULES = ("what", "where", "do", "near")
TABLE = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))
IDENTITY = {"backend": "Identity"}
DECODE, RESIZE = {"backend": "DecodeMat"}, {"backend": "ResizeMat(8,8)"}


def call(config, request, **how):
    with headrace.pipe(config) as pipe:
        return pipe(request, **how)


def image(*shape, dtype="uint8"):
    return {"data": np.zeros(shape, dtype)}


def reg(name, body):
    return headrace.register(type(name, (headrace.Backend,), body))


def ran(name, body):
    """Register a class with this body, and call a pipeline of it."""
    reg(name, body)
    return call({"backend": name}, {"data": 1})


def ran_function(name, function, data, **how):
    headrace.register(name, function, **how)
    return call({"backend": name, "max": 4}, data)


class ToldError(Exception):
    """What the command line or a server has said of a mistake."""


FILE = {"a__toml": 'backend = "Identity"'}


def said(*arguments, **files):
    """Run a command in a folder with these files."""
    for name, text in files.items():
        Path(name.replace("__", ".")).write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, arguments, prog_name="headrace")
    assert done.exit_code != 0
    raise ToldError(done.stderr)


ADDRESS = []


@pytest.fixture(autouse=True, scope="module")
def served():
    """Serve the model ``m``, which gives its data back, and ``pictures``, which decodes them."""
    with serve.Server({"m": IDENTITY, "pictures": DECODE}, port=0) as server:
        ADDRESS[:] = [server.url]
        yield


def posted(path, body=b"x", method="POST", **headers):
    """Send a body to the server."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.request(method, ADDRESS[0] + path, content=body, headers=headers)
    assert answer.status_code >= 400
    raise ToldError(answer.json()["error"])


def infer(body, path="/v2/models/m/infer"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    posted(path, content, content_type="application/json")


INPUT = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["x"]}
ASKED = {"inputs": [INPUT]}


def bad(**differs):
    return {"inputs": [{**INPUT, **differs}]}


def after_close(act):
    pipe = headrace.pipe(IDENTITY)
    pipe.close()
    return act(pipe)


def fw(value):
    def forward(self, batch):
        return value

    return forward


async def aforward(self, batch):
    pass


def gforward(self, batch):
    yield batch


def on_its_way():
    """A backend that sends the dict it was given to the pipeline that it stands in."""
    pipe = headrace.pipe({"backend": "SendsAgain", "instance_num": 2})
    SendsAgain.pipe = pipe
    with pipe:
        pipe({"data": 1})


@headrace.register
class SendsAgain(headrace.Backend):
    def forward(self, batch):
        self.pipe(batch[0])


def noresult(self, batch):
    pass


def together():
    """One of three requests of a batch fails, and the class does not say that it may be run again."""
    headrace.register("Inverse", Inverse, replace=True)
    with (
        headrace.pipe({"backend": "Inverse", "max": 3}) as pipe,
        pytest.raises(RequestsFailed) as caught,
    ):
        pipe([{"data": 1}, {"data": 0}, {"data": 2}])
    first, second, third = caught.value.errors
    assert str(first) == str(second) == str(third)
    raise first


class Inverse(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = 1 / request["data"]


CLASS_BODIES = {
    "max": {"max": "8"},
    "max_zero": {"max": 0},
    "min": {"min": True},
    "options": {"Options": {"k": 3}},
}


def files(**texts):
    for name, text in texts.items():
        path = Path(name.replace("__", "."))
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def folder_of_hub():
    Path("hub").mkdir()
    Path("hub/config.json").write_text("{}", encoding="utf-8")
    said("check", "hub")


def network(shape, kind, data):
    """Run a network that gives back its only input."""
    import onnx
    from onnx import helper

    ports = [[helper.make_tensor_value_info(name, kind, shape)] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", *ports)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "n.onnx")
    call({"backend": "OnnxTensor", "model": "n.onnx"}, {"data": data})


def writes_attribute(self, batch):
    for request in batch:
        request.result = 1


def reads_attribute(self, batch):
    self.model(batch)


class Counted(headrace.Options):
    count: int = 1


def sets_option(self, options, context):
    options.count = 2


PROGRAMS = {
    "option_set": lambda: ran(
        "MK4", {"forward": noresult, "init": sets_option, "Options": Counted}
    ),
    "function_option": lambda: (
        headrace.register("MK1", lambda data: data),
        headrace.pipe({"backend": "MK1(scale=2)"}),
    ),
    "cli_version_command": lambda: said("version"),
    "cli_folder_of_hub": folder_of_hub,
    "cli_serve_python": lambda: said("serve", "svc.py:app", svc__py="x = 1"),
    "cli_python_file": lambda: said("check", "svc.py", svc__py="import headrace"),
    "cli_torch_file": lambda: (files(m__pt=b"PK\xff"), said("check", "m.pt")),
    "cli_swapped": lambda: said("run", "in.txt", "a.toml", in__txt="x", **FILE),
    "cli_reload": lambda: said("serve", "a.toml", "--reload", **FILE),
    "cli_fraction": lambda: said("check", "a.toml", a__toml="scale = 1/255"),
    "import_of_nothing": lambda: said(
        "check", "a.toml", own__py="", a__toml='import = ["own.py"]\nbackend = "Foo"'
    ),
    "resize_bytes": lambda: call(RESIZE, {"data": b"\xff\xd8"}),
    "decode_url": lambda: call(DECODE, {"data": "https://example.org/a.jpg"}),
    "resize_open_file": lambda: call(RESIZE, {"data": io.BytesIO()}),
    "softmax_dict": lambda: call({"backend": "Softmax"}, {"data": {"logits": np.zeros(3)}}),
    "labels_with_head": lambda: (
        files(l__txt="label\na\nb\n"),
        call({"backend": "TopK(labels=l.txt)"}, {"data": np.zeros(2)}),
    ),
    "model_size": lambda: network([1, 3, 32, 32], 1, np.zeros((3, 24, 24), "f4")),
    "model_axes": lambda: network([1, 3, 32, 32], 1, np.zeros((32, 32, 3), "f4")),
    "model_float16": lambda: network([1, 4], 10, np.zeros(4, "f4")),
    "result_attribute": lambda: ran("MK2", {"forward": writes_attribute}),
    "setup": lambda: ran("MK3", {"forward": reads_attribute, "setup": lambda self: 1}),
    "request_text": lambda: call(IDENTITY, "x"),
    "request_bytes": lambda: call(IDENTITY, b"x"),
    "request_array": lambda: call(IDENTITY, np.zeros(3)),
    "request_none": lambda: call(IDENTITY, None),
    "request_no_data": lambda: call(IDENTITY, {"image": 1}),
    "request_twice": lambda: (lambda d: call(IDENTITY, [d, d]))({"data": 1}),
    "request_list_of_texts": lambda: call(IDENTITY, ["a", "b"]),
    "request_size_text": lambda: call(IDENTITY, {"data": 1, "request_size": "big"}),
    "request_size_negative": lambda: call(IDENTITY, {"data": 1, "request_size": -1}),
    "request_weight": lambda: call(
        {"backend": "Identity", "max": 2}, {"data": 1, "request_size": 5}
    ),
    "node_name_unknown": lambda: call(
        {"a": IDENTITY, "b": IDENTITY}, {"data": 1, "node_name": "bb"}
    ),
    "node_name_missing": lambda: call({"a": IDENTITY, "b": IDENTITY}, {"data": 1}),
    "timeout_text": lambda: call(IDENTITY, {"data": 1}, timeout="2s"),
    "priority_text": lambda: call(IDENTITY, {"data": 1}, priority="high"),
    "after_close": lambda: after_close(lambda pipe: pipe({"data": 1})),
    "submit_after_close": lambda: after_close(lambda pipe: pipe.submit({"data": 1})),
    "pipe_number": lambda: headrace.pipe(3),
    "pipe_none": lambda: headrace.pipe(None),
    "pipe_list": lambda: headrace.pipe(["S[Identity]"]),
    "pipe_expression_text": lambda: headrace.pipe("S[Identity]"),
    "pipe_missing_file": lambda: headrace.pipe("nobody.toml"),
    "pipe_folder": lambda: headrace.pipe("."),
    "decode_path": lambda: call(DECODE, {"data": "photo.jpg"}),
    "decode_array": lambda: call(DECODE, image(4, 4, 3)),
    "decode_garbage": lambda: call(DECODE, {"data": b"no picture"}),
    "decode_empty": lambda: call(DECODE, {"data": b""}),
    "decode_number": lambda: call(DECODE, {"data": 3}),
    "decode_pdf": lambda: call(DECODE, {"data": b"%PDF-1.7 abc"}),
    "resize_float": lambda: call(RESIZE, image(4, 4, 3, dtype="float64")),
    "resize_rank": lambda: call(RESIZE, image(4)),
    "resize_empty": lambda: call(RESIZE, image(0, 4, 3)),
    "resize_text": lambda: call(RESIZE, {"data": "x"}),
    "resize_list": lambda: call(RESIZE, {"data": [[1, 2]]}),
    "tensor_text": lambda: call({"backend": "Mat2Tensor"}, {"data": "x"}),
    "crop_no_box": lambda: call({"backend": "CropMat"}, image(4, 4, 3)),
    "register_function_options": lambda: headrace.register("MF1", lambda: 1),
    "register_two_arguments": lambda: headrace.register("MF2", lambda a, b: 1),
    "register_number": lambda: headrace.register("MF3", 3),
    "register_async": lambda: reg("MF4", {"forward": aforward}),
    "register_no_forward": lambda: reg("MF5", {}),
    **{
        f"class_{what}": lambda body=body, what=what: reg(
            f"MC_{what}", {"forward": noresult, **body}
        )
        for what, body in CLASS_BODIES.items()
    },
    "backend_function": lambda: headrace.pipe({"backend": len}),
    "fail_together": lambda: together(),
    "requests_tuple": lambda: call(IDENTITY, ({"data": 1}, {"data": 2})),
    "requests_generator": lambda: call(IDENTITY, ({"data": one} for one in range(2))),
    "stream_keyword": lambda: headrace.pipe(IDENTITY).stream(image=1),
    "timeout_negative": lambda: call(IDENTITY, {"data": 1}, timeout=-1),
    "register_forward_yields": lambda: reg("MF10", {"forward": gforward}),
    "register_init_short": lambda: reg("MF11", {"forward": noresult, "init": lambda self, o: None}),
    "request_on_its_way": lambda: on_its_way(),
    "register_name_bad": lambda: headrace.register("my backend", len),
    "register_name_empty": lambda: headrace.register("", len),
    "register_plain_class": lambda: headrace.register(type("MF7", (), {})),
    "register_forward_no_batch": lambda: reg("MF8", {"forward": lambda self: None}),
    "register_async_function": lambda: headrace.register("MF9", asyncio.sleep),
    "register_core_name": lambda: headrace.register("S", len),
    "no_result": lambda: ran("MG1", {"forward": noresult}),
    "wrong_count": lambda: ran("MG2", {"forward": fw([None, None])}),
    "returns_results": lambda: ran("MG3", {"forward": fw([3])}),
    "returns_text": lambda: ran("MG4", {"forward": fw("done")}),
    "returns_dict": lambda: ran("MG5", {"forward": fw({"result": 1})}),
    "returns_number": lambda: ran("MG6", {"forward": fw(7)}),
    "raises": lambda: ran("MG7", {"forward": lambda self, b: 1 / 0}),
    "batched_count": lambda: ran_function(
        "MG8", lambda xs: [1], [{"data": 1}, {"data": 2}], batched=True
    ),
    "batched_number": lambda: ran_function(
        "MG9", lambda xs: 5, [{"data": 1}, {"data": 2}], batched=True
    ),
    "function_raises": lambda: ran_function("MH1", lambda x: x["name"], {"data": {}}),
    "init_raises": lambda: ran("MH2", {"forward": noresult, "init": lambda self, o, c: 1 / 0}),
    "call_unknown_function": lambda: headrace.pipe({"backend": "Call(json:load_s)"}),
    "call_not_callable": lambda: headrace.pipe({"backend": "Call(json:__name__)"}),
    "call_two_arguments": lambda: call({"backend": "Call(math:pow)"}, {"data": 2}),
    "explain_missing": lambda: headrace.explain("nobody.toml"),
    "load_number": lambda: headrace.PipelineConfig.load(3),
    "cli_unknown_command": lambda: said("rn", "a.toml"),
    "cli_run_key": lambda: said("run", "a.toml", "--max", "4", **FILE),
    "cli_option_near": lambda: said("check", "a.toml", "--jsn", **FILE),
    "cli_json_before": lambda: said("--json", "check", "a.toml"),
    "cli_missing_file": lambda: said("check", "nobody.toml"),
    "cli_no_config": lambda: said("check"),
    "cli_run_missing_input": lambda: said("run", "a.toml", "nobody.jpg", **FILE),
    "cli_run_no_input": lambda: said("run", "a.toml", **FILE),
    "cli_tune_plot": lambda: said("tune", "a.toml", "--goal", "x", "--plot", **FILE),
    "cli_set_no_equals": lambda: said("check", "a.toml", "--set", "max", **FILE),
    "cli_set_unknown": lambda: said("check", "a.toml", "--set", "maxx=4", **FILE),
    "cli_set_unknown_node": lambda: said("check", "a.toml", "--set", "mainn.max=4", **FILE),
    "cli_toml_syntax": lambda: said("check", "a.toml", a__toml="backend = Identity"),
    "cli_toml_twice": lambda: said("check", "a.toml", a__toml="max = 1\nmax = 2"),
    "cli_toml_unclosed": lambda: said("check", "a.toml", a__toml='backend = "Identity'),
    "cli_json_file": lambda: said("check", "a.json", a__json='{"backend": "Identity"}'),
    "cli_yaml_file": lambda: said("check", "a.yaml", a__yaml="backend: Identity\nmax: 8"),
    "cli_folder": lambda: said("check", "."),
    "cli_expression_typo": lambda: said("explain", "S[DecodMat]"),
    "cli_conformance_unknown": lambda: said("conformance", "DecodMat"),
    "cli_plugins_info_unknown": lambda: said("plugins", "info", "DecodMat"),
    "cli_new_kind": lambda: said("new", "backnd", "Scale"),
    "cli_new_name": lambda: said("new", "backend", "my scale"),
    "cli_bench_no_data": lambda: said("bench", "a.toml", **FILE),
    "cli_tune_goal": lambda: said(
        "tune", "a.toml", "--goal", "max speed", "--data", "uint8:4", **FILE
    ),
    "cli_serve_port": lambda: said("serve", "a.toml", "--port", "http", **FILE),
    "cli_serve_missing": lambda: said("serve", "nobody.toml"),
    "cli_explain_graph": lambda: said("explain", "a.toml", "--graph", "png", **FILE),
    "cli_run_timeout": lambda: said("run", "a.toml", "a.toml", "--timeout", "soon", **FILE),
    "http_unknown_model": lambda: posted("/run/mm"),
    "http_unknown_route": lambda: posted("/runn/m"),
    "http_get": lambda: posted("/run/m", method="GET", body=b""),
    "http_json_body": lambda: posted("/run/m", b'{"data": 1}', content_type="application/json"),
    "http_timeout_fraction": lambda: posted("/run/m?timeout=0.5"),
    "http_priority": lambda: posted("/run/m?priority=low"),
    "http_infer_broken": lambda: infer(b"{"),
    "http_infer_no_inputs": lambda: infer({}),
    "http_infer_name": lambda: infer(bad(name="dat")),
    "http_infer_datatype": lambda: infer(bad(datatype="FP3")),
    "http_infer_shape": lambda: infer(bad(shape=[3])),
    "http_infer_shape_text": lambda: infer(bad(shape="1")),
    "http_infer_missing_shape": lambda: infer(
        {"inputs": [{"name": "data", "datatype": "BYTES", "data": ["x"]}]}
    ),
    "http_infer_extra": lambda: infer({**ASKED, "input": []}),
    "http_infer_output": lambda: infer({**ASKED, "outputs": [{"name": "resul"}]}),
    "http_infer_version": lambda: infer(ASKED, path="/v2/models/m/versions/7/infer"),
    "http_infer_parameter": lambda: infer({**ASKED, "parameters": {"timeout": "2s"}}),
    "http_decode": lambda: posted("/run/pictures", b"no picture"),
    "http_model_case": lambda: posted("/v2/models/M/infer", b"{}"),
    "http_predict": lambda: posted("/predict"),
    "http_no_part": lambda: posted(
        "/run/pictures", b"--b--", content_type="multipart/form-data; boundary=b"
    ),
    **{
        f"cli_command_{name}": lambda name=name: said(name, "a.toml", **FILE)
        for name in ("help", "start", "predict", "validate", "init", "list")
    },
    "cli_serve_debug": lambda: said("serve", "a.toml", "--debug", **FILE),
    "cli_serve_port_range": lambda: said("serve", "a.toml", "--port", "80000", **FILE),
    "cli_resume_alone": lambda: said("run", "a.toml", "a.toml", "--resume", **FILE),
    "cli_run_batch_size": lambda: said("run", "a.toml", "a.toml", "--batch-size", "4", **FILE),
    "cli_app_name": lambda: said("new", "app", "Word_Count"),
    "cli_app_exists": lambda: (Path("w").mkdir(), said("new", "app", "w")),
    "cli_backend_exists": lambda: said("new", "backend", "DecodeMat"),
    "cli_toml_colon": lambda: said("check", "a.toml", a__toml='backend: "Identity"'),
    "cli_toml_true": lambda: said("check", "a.toml", a__toml='backend = "A"\nrerun = True'),
    "cli_toml_path": lambda: said("check", "a.toml", a__toml='backend = "A"\nmodel = "C:\\m\\n"'),
    "cli_toml_curly": lambda: said("check", "a.toml", a__toml="backend = \u201cIdentity\u201d"),
    "cli_toml_table": lambda: said("check", "a.toml", a__toml='[main\nbackend = "Identity"'),
    "cli_toml_empty": lambda: said("check", "a.toml", a__toml=""),
    "pipe_bytes": lambda: headrace.pipe(b"a.toml"),
    "server_text": lambda: serve.Server("a.toml", port=0),
    "server_pipe": lambda: after_close(lambda pipe: serve.Server(pipe, port=0)),
    "server_port_text": lambda: serve.Server({"m": IDENTITY}, port="80"),
    "server_api": lambda: serve.Server({"m": IDENTITY}, port=0, apis=["openapi"]),
    "model_float64": lambda: network([1, 4], 1, np.zeros(4)),
    "request_set": lambda: call(IDENTITY, {1, 2}),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_mistake_is_answered_as_well_as_its_grade_says(name, tmp_path, monkeypatch):
    row = TABLE[name]
    monkeypatch.chdir(tmp_path)
    mistake = PROGRAMS.get(name) or partial(PipelineConfig.load, json.loads(row["config"]))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is in the table
        mistake()
    assert type(caught.value).__name__ == row.get("kind", "ConfigError")
    message = str(caught.value)
    assert [row[rule] for rule in RULES if row[rule] != "-" and row[rule] not in message] == []
    lacks = sum(not row[rule] for rule in RULES)
    assert lacks <= 1
    assert row["grade"] == "AB"[lacks]


def test_every_program_is_in_the_table_and_most_messages_keep_every_rule():
    assert {name for name, row in TABLE.items() if "config" not in row} == {*PROGRAMS}
    assert len(TABLE) >= 300
    assert sum(row["grade"] == "B" for row in TABLE.values()) <= 10
