"""Attacks on other servers of models, which were published, tried here: nothing that a client sends is code or names a file."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from pathlib import Path
from urllib.parse import quote

import grpc
import httpx
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

KINDS = [
    "application/vnd.bentoml+pickle",
    "application/octet-stream",
    "application/pickle",
    "application/python-pickle",
    "application/x-python-serialize",
    "application/x-pickle; protocol=4",
    "text/plain",
]


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def armed(tmp_path):
    """Return a pickle that makes a file, once it is certain that it does; and the file, which is not there."""
    file = tmp_path / "ran"
    made = pickle.dumps(Touches(file))
    pickle.loads(made)
    assert file.exists()
    file.unlink()
    return made, file


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_is_bytes_whatever_its_type_is_called(serving, armed, kind):
    content, file = armed
    server = serving({"m": {"backend": "Identity"}})
    headers = {"content-type": kind, "accept": "application/octet-stream"}
    answer = httpx.post(f"{server.url}/run/m", content=content, headers=headers)
    assert answer.content == content or answer.status_code == 415
    for path in ("/v2/models/m/infer", "/v2/models/m/generate", "/v2/repository/index", "/nothing"):
        httpx.post(f"{server.url}{path}", content=content, headers=headers)
    assert not file.exists()


def test_bytes_of_tensors_and_messages_are_not_unpickled(serving, armed):
    content, file = armed
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0)
    address = f"127.0.0.1:{server.grpc_port}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(content)
    sent = {"name": "data", "datatype": "BYTES", "shape": [1], "data": [content.decode("latin-1")]}
    httpx.post(f"{server.url}/v2/models/m/infer", json={"inputs": [sent]})
    httpx.post(f"{server.url}/run/m", files={"data": ("x.pkl", content, KINDS[0])})
    assert not file.exists()


@pytest.fixture
def other_server():
    """Return an address, and how many have connected to it."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take():
            try:
                while True:
                    seen.append(listener.accept()[0].close())
            except OSError:
                pass

        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1], seen
        listener.shutdown(socket.SHUT_RDWR)


def test_no_model_is_fetched_from_an_address_or_read_from_a_path(serving, tmp_path, other_server):
    port, seen = other_server
    (tmp_path / "other.toml").write_text('backend = "Identity"\n')
    server = serving({"m": {"backend": "Identity"}}, allow=["repository"])
    address = f"http://127.0.0.1:{port}/model.mar"
    for name in (
        address,
        f"file://{tmp_path}/other.toml",
        f"{tmp_path}/other",
        "../other",
        "m/../other",
    ):
        path = f"/v2/repository/models/{quote(name, safe='')}/load"
        assert httpx.post(f"{server.url}{path}").status_code in (400, 404)
    for told in (
        {"config": json.dumps({"backend": "Identity", "model": address})},
        {"config": json.dumps({"import": [address]})},
        {"url": address},
        {"file:1/model.onnx": "AAAA"},
    ):
        answer = httpx.post(f"{server.url}/v2/repository/models/m/load", json={"parameters": told})
        assert answer.status_code in (400, 403)
    httpx.post(f"{server.url}/models", params={"url": address})
    httpx.post(f"{server.url}/workflows", params={"url": address})
    assert seen == []
    assert [one["name"] for one in httpx.post(f"{server.url}/v2/repository/index").json()] == ["m"]


def test_no_request_names_a_file_that_is_written(serving, tmp_path):
    file = tmp_path / "written"
    server = serving({"m": {"backend": "Identity"}}, grpc_port=0, allow=["repository"])
    settings = {"log_file": str(file), "log_file_1": str(file), "log_info": True}
    trace = {"trace_file": str(file), "trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    for path, body in (
        ("logging", settings),
        ("trace/setting", trace),
        ("models/m/trace/setting", trace),
    ):
        answer = httpx.post(f"{server.url}/v2/{path}", json=body)
        assert answer.status_code in (404, 405, 501)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for call, body in (
            (client.update_log_settings, {"log_file": str(file)}),
            (client.update_trace_settings, trace),
        ):
            with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
                call(settings=body)
    httpx.post(f"{server.url}/run/m", content=b"a line")
    assert not file.exists()


@pytest.mark.parametrize("size", [1, 6])
def test_a_body_of_many_small_chunks_is_one_body(serving, size):
    server = serving({"m": {"backend": "Identity"}})
    body = bytes(range(1, 256)) * 400
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(part), part)
        for part in (body[k : k + size] for k in range(0, len(body), size))
    )
    head = (
        b"POST /run/m HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Content-Type: application/octet-stream\r\nAccept: application/octet-stream\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), 60) as one:
        one.sendall(head + chunks + b"0\r\n\r\n")
        answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.partition(b"\r\n\r\n")[2] == body
