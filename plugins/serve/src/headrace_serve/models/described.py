"""The protocol's descriptions of server and models: metadata, configuration, statistics, index."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace_serve.models.catalogue import Catalogue
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port
    from headrace_serve.service import Service

__all__ = ["config", "index", "model_metadata", "server_metadata", "statistics"]

_ABSENT = "not in memory: its next request loads it"

_EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "statistics",
    "schedule_policy",
    "parameters",
    "classification",
)

_UNBOUNDED = (1 << 31) - 1


def server_metadata(service: Service) -> dict[str, Any]:
    """Return name and version of the server, and its extensions, including those turned on by ``--allow``."""
    return {
        "name": service.server_name,
        "version": version("headrace-serve"),
        "extensions": [*_EXTENSIONS, *service.extensions],
    }


def model_metadata(models: Catalogue, model: Model) -> dict[str, Any]:
    """Return name, versions, inputs and outputs of a model; an optional input has the parameter ``optional``."""
    signature = model.signature
    return {
        "name": model.name,
        "versions": models.versions(model.name),
        "platform": "headrace",
        "inputs": [_tensor(port) for port in signature.inputs.values()],
        "outputs": [_tensor(replace(port, optional=False)) for port in signature.outputs.values()],
    }


def _tensor(port: Port) -> dict[str, Any]:
    tensor = {"name": port.name, "datatype": port.datatype, "shape": list(port.shape)}
    return {**tensor, "parameters": {"optional": True}} if port.optional else tensor


def config(model: Model) -> dict[str, Any]:
    """Return the configuration of a model in Triton's shape.

    If the first axis of every tensor is the batch, ``max_batch_size`` is the greatest batch of the entry
    node, and ``dims`` leave that axis out. Otherwise ``max_batch_size`` is 0, and ``dims`` are the whole shape.
    Optional inputs do not decide this. One without rows has its whole shape in ``dims``. A model of a repository of Triton
    has the configuration of that.
    """
    signature = model.signature
    batched = signature.batched
    most = _UNBOUNDED if signature.max_rows is None else signature.max_rows
    fetched = {
        ref["address"]: {"string_value": f"{ref['revision'] or ''} sha256={ref['sha256']}".strip()}
        for ref in model.pipe.describe().get("fetched", ())
        if "sha256" in ref
    }
    nodes = model.pipe.config.plan().nodes.items()
    auto = {
        f"{name}.instance_num": {"string_value": f"auto: {node.auto_reason}"}
        for name, node in nodes
        if node.auto is not None
    }
    decoupled = {"model_transaction_policy": {"decoupled": True}} if model.decoupled else {}
    given = [replace(port, optional=False) for port in signature.outputs.values()]
    ours = _scheduling(model) | {
        **decoupled,
        **({"parameters": fetched | auto} if fetched or auto else {}),
        "name": model.name,
        "platform": "",
        "backend": "headrace",
        "version_policy": {"all": {}},
        "max_batch_size": most if batched else 0,
        "input": [_config_port(port, batched=batched) for port in signature.inputs.values()],
        "output": [_config_port(port, batched=batched) for port in given],
    }
    if model.configuration is None:
        return ours
    said = model.configuration
    if said["input"] and said["output"]:
        return {**said}
    ports = {side: said[side] or ours[side] for side in ("input", "output")}
    return {**said, **ports, "max_batch_size": ours["max_batch_size"]}  # the model completes them


def _scheduling(model: Model) -> dict[str, Any]:
    """Return the instances of the entry node, and how it batches, if it makes batches of several requests."""
    keys = model.entry_keys
    devices = keys["device"] if isinstance(keys["device"], list) else [keys["device"]]
    on_gpu = any(str(device).startswith(("cuda", "gpu")) for device in devices)
    kind = "KIND_GPU" if on_gpu else "KIND_CPU"
    group = {"name": f"{model.name}_0", "kind": kind, "count": keys["instance_num"]}
    if model.signature.max_rows == 1 or not model.signature.batched:
        return {"instance_group": [group]}
    batching = {
        "preferred_batch_size": keys["batch_sizes"] or [],
        "max_queue_delay_microseconds": round(keys["batching_timeout"] * 1e3),
    }
    return {"instance_group": [group], "dynamic_batching": batching}


def _config_port(port: Port, *, batched: bool) -> dict[str, Any]:
    without_rows = port.optional and port.batch_axis is None
    dims = port.shape[1:] if batched and not without_rows else port.shape
    kind = "TYPE_STRING" if port.datatype == "BYTES" else f"TYPE_{port.datatype}"
    described = {"name": port.name, "data_type": kind, "dims": list(dims)}
    return {**described, "optional": True} if port.optional else described


def statistics(models: Iterable[Model]) -> dict[str, Any]:
    """Return the statistics of models in Triton's shape. `Catalogue.named` gives all versions of a model.

    Requests are counted as the protocol's, with those of other models, and batches as the entry node's. The times in the queue and in
    the backends are sums over all nodes, from the times that ``pipe.stats()`` samples.
    """
    return {"model_stats": [_statistics(model) for model in models]}


def _statistics(model: Model) -> dict[str, Any]:
    by_name = model.stats()["nodes"]
    nodes, first = list(by_name.values()), by_name[model.entry]
    every = [model.counts, *([] if model.called is None else [model.called])]
    done = max(node["ok"] for node in nodes)
    queue_ns = sum(int(node["queue_ms"]["mean"] * 1e6 * node["submitted"]) for node in nodes)
    run_ns = sum(int(node["forward_ms"]["mean"] * 1e6 * node["batches"]) for node in nodes)
    forward_ns = int(first["forward_ms"]["mean"] * 1e6)
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": max(counts.last_ns for counts in every) // 1_000_000,
        "inference_count": sum(counts.inferences for counts in every),
        "execution_count": first["batches"],
        "inference_stats": {
            "success": {
                "count": sum(counts.ok for counts in every),
                "ns": sum(counts.ok_ns for counts in every),
            },
            "fail": {
                "count": sum(counts.failed for counts in every),
                "ns": sum(counts.failed_ns for counts in every),
            },
            "queue": {"count": done, "ns": queue_ns},
            "compute_input": {"count": done, "ns": 0},
            "compute_infer": {"count": done, "ns": run_ns},
            "compute_output": {"count": done, "ns": 0},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [
            {
                "batch_size": int(size),
                "compute_input": {"count": count, "ns": 0},
                "compute_infer": {"count": count, "ns": forward_ns * count},
                "compute_output": {"count": count, "ns": 0},
            }
            for size, count in first["batch_size"]["histogram"].items()
        ],
    }


def index(service: Service, *, only_ready: bool = False) -> list[dict[str, str]]:
    """Return every version of every model with its state, and every alias, which is not ready or not by itself.

    READY means that a request would be served. The reason says it of one that is not in memory.
    """
    models = service.models
    rows = [(*place, *_state_before(service, *place)) for place in sorted(models.lazy)]
    rows += [(*place, "LOADING", "") for place in sorted(models.loading)]
    rows += [(model.name, model.version, *_state(model)) for model in models]
    for alias, shares in service.aliases().items():
        reason = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        rows.append((alias, "", "ALIAS", reason))
    keys = ("name", "version", "state", "reason")
    every = [dict(zip(keys, row, strict=True)) for row in rows]
    return [row for row in every if row["state"] == "READY" or not only_ready]


def _state_before(service: Service, name: str, version: str) -> tuple[str, str]:
    """Give the state, and its reason, of a model that was not built yet."""
    why = service.updates.last_failure(name, version)
    return ("UNAVAILABLE", f"its last build has failed: {why}") if why else ("READY", _ABSENT)


def _state(model: Model) -> tuple[str, str]:
    """Give the state of a model and its reason; while a load builds the next pipeline, the old one is READY."""
    if model.serves:
        return "READY", "" if model.ready else _ABSENT
    if model.loading:
        return "LOADING", ""
    if model.unloaded:
        return "UNLOADING" if model.reason == "unloading" else "UNAVAILABLE", model.reason
    return "UNAVAILABLE", str(model.pipe.stats()["state"])
