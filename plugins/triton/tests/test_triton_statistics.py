"""Statistics of the protocol count what ensembles and models of Python call, as Triton's do."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from headrace_serve import Server

PORTS = """max_batch_size: 8
input [{ name: "A" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "B" data_type: TYPE_FP32 dims: [2] }]
"""
PART = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            error = pb_utils.TritonError("negative") if given.min() < 0 else None
            answers.append(pb_utils.InferenceResponse([] if error else [pb_utils.Tensor("B", given)], error))
        return answers
"""
CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        calls = [
            pb_utils.InferenceRequest(model_name="part", inputs=one.inputs(), requested_output_names=["B"])
            for one in requests
        ]
        return [pb_utils.InferenceResponse(one.exec().output_tensors()) for one in calls]
"""
ENSEMBLE = (
    'platform: "ensemble"\n'
    + PORTS
    + 'ensemble_scheduling { step [{ model_name: "part" model_version: -1 '
    'input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }] }'
)


@pytest.fixture
def server(repository):
    repository.python("part", 'backend: "python"\n' + PORTS, PART)
    repository.python("bls", 'backend: "python"\n' + PORTS, CALLS)
    repository.configure("both", ENSEMBLE, "1")
    with Server(str(repository.folder), port=0, allow=["repository"]) as made:
        yield made


def ask(client, model, rows, sign=1):
    sent = triton_http.InferInput("A", [rows, 2], "FP32")
    sent.set_data_from_numpy(np.full((rows, 2), sign, np.float32))
    client.infer(model, [sent])


def counted(client, model):
    """Return rows, successes and failures."""
    (found,) = client.get_inference_statistics(model)["model_stats"]
    assert json.dumps(found)
    inside = found["inference_stats"]
    assert (inside["success"]["ns"] > 0) is (inside["success"]["count"] > 0)
    assert (found["last_inference"] > 0) is (found["execution_count"] > 0)
    return found["inference_count"], inside["success"]["count"], inside["fail"]["count"]


@pytest.mark.parametrize("caller", ["both", "bls"])
def test_a_called_model_counts_its_rows_requests_and_failures(server, caller):
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert counted(client, "part") == (0, 0, 0)
        ask(client, caller, 3)
        ask(client, caller, 1)
        assert counted(client, caller) == counted(client, "part") == (4, 2, 0)
        ask(client, "part", 2)
        assert counted(client, "part") == (6, 3, 0)
        if caller == "both":
            with pytest.raises(InferenceServerException):
                ask(client, caller, 1, sign=-1)
            assert counted(client, "part") == (6, 3, 1)
        client.load_model("part")  # a new pipeline counts from 0
        ask(client, caller, 5)
        assert counted(client, "part") == (5, 1, 0)
