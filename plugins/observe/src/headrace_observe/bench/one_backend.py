"""Runs one backend alone, and reports its time per batch size, its inputs and outputs, and its memory."""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import MissingDependencyError, code_of
from headrace_observe.bench.figures import latency_ms
from headrace_observe.bench.gpus import gpus
from headrace_observe.codes import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["inspect"]

_LARGEST = 32
"""Batches of a backend without a bound are tried up to this size."""

_SHOWN = 16
"""The most items of a dict or list that are described."""

CLOCK = (
    "the call of the built instance with a batch, in its own thread, from before the call to "
    "after its end of the batch; no queue"
)


def inspect(
    expression: str | Mapping[str, Any],
    items: Iterable[Any],
    repeat: int = 100,
    warm_up: int = 10,
    *,
    sizes: Sequence[int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Build one expression and run batches of it, without a pipeline.

    Args:
        expression: An expression such as ``"ResizeMat(64,64)"``, or a configuration of one node, which
            may hold options: ``{"backend": "OnnxTensor", "model": "a.onnx"}``.
        items: Requests, dicts with ``data``, or their ``data`` alone. A batch takes them in turn.
        repeat: How often each batch size is run and timed.
        warm_up: How often each batch size is run before that, without being timed.
        sizes: The batch sizes. Default: powers of two within the range, up to 32.
        clock: Seconds. For tests.

    Returns:
        ``{"expression", "range", "built", "tree", "clock", "reads", "writes", "batches", "errors", "memory"}``.
        ``range`` is that of what was built, ``built`` the outermost backend's own description, and ``tree`` has the
        descriptions of all backends, as in ``Pipeline.describe()``. ``reads`` and ``writes`` have, for each key of a request, the dtype and shape of its
        value, or its type. ``batches`` has for each size ``{"size", "ok", "failed", "latency_ms", "per_item_ms"}``.
        ``errors`` has the text of an error with each code. ``memory`` has ``host_bytes`` of the process (None without
        psutil) and ``gpu_bytes`` of all GPUs (None if unknown), each before the build, after it, and after the runs.

    Raises:
        ConfigError: The expression is wrong.
        SetupError: The expression could not be built.
        ValueError: There are no items, or a size is outside of the range.
    """
    samples = [_request(item) for item in items]
    if not samples:
        raise ValueError("there are no items to run")
    if repeat < 1 or warm_up < 0:
        raise ValueError(f"repeat is at least 1, warm_up at least 0; got {repeat} and {warm_up}")
    source: dict[str, Any] = (
        {"backend": expression} if isinstance(expression, str) else dict(expression)
    )
    node = _node(source)
    # `explain` also has these keys from an extended file and from [global]. If none is set, the range of the class is
    # the bound.
    limits = {key: node["keys"][key]["value"] for key in ("min", "max", "batch_sizes")}
    is_free = all(value is None for value in limits.values())
    low, high = node["tree"]["range"] if is_free else node["range"]
    most = max(_tried(sizes, low, high))
    if limits["max"] is None and limits["batch_sizes"] is None and most > 1:
        source["max"] = most
    memory = {"before": _memory()}
    with headrace.plugins.build(source) as built:
        memory["built"] = _memory()
        # `init` may have narrowed the range, as to the batch to which a model is fixed.
        low = max(low, built.instances[0].min)
        ends = (high, built.instances[0].max)
        high = min((end for end in ends if end is not None), default=None)
        tried = _tried(sizes, low, high)
        call = built.call
        errors: dict[str, str] = {}
        batches = [_batch(call, samples, size, repeat, warm_up, clock, errors) for size in tried]
        answered = _copies(samples, tried[0])
        outcomes = call(answered)
        good = [r for r, error in zip(answered, outcomes, strict=True) if error is None]
        memory["run"] = _memory()
        described, tree = built.root.describe(), built.describe()
    kinds = ("host_bytes", "gpu_bytes")
    return {
        "expression": node["expression"],
        "range": [low, high],
        "built": described,
        "tree": tree,
        "clock": CLOCK,
        "reads": {key: _described(value) for key, value in samples[0].items()},
        "writes": _written(samples[0], good[0]) if good else {},
        "batches": batches,
        "errors": errors,
        "memory": {kind: {when: values[kind] for when, values in memory.items()} for kind in kinds},
    }


def _request(item: Any) -> dict[str, Any]:
    return dict(item) if isinstance(item, dict) and "data" in item else {"data": item}


def _node(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the configuration's only node, from ``headrace.explain``."""
    nodes = headrace.explain(headrace.PipelineConfig.load(source))["nodes"]
    if len(nodes) != 1:
        raise ValueError(f"one node was expected, the configuration has {', '.join(nodes)}")
    (node,) = nodes.values()
    table: dict[str, Any] = node
    return table


def _tried(sizes: Sequence[int] | None, low: int, high: int | None) -> list[int]:
    """Return the batch sizes to run: those that are asked for, or powers of two.

    Raises:
        ValueError: A size is outside of the range, or there is none.
    """
    tried = list(sizes) if sizes is not None else _powers(low, high)
    wrong = [size for size in tried if size < low or (high is not None and size > high)]
    if wrong or not tried:
        most = "or more" if high is None else f"to {high}"
        raise ValueError(f"batches hold {low} {most} requests here, got {wrong or 'no size'}")
    return tried


def _powers(low: int, high: int | None) -> list[int]:
    most = min(high or _LARGEST, max(_LARGEST, low))
    return sorted({low, most, *(2**k for k in range(most.bit_length()) if low <= 2**k <= most)})


def _copies(samples: Sequence[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    return [dict(samples[k % len(samples)]) for k in range(size)]


def _batch(
    call: Callable[[list[Any]], list[Exception | None]],
    samples: Sequence[dict[str, Any]],
    size: int,
    repeat: int,
    warm_up: int,
    clock: Callable[[], float],
    errors: dict[str, str],
) -> dict[str, Any]:
    times: list[float] = []
    failed: dict[str, int] = {}
    for turn in range(warm_up + repeat):
        batch = _copies(samples, size)
        began = clock()
        outcomes = call(batch)
        ended = clock()
        if turn < warm_up:
            continue
        times.append(ended - began)
        for error in outcomes:
            if error is not None:
                code = code_of(error)
                failed[code] = failed.get(code, 0) + 1
                errors.setdefault(code, text_of(error))
    latency = latency_ms(times)
    mean = latency["mean"] or 0.0
    return {
        "size": size,
        "ok": size * repeat - sum(failed.values()),
        "failed": failed,
        "latency_ms": latency,
        "per_item_ms": round(mean / size, 5),
    }


def _written(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: _described(value)
        for key, value in after.items()
        if key not in before or value is not before[key]
    }


def _described(value: Any, depth: int = 3) -> str:
    """Return the dtype and shape of an array, and what dicts and lists hold, down to a depth."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        device = getattr(value, "device", None)
        where = f" on {device}" if device is not None and str(device) != "cpu" else ""
        return f"{str(dtype).rpartition('.')[2]} {list(shape)}{where}"
    kind = type(value).__name__
    if isinstance(value, (bytes, bytearray, str)):
        return f"{kind} [{len(value)}]"
    if isinstance(value, (list, tuple)):
        inner = dict.fromkeys(_described(item, depth - 1) for item in value[:_SHOWN] if depth)
        return f"{kind} [{len(value)}]{' of ' if inner else ''}{', '.join(inner)}"
    if isinstance(value, dict) and depth:
        pairs = [f"{key}: {_described(item, depth - 1)}" for key, item in value.items()]
        return f"{kind} {{{', '.join(pairs[:_SHOWN])}{', ...' if pairs[_SHOWN:] else ''}}}"
    return kind


def _memory() -> dict[str, int | None]:
    host: int | None = None
    with contextlib.suppress(ImportError):
        host = int(importlib.import_module("psutil").Process().memory_info().rss)
    try:
        used = [gpu["memory_used_bytes"] for gpu in gpus()]
    except MissingDependencyError:
        used = []
    known = [size for size in used if size is not None]
    return {"host_bytes": host, "gpu_bytes": sum(known) if known else None}
