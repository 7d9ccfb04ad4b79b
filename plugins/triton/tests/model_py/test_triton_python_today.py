"""What a model.py finds in today's interface: metrics of each kind, readiness, traces, parameters, fewer outputs."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import tritonclient.http as triton_http
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from python_models import (
    ADD_SUB,
    ADD_SUB_CONFIG,
    NUMBER,
    TEXT,
    config,
)
from tritonclient.utils import InferenceServerException

from headrace_serve import Server

A = np.arange(4, dtype=np.float32)
TOLD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

def tried(call):
    try:
        return call()
    except pb_utils.TritonModelException as error:
        return str(error)

class TritonPythonModel:
    def initialize(self, args):
        self.began = self.begin() if hasattr(self, "begin") else None
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(self.tell(one)).encode()], object))])
            for one in requests
        ]
"""
"""A model that answers with what its method ``tell`` gives, as JSON."""


def told(models, methods, request=None, **others):
    """Return what a model tells whose methods these are."""
    code = TOLD + "".join(f"    {line}\n" for line in methods.strip("\n").splitlines())
    made = models({"tells": (config("tells", {}, {"OUT": TEXT}), code), **others})
    return json.loads(made("tells", dict(request or {}))["result"]["OUT"][0])


def test_a_model_asks_whether_others_are_ready(models):
    found = told(
        models,
        """
def begin(self):
    return pb_utils.is_model_ready("add_sub")
def tell(self, request):
    asked = [("add_sub",), ("add_sub", "1"), ("add_sub", "9"), ("none",), ("tells",)]
    return [self.began, *(pb_utils.is_model_ready(*one) for one in asked), tried(lambda: pb_utils.is_model_ready("add_sub", "-1"))]
""",
        add_sub=(ADD_SUB_CONFIG, ADD_SUB),
    )
    *said, wrong = found
    assert said[1:] == [True, True, False, False, True]
    assert isinstance(said[0], bool)
    assert "a version is a number above 0, got '-1'" in wrong


def test_a_model_that_its_first_request_builds_is_ready(models):
    asks = "    def tell(self, request): return pb_utils.is_model_ready('add_sub')\n"
    others = {"tells": (config("tells", {}, {"OUT": TEXT}), TOLD + asks)}
    made = models({**others, "add_sub": (ADD_SUB_CONFIG, ADD_SUB)}, preload=False)

    def is_ready():
        return json.loads(made("tells", {})["result"]["OUT"][0])

    assert is_ready()
    assert made.status()["add_sub"]["state"] == "unloaded"
    made.unload("add_sub")
    assert not is_ready()


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("context", [{}, {"context": {"traceparent": PARENT, "other": 1}}])
def test_a_model_is_told_the_trace_of_its_request(models, context):
    found = told(models, "def tell(self, request): return request.trace().get_context()", context)
    assert (found and json.loads(found)) == ({"traceparent": PARENT} if context else None)


def test_a_call_belongs_to_the_trace_that_it_is_given(models):
    inner = TOLD + "    def tell(self, request): return request.trace().get_context()\n"
    found = told(
        models,
        """
def tell(self, request):
    calls = [
        pb_utils.InferenceRequest(model_name="inner", inputs=[], requested_output_names=["OUT"], **more)
        for more in ({}, {"trace": request.trace()})
    ]
    return [json.loads(one.exec().output_tensors()[0].as_numpy()[0]) for one in calls]
""",
        {"context": {"traceparent": PARENT}},
        inner=(config("inner", {}, {"OUT": TEXT}), inner),
    )
    assert found[0] is None
    assert json.loads(found[1]) == {"traceparent": PARENT}


METRICS = """
def begin(self):
    F = pb_utils.MetricFamily
    self.count = F(name="{0}_seen", description="c", kind=F.COUNTER).Metric(labels={{"m": "x"}})
    self.total = F(name="{0}_ms_total", description="t", kind=F.COUNTER).Metric()
    self.level = F(name="{0}_level", description="g", kind=F.GAUGE).Metric(labels={{"m": "x"}})
    self.times = F(name="{0}_times", description="h", kind=F.HISTOGRAM).Metric(labels={{"m": "x"}}, buckets=[0.5, 1, 10])
def tell(self, request):
    self.count.increment(2)
    self.total.increment(3)
    self.level.set(-4)
    for value in (0.25, 0.5, 7, 70):
        self.times.observe(value)
    F = pb_utils.MetricFamily
    wrong = [
        lambda: self.count.increment(-1),
        lambda: self.count.set(1),
        lambda: self.count.observe(1),
        lambda: self.level.observe(1),
        lambda: self.times.increment(1),
        lambda: self.times.value(),
        lambda: F("{0}_h2", "d", F.HISTOGRAM).Metric({{"m": "x"}}),
        lambda: F("{0}_h3", "d", F.HISTOGRAM).Metric({{"m": "x"}}, [3, 1]),
        lambda: F("{0}_c4", "d", F.COUNTER).Metric({{"m": "x"}}, [1, 3]),
        lambda: F("{0}_seen", "d", F.GAUGE),
        lambda: F("{0} 1", "d", F.GAUGE),
        lambda: F("{0}_g9", "d", F.GAUGE).Metric({{"a-b": "x"}}),
    ]
    return [self.count.value(), self.level.value(), *map(tried, wrong)]
"""


def test_metrics_of_each_kind_are_counted_and_misuse_is_told(models, in_process):
    name = f"today_{'here' if in_process else 'there'}"
    count, level, *wrong = told(models, METRICS.format(name))
    assert (count, level) == (2, -4)
    said = [
        "never falls", "has no 'set', only increment, value", "has no 'observe'", "has no 'observe'",
        "has no 'increment', only observe", "has no 'value'", "needs `buckets`", "ascend", "has no `buckets`",
        "are a counter, not a gauge", "a name of letters", "no name of a label",
    ]  # fmt: skip
    assert [text for text, wanted in zip(wrong, said, strict=True) if wanted not in text] == []
    found = {one.name: one for one in plain_families(generate_latest(REGISTRY).decode())}
    times = {
        (one.name.removeprefix(f"{name}_times"), one.labels.get("le")): one.value
        for one in found[f"{name}_times"].samples
    }
    assert times == {
        ("_bucket", "0.5"): 2,
        ("_bucket", "1.0"): 2,
        ("_bucket", "10.0"): 3,
        ("_bucket", "+Inf"): 4,
        ("_count", None): 4,
        ("_sum", None): 0.25 + 0.5 + 7 + 70,
    }
    text = generate_latest(REGISTRY).decode()
    assert f'# HELP {name}_seen c\n# TYPE {name}_seen counter\n{name}_seen{{m="x"}} 2.0\n' in text
    assert f"# TYPE {name}_ms_total counter\n{name}_ms_total 3.0\n" in text


def served(repository, name, methods, **more):
    """Write a model that tells, and return a server of the repository."""
    code = TOLD + "".join(f"    {line}\n" for line in methods.strip("\n").splitlines())
    repository.python(name, TELLS, code)
    return Server(str(repository.folder), port=0, **more)


TELLS = """backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [1] }]
"""


def infer(client, model, number=0.0, **more):
    """Send a number as IN."""
    sent = triton_http.InferInput("IN", [1], "FP32")
    sent.set_data_from_numpy(np.array([number], np.float32))
    return client.infer(model, [sent], **more).get_response()


@pytest.fixture
def client_of():
    made = []

    def make(server):
        made.append(triton_http.InferenceServerClient(f"127.0.0.1:{server.port}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_metrics_of_a_server_with_such_a_model_are_openmetrics(repository, client_of):
    from urllib.request import Request, urlopen

    with served(repository, "m", METRICS.format("today_served")) as server:
        infer(client_of(server), "m")
        kind = {"Accept": "application/openmetrics-text; version=1.0.0"}
        with urlopen(Request(f"{server.url}/metrics", headers=kind), timeout=60) as answer:
            text = answer.read().decode()
    found = {one.name: one for one in text_string_to_metric_families(text)}
    for name in ("seen", "ms"):
        (sample,) = found[f"today_served_{name}"].samples
        assert (found[f"today_served_{name}"].type, sample.name) == (
            "counter",
            f"today_served_{name}_total",
        )
    assert found["today_served_times"].type == "histogram"


def test_parameters_of_a_response_are_those_of_the_answer(repository, client_of):
    code = TOLD.replace(
        "object))])", "object))], parameters={'took': 3, 'by': 'x', 'whole': True})"
    )
    methods = "    def tell(self, request): return 1\n"
    repository.python("m", TELLS, code + methods)
    with Server(str(repository.folder), port=0) as server:
        found = infer(client_of(server), "m")
    assert found["parameters"] == {"took": 3, "by": "x", "whole": True}


def test_parameters_are_plain(models):
    wrong = "def tell(self, request): return tried(lambda: pb_utils.InferenceResponse([], parameters={'a': [1]}))"
    assert "texts, whole numbers or booleans, got 'a': list" in told(models, wrong)


FEWER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            names = "AB" if given[0] > 1 else "A" if given[0] else ""
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, given) for name in names]))
        return answers
"""
PORTS = """input [{ name: "IN" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "A" data_type: TYPE_FP32 dims: [1] }, { name: "B" data_type: TYPE_FP32 dims: [1] }]
"""
BOTH = """ensemble_scheduling { step [{ model_name: "m" model_version: -1 input_map { key: "IN" value: "IN" }
output_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }] }
"""


def test_a_model_may_leave_outputs_out(repository, client_of):
    """As Triton answers: the outputs that are there, of those that are asked for."""
    repository.python("m", 'backend: "python"\n' + PORTS, FEWER)
    repository.configure("both", 'platform: "ensemble"\n' + PORTS + BOTH)
    (repository.folder / "both" / "1").mkdir()

    def names(model, number, *wanted):
        asked = [triton_http.InferRequestedOutput(one) for one in wanted] or None
        return [one["name"] for one in infer(client, model, number, outputs=asked)["outputs"]]

    with Server(str(repository.folder), port=0) as server:
        client = client_of(server)
        for model in ("m", "both"):
            assert names(model, 2) == ["A", "B"]
            assert names(model, 1) == ["A"]
            assert names(model, 1, "A") == ["A"]
            assert names(model, 1, "B") == []
        assert names("m", 0) == []
        assert "optional" not in json.dumps(client.get_model_config("m")["output"])


def test_an_ensemble_without_any_output_fails(repository, client_of):
    repository.python("m", 'backend: "python"\n' + PORTS, FEWER)
    repository.configure("both", 'platform: "ensemble"\n' + PORTS + BOTH)
    (repository.folder / "both" / "1").mkdir()
    with (
        Server(str(repository.folder), port=0, debug_errors=True) as server,
        pytest.raises(InferenceServerException, match="no model gave the output 'A'"),
    ):
        infer(client_of(server), "both")


READY = """
def begin(self):
    from pathlib import Path
    self.path = Path(r"{0}")
def is_ready(self):
    text = self.path.read_text()
    if text == "broken":
        raise ValueError("is_ready broke")
    return text == "yes"
def tell(self, request):
    return "answered"
"""


def wait_until(models, wanted):
    """Wait for a change of the readiness of the model, in the thread of this test."""
    turn, done = threading.Event(), models.pipeline("tells", "1")
    while done.ready is not wanted:
        turn.wait(0.05)


@pytest.mark.parametrize("said", ["no", "broken"])
def test_a_model_that_is_not_ready_says_so_and_still_answers(models, tmp_path, said):
    path = tmp_path / "said"
    path.write_text(said)
    code = TOLD + "".join(f"    {one}\n" for one in READY.format(path).strip("\n").splitlines())
    made = models({"tells": (config("tells", {}, {"OUT": TEXT}), code)}, instance_num=2)
    pipe = made.pipeline("tells", "1")
    assert not pipe.ready
    assert json.loads(made("tells", {})["result"]["OUT"][0]) == "answered"
    path.write_text("yes")
    wait_until(made, True)
    path.write_text(said)
    wait_until(made, False)


def test_a_call_is_given_up(models):
    code = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        self.threads = [threading.Thread(target=self.send, args=(one.get_response_sender(),)) for one in requests]
        for one in self.threads:
            one.start()
    def send(self, sender):
        while not sender.is_cancelled():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    def finalize(self):
        for one in self.threads:
            one.join()
"""
    found = told(
        models,
        """
def tell(self, request):
    call = pb_utils.InferenceRequest(model_name="endless", inputs=[], requested_output_names=["OUT"])
    responses = call.exec(decoupled=True)
    first = next(responses)
    responses.cancel()
    *_, last = responses
    return [len(first.output_tensors()), last.error().code() == pb_utils.TritonError.CANCELLED]
""",
        endless=(config("endless", {}, {"OUT": NUMBER}, decoupled=True), code),
    )
    assert found == [1, True]


def test_a_request_is_released_once(models):
    found = told(
        models,
        """
def tell(self, request):
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    return tried(lambda: request.set_release_flags(2))
""",
    )
    assert "RESCHEDULE is not here" in found
