"""Classification, parameters for the pipeline, shared memory that is not there, pings of gRPC."""

from __future__ import annotations

import json
import socket
import struct

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_serve import Limits, Server
from headrace_serve.models.entries import read_models

LABELS = ["cat", "dog", "fish", "bird"]
SCORES = {
    "config": {"backend": "Identity", "max": 4},
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 4], "batched": True}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1, 4]}},
    "labels": {"y": LABELS},
}


@pytest.fixture(params=[triton, triton_http], ids=["grpc", "http"])
def client(request, serving):
    """Start a server, and give a client of Triton for one of the protocols, with its module."""
    clients = []

    def start(models, **settings):
        server = serving(models, grpc_port=0, **settings)
        over_grpc = request.param is triton
        address = server.grpc_url if over_grpc else server.url
        made = request.param.InferenceServerClient(address.partition("://")[2])
        clients.append(made)
        return made, request.param

    yield start
    for one in clients:
        one.close()


def classes(client, kind, rows, count, *, name="m"):
    rows = np.asarray(rows, "f4")
    given = kind.InferInput("x", rows.shape, "FP32")
    given.set_data_from_numpy(rows)
    wanted = [kind.InferRequestedOutput("y", class_count=count)]
    return client.infer(name, [given], outputs=wanted).as_numpy("y")


def test_classes_are_the_greatest_values_of_each_row_with_index_and_label(client):
    made, kind = client({"m": SCORES})
    found = classes(made, kind, [[0.5, 2.0, -1.0, 2.0], [3.0, 0.25, 0.0, 1.0]], 2)
    right = [[b"2.000000:1:dog", b"2.000000:3:bird"], [b"3.000000:0:cat", b"1.000000:3:bird"]]
    assert found.tolist() == right
    assert classes(made, kind, [[0, 1, 2, 3]], 9).shape == (1, 4)
    assert "classification" in extensions(made)


def test_the_extensions_name_what_is_allowed(client):
    plain, allowed = (
        extensions(client({"m": SCORES}, allow=allow)[0]) for allow in ([], ["repository"])
    )
    assert set(allowed) - set(plain) == {"model_repository"}
    assert "system_shared_memory" not in plain


def extensions(client):
    found = client.get_server_metadata()
    return found["extensions"] if isinstance(found, dict) else list(found.extensions)


def test_without_labels_a_class_is_score_and_index_and_a_whole_tensor_has_one_list(client):
    ports = {"datatype": "INT32", "shape": [4]}
    models = {
        "m": {"config": {"backend": "Identity"}, "inputs": {"x": ports}, "outputs": {"y": ports}}
    }
    made, kind = client(models)
    given = kind.InferInput("x", [4], "INT32")
    given.set_data_from_numpy(np.array([7, -3, 9, 0], "i4"))
    wanted = [kind.InferRequestedOutput("y", class_count=3)]
    assert made.infer("m", [given], outputs=wanted).as_numpy("y").tolist() == [
        b"9:2", b"7:0", b"0:3"
    ]  # fmt: skip


def test_labels_are_read_from_a_file_beside_the_serving_file(serving, tmp_path):
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    (tmp_path / "m.toml").write_text('backend = "Identity"\nmax = 4')
    (tmp_path / "serve.toml").write_text(
        '[models.m]\nconfig = "m.toml"\n[models.m.inputs.x]\ndatatype = "FP32"\nshape = [-1, 4]\n'
        'batched = true\n[models.m.outputs.y]\ndatatype = "FP32"\nshape = [-1, 4]\n'
        '[models.m.labels]\ny = "labels.txt"\n'
    )
    server = serving(read_models([], str(tmp_path / "serve.toml")))
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0.5, 0, 1]}
    body = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"classification": 1}}]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json=body).json()["outputs"][0]
    assert answer == {
        "name": "y", "datatype": "BYTES", "shape": [1, 1], "data": ["1.000000:3:bird"]
    }  # fmt: skip
    (tmp_path / "labels.txt").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_models([], str(tmp_path / "serve.toml"))


def test_line_n_of_a_file_of_labels_is_class_n_minus_1_and_an_empty_one_is_no_label(
    client, tmp_path
):
    path = tmp_path / "labels.txt"
    path.write_bytes("\ufeffcat\r\n\r\nf\u2028ish\r\n".encode())
    made, kind = client({"m": {**SCORES, "labels": {"y": str(path)}}})
    assert classes(made, kind, [[4, 3, 2, 1]], 4).tolist() == [
        [b"4.000000:0:cat", b"3.000000:1", "2.000000:2:f\u2028ish".encode(), b"1.000000:3"]
    ]
    written = path.with_suffix(".json")
    written.write_text('{"0": "cat", "2": "fish", "3": ""}')
    made, kind = client({"m": {**SCORES, "labels": {"y": str(written)}}})
    assert classes(made, kind, [[4, 3, 2, 1]], 4).tolist() == [
        [b"4.000000:0:cat", b"3.000000:1", b"2.000000:2:fish", b"1.000000:3"]
    ]
    written.write_text("[0]")
    with pytest.raises(ConfigError, match=r"labels\.json cannot be read: it holds no labels"):
        Server({"m": {**SCORES, "labels": {"y": str(written)}}}, port=0)
    path.write_bytes(b"cat\n\n\xe9\n")
    with pytest.raises(ConfigError, match=r"labels\.txt:3: "):
        Server({"m": {**SCORES, "labels": {"y": str(path)}}}, port=0)


def test_labels_of_an_output_that_is_not_there_are_an_error_of_the_start():
    with pytest.raises(SetupError, match="'z', which it does not have"):
        Server({"m": {**SCORES, "labels": {"z": LABELS}}}, port=0)


@pytest.mark.parametrize("count", [0, -1, True, "2", 1.5])
def test_a_wrong_number_of_classes_is_refused(serving, count):
    server = serving({"m": SCORES})
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}
    body = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"classification": count}}]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json=body)
    assert answer.status_code == 400
    assert "classification of output 'y'" in answer.json()["error"]


def test_text_has_no_classes(serving):
    server = serving({"m": {"backend": "Identity"}})
    tensor = {"name": "data", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    wanted = {"name": "result", "parameters": {"classification": 1}}
    body = {"inputs": [tensor], "outputs": [wanted]}
    answer = httpx.post(f"{server.url}/v2/models/m/infer", json=body)
    assert answer.status_code == 400
    assert "expected an output of numbers" in answer.json()["error"]


class Parameters(headrace.Backend):
    """Tell the parameters in the context."""

    def forward(self, batch):
        for request in batch:
            request["result"] = json.dumps(request.get("context", {}).get("parameters"))


headrace.register("ServeParameters", Parameters)


def test_parameters_that_are_not_the_servers_reach_the_pipeline(client):
    model = {"config": {"backend": "ServeParameters"}}
    model["inputs"] = {"x": {"datatype": "INT8", "shape": [-1]}}
    made, kind = client({"m": model})

    def told(own, **more):
        given = kind.InferInput("x", [1], "INT8")
        given.set_data_from_numpy(np.zeros(1, "i1"))
        parameters = (
            given._get_tensor().setdefault("parameters", {}) if kind is triton_http else None
        )
        for name, value in own.items():
            if parameters is None:
                given._input.parameters[name].string_param = value
            else:
                parameters[name] = value
        answer = made.infer("m", [given], **more)
        return json.loads(answer.as_numpy("result")[0])

    assert told({}) is None
    assert told({}, priority=1) is None
    assert told({}, parameters={"temperature": 3, "mode": "fast"}) == {
        "temperature": 3, "mode": "fast"
    }  # fmt: skip
    assert told({"content_type": "np"}, parameters={"deep": True}) == {
        "deep": True, "inputs": {"x": {"content_type": "np"}}
    }  # fmt: skip
    assert told({}, parameters={"mode": "slow"}) == {
        "mode": "slow"
    }  # that of another request is gone
    with pytest.raises(Exception, match="sequences are not supported"):
        told({}, sequence_id=3)


def test_a_tensor_in_shared_memory_is_refused_with_what_to_do(client):
    made, kind = client({"m": SCORES})
    sent = kind.InferInput("x", [1, 4], "FP32")
    sent.set_data_from_numpy(np.zeros((1, 4), "f4"))
    placed = kind.InferInput("x", [1, 4], "FP32")
    placed.set_shared_memory("r", 16)
    wanted = kind.InferRequestedOutput("y")
    wanted.set_shared_memory("r", 16)
    for given, outputs, where in (([placed], None, "input 'x'"), ([sent], [wanted], "output 'y'")):
        with pytest.raises(
            Exception, match=rf"{where} .*send the tensors.*headrace\.pipe"
        ) as caught:
            made.infer("m", given, outputs=outputs)
        assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert made.infer("m", [sent]).as_numpy("y").tolist() == [[0, 0, 0, 0]]


def test_the_calls_of_shared_memory_say_what_to_do(client):
    made, _ = client({"m": SCORES})
    for call in (
        made.get_system_shared_memory_status,
        lambda: made.register_system_shared_memory("r", "k", 8),
        lambda: made.unregister_system_shared_memory("r"),
        made.get_cuda_shared_memory_status,
        lambda: made.register_cuda_shared_memory("r", b"", 0, 8),
        made.unregister_cuda_shared_memory,
    ):
        with pytest.raises(Exception, match=r"not supported.*send the tensors") as caught:
            call()
        assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


def test_the_configuration_says_whether_instances_are_on_a_gpu(serving):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    rest = httpx.get(f"{server.url}/v2/models/m/config").json()
    assert rest["instance_group"][0]["kind"] == "KIND_CPU"
    with triton.InferenceServerClient(server.grpc_url.partition("://")[2]) as made:
        found = made.get_model_config("m", as_json=True)["config"]
    assert found["instance_group"][0]["kind"] == "KIND_CPU"


def test_a_client_of_grpc_that_answers_no_ping_loses_its_connection(serving):
    limits = Limits(grpc_keepalive_s=0.05, grpc_keepalive_timeout_s=0.05)
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0, limits=limits)
    with socket.create_connection((server.host, server.grpc_port), timeout=60) as silent:
        # The preface of HTTP/2, settings without values, and the acknowledgement of the server's settings.
        settings = struct.pack(">BHBBI", 0, 0, 4, 0, 0)
        silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        silent.sendall(struct.pack(">BHBBI", 0, 0, 4, 1, 0))
        got = b""
        while piece := silent.recv(65536):
            got += piece
    kinds = []
    while len(got) >= 9:
        length = int.from_bytes(got[:3], "big")
        kinds.append(got[3])
        got = got[9 + length :]
    assert 6 in kinds  # a ping


def test_items_may_have_a_last_axis_of_one_element(client):
    """The codecs of MLServer send ``[N, 1]`` for N texts."""
    made, kind = client({"m": {"backend": "Identity"}})

    def sent(shape):
        given = kind.InferInput("data", shape, "BYTES")
        given.set_data_from_numpy(np.array([b"one", b"two"], object).reshape(shape))
        return made.infer("m", [given]).as_numpy("result").tolist()

    assert sent([2, 1]) == [b"one", b"two"]
    for shape in ([1, 2], [2, 1, 1]):
        with pytest.raises(Exception, match=r"expected BYTES \[-1\]"):
            sent(shape)


def test_a_version_that_is_no_number_is_refused_in_words_of_triton(client):
    made, _ = client({"m": {"backend": "Identity"}})
    words = "failed to get model version from specified version string 'newest'.*it has 1"
    with pytest.raises(Exception, match=words):
        made.get_model_metadata("m", "newest")


def test_the_name_in_the_metadata_of_the_server_is_an_option(client):
    named = [({}, "headrace-serve"), ({"server_name": "triton"}, "triton")]
    for settings, name in named:
        made, kind = client({"m": {"backend": "Identity"}}, **settings)
        found = made.get_server_metadata()
        assert (found.name if kind is triton else found["name"]) == name


@pytest.mark.parametrize(
    ("contents", "raw", "words"),
    [
        ({"bytes_contents": [b"x"]}, [b"x"], "raw_input_contents for 'data' for model 'm'"),
        ({"int_contents": [1]}, [], "input 'data': BYTES: expected bytes_contents"),
        ({"bytes_contents": [b"x"] * 2}, [], r"input 'data': expected data of shape \[1\]"),
    ],
)
def test_contents_that_do_not_fit_are_refused_by_the_name_of_the_input(
    serving, contents, raw, words
):
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    request = triton.service_pb2.ModelInferRequest(model_name="m", raw_input_contents=raw)
    request.inputs.add(name="data", datatype="BYTES", shape=[1], contents=contents)
    with grpc.insecure_channel(server.grpc_url.partition("://")[2]) as channel:
        stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match=words):
            stub.ModelInfer(request)
