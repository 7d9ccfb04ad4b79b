"""Calls of the unmodified client of kserve in its first protocol: python kserve_calls.py URL."""

from __future__ import annotations

import asyncio
import sys

from kserve import InferenceRESTClient, RESTConfig


async def main(url):
    """Ask whether a model is ready, and for two predictions."""
    client = InferenceRESTClient(RESTConfig(protocol="v1", timeout=60))
    assert await client.is_model_ready(url, "m")
    answer = await client.infer(url, {"instances": [[1, 2], [3, 4.5]]}, model_name="m")
    assert answer == {"predictions": [[1.0, 2.0], [3.0, 4.5]]}, answer
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
