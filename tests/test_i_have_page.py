"""Each part of the page "I have ..." is true. Those of torch and of cameras are followed beside headrace-torch and headrace-vision."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest

import headrace

shell = runpy.run_path(str(Path(__file__).with_name("shell_commands.py")))["shell"]
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "i_have.md").read_text(encoding="utf-8")
ROWS = np.float32([[1, 2, 3], [4, 5, 6.5]])


def part(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", part(title), re.DOTALL)
    return found


def write(folder: Path, title: str) -> None:
    """Write the TOML file of a part, under the name that its first line has."""
    text = block(title, "toml")
    (folder / text.partition("\n")[0].removeprefix("# ")).write_text(text, encoding="utf-8")


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


@pytest.fixture
def served(tmp_path):
    """Return a function that runs the command of a part, at a port of its own: the address of its server."""
    running = []

    def serve(title: str) -> str:
        *_, command = re.findall(r"`headrace (serve .*?)`", part(title))
        words = shlex.split(command.replace("8000", "0"))
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        said = process.stdout.readline()
        assert said.startswith("serving http://"), said + process.stdout.read()
        return said.split()[1]

    yield serve
    for process in running:
        process.terminate()
        process.communicate()


def test_an_onnx_file_is_served_and_its_inputs_and_outputs_are_shown(served, tmp_path):
    save_doubler(tmp_path / "net.onnx")
    write(tmp_path, "An ONNX file")
    url = served("An ONNX file")
    told = httpx.get(f"{url}/v2/models/net").json()
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
    command = block("An ONNX file", "console").removeprefix("$ ")
    done = shell(command.replace("http://localhost:8000", url), tmp_path)
    assert done.stdout == block("An ONNX file", "text").strip(), done.stderr
    assert json.loads(done.stdout)["outputs"][0]["data"] == (2 * ROWS).ravel().tolist()


def test_a_float16_model_takes_a_picture_as_the_page_says(tmp_path):
    cv2 = pytest.importorskip("cv2")
    save_network(tmp_path / "half.onnx", "GlobalAveragePool", ["x"], "FLOAT16", [3, 32, 32])
    (between,) = re.findall(r"`(Call\(.*?\))` between", part("An ONNX file"))
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


def test_a_folder_of_triton_is_served_to_its_clients_beside_its_own_files(served, tmp_path):
    client = pytest.importorskip("tritonclient.http")
    save_doubler(tmp_path / "repository" / "color" / "1" / "model.onnx")
    own = tmp_path / "repository" / "color" / "config.pbtxt"
    own.write_text('name: "color"\nbackend: "onnxruntime"\nmax_batch_size: 8\n', encoding="utf-8")
    write(tmp_path, "A folder of Triton")
    address = served("A folder of Triton").removeprefix("http://")
    asked = client.InferInput("x", [2, 3], "FP32")
    asked.set_data_from_numpy(ROWS)
    with client.InferenceServerClient(address) as triton:
        answer = triton.infer("color", [asked], model_version="1").as_numpy("y")
    assert answer.tolist() == [[2, 4, 6], [8, 10, 13]]


def test_a_function_answers_as_it_is_printed():
    program = block("A function", "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r"  # (.*)$", program, re.MULTILINE)


@pytest.mark.slow
def test_requests_of_a_fastapi_service_share_batches():
    fastapi = pytest.importorskip("fastapi")
    all_are_there = threading.Event()
    headrace.register("LenOfAll", lambda body: (all_are_there.wait(60), len(body))[1])
    written = block("A FastAPI service", "python")
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
