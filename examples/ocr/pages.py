"""Whole pages as plain Python: the same steps as the graph of `page.toml`."""

from collections.abc import Generator
from typing import Any

from headrace_flow import call


def page(request: dict[str, Any]) -> Generator[Any, Any, Any]:
    """Read one page; each call shares its batch with those of all other pages."""
    fitted = yield call("page", request["data"], whole=True)
    picture, fit = fitted["result"], fitted["fit"]
    boxes = yield call("detect", picture)
    lines = yield [call("upright", picture, quad=quad) for quad in boxes]
    texts = yield [call("read", line) for line in lines]
    return (yield call("text", texts, boxes=boxes, fit=fit))
