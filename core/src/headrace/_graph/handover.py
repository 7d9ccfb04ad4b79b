"""What goes from node to node: the same dict, a shallow copy, or what a map makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._graph.links import KEPT
from headrace._portable import error_text, shown
from headrace.errors import ContractError, InputError, NoResultError
from headrace.keys import REPOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace._graph.route import Step
    from headrace.keys import Request

__all__ = ["Ends", "finish", "input_of", "mapped", "passes_by", "repost_of", "unable"]

Ends = dict[str, "Request"]
"""Per node of a route, its dict as it was at its end."""


def passes_by(step: Step, ends: Ends) -> bool:
    """Tell whether a node with ``or`` is passed by, because its predecessor gave a result."""
    return step.links.otherwise and bool(step.before) and "result" in ends[step.before[0]]


def input_of(step: Step, by_name: Mapping[str, Step], ends: Ends) -> Request:
    """Make the dict that a node runs on.

    Raises:
        NoResultError: A predecessor gave no result.
        InputError: A source that the map names is missing.
    """
    if not step.links.otherwise:
        for name in step.before:
            if "result" not in ends[name]:
                raise NoResultError(
                    f"node {name!r} gave no 'result' for node {step.name!r}", node=name
                )
    if step.links.map is not None:
        sources = step.links.map.items()
        pairs = [(n, k, t) for n, keys in sources if n in ends for k, t in keys]
        return mapped(step, pairs, ends)
    (before,) = step.before
    ended = ends[before]
    request = dict(ended) if by_name[before].copied else ended
    if not step.links.otherwise:
        request["data"] = request.pop("result")
    return request


def mapped(step: Step, pairs: Sequence[tuple[str, str, str]], ends: Ends) -> Request:
    """Make the dict that a map describes.

    Raises:
        InputError: A source is missing, or nothing brings ``data``.
    """
    request: Request = {}
    for name, source, target in pairs:
        ended = ends[name]
        if source in ended:
            request[target] = ended[source]
        elif source == "result" and step.links.otherwise:
            request[target] = ended["data"]
        else:
            raise InputError(
                f"node {name!r} ended without the key {source!r} that the map of node "
                f"{step.name!r} asks for",
                key=source,
                node=name,
            )
        if "context" in ended or "request_id" in ended:
            for key in KEPT:
                if key in ended and key not in request:
                    request[key] = ended[key]
    if "data" not in request:
        raise InputError(
            f"nothing on this way brings 'data' to node {step.name!r}",
            key="data",
            node=step.name,
        )
    return request


def repost_of(step: Step, request: Request) -> str | None:
    """Take out of a dict at which node its request is to go on, if a `Repost` ended its leg here.

    Raises:
        ContractError: The key names a node that no `Repost` of this one does.
        NoResultError: There is no ``result`` to go on with.
    """
    target = request.pop(REPOST, None)
    if target is None:
        return None
    if type(target) is not str or target not in step.links.reposts:
        raise ContractError(
            f"the key {REPOST!r} holds {shown(target)}: it is written by Repost[node] only",
            node=step.name,
        )
    if "result" not in request:
        raise NoResultError(
            f"node {step.name!r} gave no 'result' to repost to {target!r}", node=step.name
        )
    request["data"] = request.pop("result")
    return str(target)


def unable(step: Step, error: BaseException) -> ContractError:
    """Make the error of a request that cannot go on from a node, for its dict or a value raises."""
    failure = ContractError(f"the request cannot go on: {error_text(error)}", node=step.name)
    failure.__cause__ = error
    return failure


def finish(sinks: Sequence[tuple[Step, Request]], request: Request) -> Step | None:
    """Give the caller's dict what the sinks have: ``result`` and, from a single one, its keys.

    Its ``data`` is that of the sink, and is to be put back.

    Returns:
        A sink that gave no result, which fails the request; else None.
    """
    for step, ended in sinks:
        if "result" not in ended:
            return step
    if len(sinks) == 1:
        ((_, ended),) = sinks
        if ended is not request:
            request.update(ended)
    else:
        request["result"] = {step.name: ended["result"] for step, ended in sinks}
    return None
