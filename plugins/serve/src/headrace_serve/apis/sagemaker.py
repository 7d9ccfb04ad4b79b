"""What SageMaker asks of a container: health, and the invocations of its one model.

Source: Amazon SageMaker's developer guide, "Custom Inference Code with Hosting Services".
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace_serve.apis.kserve import error_of, instances_in

__all__ = ["ROUTES"]

_NPY = "application/x-npy"


async def ping(asked: Any) -> Any:
    """Say that the server takes requests: 503 until it does."""
    asked.check_ready()
    return {}


async def invoke(asked: Any) -> Any:
    """Answer instances of JSON by predictions, an array of numpy by an array, a file by its result."""
    names = asked.models()
    if len(names) != 1:
        served = ", ".join(names) or "none"
        raise InputError("/invocations", expected="a server of one model", got=served)
    (name,), kind = names, asked.header("content-type").partition(";")[0].strip().lower()
    if kind == "application/json":
        instances = instances_in(await asked.json())
        return {"predictions": await asked.run(name, await asked.requests(name, instances))}
    body = await asked.body()
    (request,) = await asked.requests(name, [_array(body) if kind == _NPY else body])
    result = await asked.run(name, request)
    if isinstance(result, bytes):
        return result, "application/octet-stream"
    if hasattr(result, "__array__") and _NPY in asked.header("accept"):
        written = io.BytesIO()
        np.save(written, np.asarray(result), allow_pickle=False)
        return written.getvalue(), _NPY
    return result


def _array(content: bytes) -> Any:
    """Return the array in the bytes of a file of numpy, of which nothing is trusted."""
    stream, read = io.BytesIO(content), np.lib.format
    try:
        reads = {(1, 0): read.read_array_header_1_0, (2, 0): read.read_array_header_2_0}
        shape, fortran, dtype = reads[read.read_magic(stream)](stream)
        flat = np.frombuffer(content, dtype, offset=stream.tell())
        return flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # noqa: BLE001 - the header is Python, which numpy parses
        raise InputError(f"the body is no array of numpy: {error}") from None


ROUTES = {
    "GET /ping": ping,
    "POST /invocations": invoke,
    "open": ["GET /ping"],
    "error": error_of,
}
"""The routes, and the form of their errors. Health needs no key."""
