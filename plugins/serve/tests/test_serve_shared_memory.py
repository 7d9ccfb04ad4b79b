"""Shared memory of the system, as ``tritonclient.utils.shared_memory`` uses it."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from headrace_serve import Limits
from headrace_serve.grpc import extensions as grpc_extensions
from headrace_serve.grpc.messages import message

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="regions are files on Linux alone")

FP32 = {
    "config": {"backend": "Identity"},
    "inputs": {"x": {"datatype": "FP32", "shape": [-1], "each": False}},
    "outputs": {"y": {"datatype": "FP32", "shape": [-1]}},
}
TEXT = {
    "config": {"backend": "Identity"},
    "inputs": {"x": {"datatype": "BYTES", "shape": [-1], "each": False}},
    "outputs": {"y": {"datatype": "BYTES", "shape": [-1]}},
}
BYTES = 64


@pytest.fixture(params=["http", "grpc"])
def triton(request):
    return {"http": triton_http, "grpc": triton_grpc}[request.param]


@pytest.fixture
def client(serving, triton):
    made = []

    def connect(**settings):
        settings = {"allow": ["shared-memory"], **settings}
        server = serving({"m": FP32, "text": TEXT}, grpc_port=0, **settings)
        port = server.port if triton is triton_http else server.grpc_port
        made.append(triton.InferenceServerClient(f"127.0.0.1:{port}"))
        made[-1].server = server
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def region():
    """Make regions of 64 bytes, which are gone at the end; give the handle and the key."""
    handles = []

    def make(name):
        key = f"headrace_test_{os.getpid()}_{name}"
        handles.append(shm.create_shared_memory_region(name, key, BYTES))
        return handles[-1], key

    yield make
    for one in handles:
        shm.destroy_shared_memory_region(one)


def placed(triton, datatype, count, size, region="in", offset=0):
    made = triton.InferInput("x", [count], datatype)
    made.set_shared_memory(region, size, offset=offset)
    return [made]


def wanted(triton, size, region="out", offset=0):
    made = triton.InferRequestedOutput("y")
    made.set_shared_memory(region, size, offset=offset)
    return [made]


def rows(client):
    regions = client.get_system_shared_memory_status()
    listed = regions if isinstance(regions, list) else regions.regions.values()
    return [(one["name"], one["byte_size"]) if isinstance(one, dict) else (one.name, one.byte_size)
            for one in listed]  # fmt: skip


def test_inputs_and_outputs_lie_in_regions(client, region, triton):
    c = client()
    (given, key_in), (taken, key_out) = region("in"), region("out")
    c.register_system_shared_memory("in", key_in, BYTES)
    c.register_system_shared_memory("out", "/" + key_out, BYTES - 16, offset=16)
    assert sorted(rows(c)) == [("in", BYTES), ("out", BYTES - 16)]
    x = np.array([1.5, -2.0, 3.0], np.float32)
    shm.set_shared_memory_region(given, [x], offset=8)
    answer = c.infer(
        "m", placed(triton, "FP32", 3, 12, offset=8), outputs=wanted(triton, 20, offset=4)
    )
    output = answer.get_output("y")
    found = output if isinstance(output, dict) else {"shape": list(output.shape)}
    assert found["shape"] == [3]
    # Triton's clients in C++ take an output with parameters for one with binary data.
    assert "parameters" not in found
    assert (shm.get_contents_as_numpy(taken, np.float32, [3], offset=20) == x).all()
    assert (c.infer("m", placed(triton, "FP32", 3, 12, offset=8)).as_numpy("y") == x).all()
    c.unregister_system_shared_memory("in")
    with pytest.raises(InferenceServerException):  # without a name all are meant
        c.register_system_shared_memory("", key_in, BYTES)
    assert rows(c) == [("out", BYTES - 16)]
    c.unregister_system_shared_memory()
    assert rows(c) == []


def test_texts_lie_in_regions(client, region, triton):
    from tritonclient.utils import serialize_byte_tensor, serialized_byte_size

    c = client()
    (given, key_in), (taken, key_out) = region("in"), region("out")
    c.register_system_shared_memory("in", key_in, BYTES)
    c.register_system_shared_memory("out", key_out, BYTES)
    texts = np.array([b"ab", "é".encode(), b""], object)
    sent = serialize_byte_tensor(texts)
    shm.set_shared_memory_region(given, [sent])
    size = serialized_byte_size(sent)
    c.infer("text", placed(triton, "BYTES", 3, size), outputs=wanted(triton, BYTES))
    got = shm.get_contents_as_numpy(taken, np.object_, [3])
    assert got.tolist() == texts.tolist()


def status(call, *args, **kwargs):
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **kwargs)
    return caught.value.status().removeprefix("StatusCode.")


def test_what_lies_outside_of_a_region_is_refused(client, region, triton, held_bytes):
    c = client()
    (_, key), (_, key_out) = region("in"), region("out")
    bad = ("400", "INVALID_ARGUMENT")
    for wrong in (
        (f"{key}_none", BYTES, 0), (key, BYTES + 1, 0), (key, BYTES, 1), ("../shm/" + key, BYTES, 0),
        ("..", BYTES, 0), (key, 2**63 - 1, 2**63 - 1),
    ):  # fmt: skip
        name, size, offset = wrong
        assert status(c.register_system_shared_memory, "in", name, size, offset=offset) in bad
    c.register_system_shared_memory("in", key, BYTES)
    c.register_system_shared_memory("out", key_out, BYTES)
    assert status(c.register_system_shared_memory, "in", key, BYTES) in ("409", "ALREADY_EXISTS")
    assert status(c.get_system_shared_memory_status, "none") in bad
    good = wanted(triton, BYTES)
    for inputs, outputs in (
        (placed(triton, "FP32", 3, 16), good),
        (placed(triton, "FP32", 17, 68), good),
        (placed(triton, "FP32", 3, 12, offset=BYTES - 11), good),
        (placed(triton, "FP32", 3, 12, region="none"), good),
        (placed(triton, "FP32", 3, 12), wanted(triton, 11)),
        (placed(triton, "FP32", 3, 12), wanted(triton, 12, offset=BYTES)),
        (placed(triton, "FP32", 3, 12), wanted(triton, 12, region="none")),
    ):
        assert status(c.infer, "m", inputs, outputs=outputs) in bad
    c.infer("m", placed(triton, "FP32", 3, 12), outputs=good)
    assert held_bytes(c.server) == 0


def test_what_is_no_number_of_bytes_is_refused(serving, region):
    server = serving({"m": FP32}, allow=["shared-memory"])
    url = f"{server.url}/v2/systemsharedmemory/region/in/register"
    _, key = region("in")
    good = {"key": key, "offset": 0, "byte_size": BYTES}

    def refused(url, **body):
        answer = httpx.post(url, **body)
        return answer.status_code, "a number of bytes" in answer.json()["error"]

    wrong = (-1, True, "0", 0.5, None, [], 2**63)
    for name in ("offset", "byte_size"):
        for value in wrong:
            assert refused(url, json={**good, name: value}) == (400, True), (name, value)
    answer = httpx.post(url, content=b'{"key": ')
    assert (answer.status_code, "the body is no JSON" in answer.text) == (400, True)
    assert httpx.post(url, json=good).status_code == 200
    place = {"shared_memory_region": "in", "shared_memory_offset": 0}
    place["shared_memory_byte_size"] = 12
    one = {"name": "x", "datatype": "FP32", "shape": [3]}
    infer = f"{server.url}/v2/models/m/infer"
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        for value in wrong:
            asked = {"inputs": [{**one, "parameters": {**place, name: value}}]}
            assert refused(infer, json=asked)[0] == 400, (name, value)
    assert httpx.post(infer, json={"inputs": [{**one, "parameters": place}]}).status_code == 200


def test_a_region_that_becomes_shorter_is_an_error_of_the_client(client, region, triton):
    c = client()
    (_, key), (_, key_out) = region("in"), region("out")
    c.register_system_shared_memory("in", key, BYTES)
    c.register_system_shared_memory("out", key_out, BYTES)
    os.truncate(f"/dev/shm/{key_out}", 4)
    bad = ("400", "INVALID_ARGUMENT")
    inputs = placed(triton, "FP32", 3, 12)
    assert status(c.infer, "m", inputs, outputs=wanted(triton, 12)) in bad
    os.truncate(f"/dev/shm/{key}", 4)
    assert status(c.infer, "m", inputs) in bad


@pytest.mark.parametrize(
    ("limits", "refused"),
    [({"max_body_bytes": 1000}, ("413", "RESOURCE_EXHAUSTED")),
     ({"max_inflight_bytes": 3000}, ("429", "RESOURCE_EXHAUSTED"))],
)  # fmt: skip
def test_what_is_read_counts_as_a_body(client, region, triton, limits, refused, held_bytes):
    c = client(limits=Limits(**limits))
    _, key = region("in")
    os.truncate(f"/dev/shm/{key}", 4096)
    c.register_system_shared_memory("in", key, 4096)
    c.infer("m", placed(triton, "FP32", 16, 64))
    assert status(c.infer, "m", placed(triton, "FP32", 1024, 4096)) in refused
    assert held_bytes(c.server) == 0


def test_without_permission_nothing_of_it_works(client, region, triton):
    c = client(allow=[])
    _, key = region("in")
    refused = ("501", "UNIMPLEMENTED")
    assert status(c.register_system_shared_memory, "in", key, BYTES) in refused
    assert status(c.get_system_shared_memory_status) in refused
    assert status(c.unregister_system_shared_memory) in refused
    assert status(c.infer, "m", placed(triton, "FP32", 3, 12)) in refused
    assert status(c.register_cuda_shared_memory, "in", b"", 0, 8) in refused


def test_the_extensions_name_what_is_allowed(client, triton):
    def extensions(**settings):
        metadata = client(**settings).get_server_metadata()
        return set(metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions)

    assert extensions() - extensions(allow=[]) == {"system_shared_memory"}
    assert extensions(allow=["repository"]) - extensions(allow=[]) == {"model_repository"}


def test_the_status_of_regions_over_grpc_is_made_of_messages():
    """Versions 5 of protobuf take no dict as a value of a map."""
    row = {"name": "in", "key": "k", "offset": 0, "byte_size": BYTES}
    service = SimpleNamespace(regions=SimpleNamespace(status=lambda name: [row]))
    status, _ = grpc_extensions._ANSWERS["SystemSharedMemoryStatus"]
    (one,) = asyncio.run(status(service, SimpleNamespace(name="")))["regions"].values()
    assert one == message("inference.SystemSharedMemoryStatusResponse.RegionStatus")(**row)
    assert not isinstance(one, dict)
