"""Each part of the page "I have ..." is true. Those of torch and of cameras are followed beside headrace-torch and headrace-vision."""

from __future__ import annotations

import asyncio
import re
import threading

import httpx
import numpy as np
import pytest
from onnx_files import save_doubler, save_network
from pages import Page, serving

import headrace

ROWS = np.float32([[1, 2, 3], [4, 5, 6.5]])


def part(title: str) -> Page:
    return Page("docs/i_have.md", title)


def serving_command(page: Page) -> str:
    """Return the last command that serves, which stands in a sentence."""
    return re.findall(r"`(headrace serve .*?)`", page.text)[-1]


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
