"""Each part of the page "I have ..." is true. Those of torch and of cameras are followed beside headrace-torch and headrace-vision."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from pages import Page, asked, run_here, run_program, serving

import headrace

ROWS = np.float32([[1, 2, 3], [4, 5, 6.5]])


def part(title: str) -> Page:
    return Page("docs/i_have.md", title)


def serving_command(page: Page) -> str:
    """Return the last command that serves, which stands in a sentence."""
    return re.findall(r"`(headrace serve .*?)`", page.text)[-1]


def save_network(path: Path, node: str, inputs: list[str], dtype: str, shape: list) -> None:
    """Save a network of one node, from `x` of the shape to `y` of a row for each row."""
    onnx = pytest.importorskip("onnx")
    tensor, kind = onnx.helper.make_tensor_value_info, getattr(onnx.TensorProto, dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(node, inputs, ["y"])],
        "network",
        [tensor("x", kind, ["n", *shape])],
        [tensor("y", kind, ["n", 3, *(1 for _ in shape[1:])])],
    )
    opsets = [onnx.helper.make_opsetid("", 13)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def save_doubler(path: Path) -> None:
    """Save a network that doubles rows of three numbers."""
    save_network(path, "Add", ["x", "x"], "FLOAT", [3])


def test_an_onnx_file_is_served_and_its_inputs_and_outputs_are_shown(tmp_path):
    save_doubler(tmp_path / "net.onnx")
    page = part("An ONNX file")
    page.write(tmp_path)
    with serving(serving_command(page), tmp_path) as url:
        told = httpx.get(f"{url}/v2/models/net").json()
        answer = asked(page.command("curl"), url, tmp_path)
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
    assert answer == page.block("text").strip()
    assert json.loads(answer)["outputs"][0]["data"] == (2 * ROWS).ravel().tolist()


def test_a_file_is_served_measured_and_run_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_doubler(tmp_path / "net.onnx")
    np.save(tmp_path / "row.npy", ROWS[0])
    page = Page("docs/files_and_hubs.md")
    with serving(f"{page.command('serve net.onnx')} --port 0", tmp_path) as url:
        assert httpx.get(f"{url}/v2/models/net/ready").is_success
    assert run_here(page.command("headrace run")) == "row.npy\t[2.0, 4.0, 6.0]\n"
    quick = {"bench": ["--seconds", "0.05", "--warm-up", "0"]}
    assert "latency" in run_here(page.command("bench"), quick)


def test_a_float16_model_takes_a_picture_as_the_page_says(tmp_path):
    cv2 = pytest.importorskip("cv2")
    save_network(tmp_path / "half.onnx", "GlobalAveragePool", ["x"], "FLOAT16", [3, 32, 32])
    (between,) = re.findall(r"`(Call\(.*?\))` between", part("An ONNX file").text)
    picture = cv2.imencode(".png", np.full((48, 64, 3), (0, 128, 255), np.uint8))[1].tobytes()
    steps = "DecodeMat,ResizeMat(32,32),Mat2Tensor"
    last = f"OnnxTensor({tmp_path / 'half.onnx'})"
    with headrace.pipe({"backend": f"S[{steps},{between},{last}]"}) as pipe:
        means = pipe({"data": picture})["result"]
    assert (means.dtype, means.ravel().tolist()) == (np.float16, [0, 128, 255])
    with headrace.pipe({"backend": f"S[{steps},{last}]"}) as pipe:
        with pytest.raises(headrace.errors.InputError) as caught:
            pipe({"data": picture})
        assert between in str(caught.value)


def test_a_folder_of_triton_is_served_to_its_clients_beside_its_own_files(tmp_path):
    client = pytest.importorskip("tritonclient.http")
    save_doubler(tmp_path / "repository" / "color" / "1" / "model.onnx")
    own = tmp_path / "repository" / "color" / "config.pbtxt"
    own.write_text('name: "color"\nbackend: "onnxruntime"\nmax_batch_size: 8\n', encoding="utf-8")
    page = part("A folder of Triton")
    page.write(tmp_path)
    rows = client.InferInput("x", [2, 3], "FP32")
    rows.set_data_from_numpy(ROWS)
    with (
        serving(serving_command(page), tmp_path) as url,
        client.InferenceServerClient(url.removeprefix("http://")) as triton,
    ):
        answer = triton.infer("color", [rows], model_version="1").as_numpy("y")
    assert answer.tolist() == [[2, 4, 6], [8, 10, 13]]


def test_a_function_answers_as_it_is_printed(tmp_path):
    assert run_program(part("A function").block("python"), tmp_path)


@pytest.mark.slow
def test_requests_of_a_fastapi_service_share_batches():
    fastapi = pytest.importorskip("fastapi")
    all_are_there = threading.Event()
    headrace.register("LenOfAll", lambda body: (all_are_there.wait(60), len(body))[1])
    written = part("A FastAPI service").block("python")
    assert "Call(builtins:len)" in written
    app = fastapi.FastAPI()
    names = {"app": app, "headrace": headrace, "Request": fastapi.Request}
    exec(written.replace("Call(builtins:len)", "LenOfAll"), names)

    async def sizes(pipe: headrace.Pipeline) -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            sent = (client.post("/size", content=b"x" * size) for size in range(40))
            answers = asyncio.gather(*sent)
            while pipe.stats()["nodes"]["main"]["submitted"] < 40:
                await asyncio.sleep(0)
            all_are_there.set()
            return [answer.json() for answer in await answers]

    with names["pipe"] as pipe:
        assert asyncio.run(sizes(pipe)) == [*range(40)]
        assert pipe.stats()["nodes"]["main"]["batches"] <= 1 + 39 // 8 + 1  # the first ran alone
