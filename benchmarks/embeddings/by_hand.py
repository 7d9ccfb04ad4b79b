"""The program that one writes by hand, with FastAPI: python by_hand.py FOLDER PORT alone|queue.

``alone`` runs each request in a thread. ``queue`` makes batches of up to 32 in order of arrival, padded to the longest.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI, Request
from tokenizers import Tokenizer

folder, port, kind = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(f"{folder}/onnx/model.onnx", options)
tokenizer: Any = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.enable_truncation(256)
tokenizer.enable_padding()
pool = ThreadPoolExecutor(1)
queue: asyncio.Queue[Any] = asyncio.Queue()


def embed(texts: list[str]) -> Any:
    """Return the vectors of texts, and the numbers of their tokens."""
    encoded = tokenizer.encode_batch(texts)
    ids = np.array([one.ids for one in encoded], np.int64)
    mask = np.array([one.attention_mask for one in encoded], np.int64)
    (rows,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    weights = mask[..., None].astype(np.float32)
    vectors = (rows * weights).sum(1) / weights.sum(1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), mask.sum(1)


async def work() -> None:
    """Make batches of what waits."""
    loop = asyncio.get_running_loop()
    while True:
        items = [await queue.get()]
        while len(items) < 32 and not queue.empty():
            items.append(queue.get_nowait())
        vectors, counts = await loop.run_in_executor(pool, embed, [text for text, _ in items])
        for (_, future), vector, count in zip(items, vectors, counts, strict=True):
            future.set_result((vector, int(count)))


@asynccontextmanager
async def lifespan(_: FastAPI) -> Any:
    """Let the queue be worked on."""
    task = asyncio.create_task(work())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/v1/embeddings")
async def embeddings(request: Request) -> Any:
    """Answer one text, as OpenAI does."""
    text = (await request.json())["input"]
    loop = asyncio.get_running_loop()
    if kind == "queue":
        future = loop.create_future()
        queue.put_nowait((text, future))
        vector, count = await future
    else:
        vectors, counts = await loop.run_in_executor(pool, embed, [text])
        vector, count = vectors[0], int(counts[0])
    row = {"object": "embedding", "index": 0, "embedding": base64.b64encode(vector).decode()}
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": [row], "model": "m", "usage": usage}


uvicorn.run(app, port=int(port), log_level="error")
