"""``headrace check``: is a configuration right, and what is doubtful about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace
from headrace._cli.printing import as_json
from headrace._cli.reporting import OK, WRONG, counted, refusal, say, tell
from headrace.errors import HeadraceError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check", "warnings_of"]


def check(config: str, *, json: bool, allow_import: bool) -> int:
    """Check a configuration file; give the exit status."""
    try:
        found = headrace.explain(config, allow_import=allow_import)
    except HeadraceError as error:
        if not json:
            raise
        say(as_json({**refusal(error), "warnings": []}))
        return WRONG
    warnings = list(warnings_of(found, config))
    if json:
        told = [warning.to_dict() for warning in warnings]
        names = list(found["nodes"])
        say(as_json({"ok": True, "problems": [], "warnings": told, "nodes": names}))
        return OK
    for warning in warnings:
        tell(f"warning: {warning.render()}")
    own = [node for node in found["nodes"].values() if node["door_to"] is None]
    instances = sum(node["instance_num"] for node in own)
    needs = ", ".join(f"{d['distribution']} {d['version']}".strip() for d in found["asks_for"])
    nodes = counted(len(found["nodes"]), "node")
    say(f"ok: {nodes}, {counted(instances, 'instance')}; asks for {needs}")
    return OK


def warnings_of(found: dict[str, Any], file: str) -> Iterator[Problem]:
    """Give what is allowed but hardly meant, from what ``explain`` tells."""
    for name, node in found["nodes"].items():
        keys = {key: entry["value"] for key, entry in node["keys"].items()}
        least = node["range"][0]
        if least > 1 and not keys.get("batching_timeout") and not keys.get("pad"):
            yield Problem(
                "min_without_wait",
                f"batches of this node have at least {least} requests, but nothing waits for them "
                "or fills them up: with fewer callers, requests fail",
                file=file,
                path=name,
                hint="Set batching_timeout (milliseconds) to wait for company, or pad = true.",
            )
        asked = node["keys"]["instance_num"]
        if asked["origin"] == "node" and asked["value"] > node["instance_num"] > 0:
            yield Problem(
                "instance_num_unused",
                f"instance_num is {asked['value']}, and what this node is built from makes "
                f"{node['instance_num']} instance",
                file=file,
                path=f"{name}.instance_num",
                hint="Leave the key out, or write InstancesRegister[...] in init or node_entrypoint.",
            )
