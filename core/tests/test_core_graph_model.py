"""Random graphs against the plainest reading of the rules: everything is copied, one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

import headrace
from headrace import errors


def answer(name, request):
    """What a node of these graphs computes, None for no result."""
    keys = tuple((k, request[k]) for k in sorted(request) if k not in ("data", "result"))
    value = f"{name}({request['data']}{''.join(f',{k}={v}' for k, v in keys)})"
    return None if sum(map(ord, value)) % 5 == 0 and name.endswith("x") else value


class GraphNode(headrace.Backend):
    class Options(headrace.Options):
        name: str = Field(description="The node.")

    def init(self, options, context):
        self.name = options.name

    def forward(self, batch):
        for request in batch:
            value = answer(self.name, request)
            request[f"k{self.name}"] = 1
            if value is not None:
                request["result"] = value


headrace.register("GraphNode", GraphNode, replace=True)


@st.composite
def graphs(draw):
    """Draw a graph in which every node has at least one predecessor, but for the first."""
    count = draw(st.integers(1, 7))
    names = [f"n{i}{draw(st.sampled_from(['', 'x']))}" for i in range(count)]
    nodes = {name: {"backend": "GraphNode(name={node_name})", "next": []} for name in names}
    before = {names[0]: []}
    for i, name in enumerate(names[1:], start=1):
        found = draw(st.lists(st.sampled_from(names[:i]), min_size=1, max_size=3, unique=True))
        before[name] = [n for n in names if n in found]
        for one in before[name]:
            nodes[one]["next"].append(name)
        if len(found) > 1 or draw(st.booleans()):
            targets = draw(st.permutations(["data", "p", "q"]))
            targets = ["data", *[t for t in targets if t != "data"]][: len(found)]
            nodes[name]["map"] = {n: {"result": t} for n, t in zip(found, targets, strict=True)}
        if len(found) == 1 and draw(st.integers(0, 2)) == 0:
            nodes[name]["or"] = True
    return nodes, before


def reference(nodes, before, data):
    """Walk a graph node by node; None when the request fails."""
    ends = {}
    for name, node in nodes.items():
        found = [ends[n] for n in before[name]]
        if node.get("or") and "result" in found[0]:
            ends[name] = dict(found[0])
            continue
        if not node.get("or") and any("result" not in end for end in found):
            return None
        if not found:
            request = {"data": data}
        elif "map" in node:
            request = {
                target: ends[source].get("result", ends[source]["data"])
                for source, pairs in node["map"].items()
                for target in pairs.values()
            }
        else:
            request = dict(found[0])
            if not node.get("or"):
                request["data"] = request.pop("result")
        value = answer(name, request)
        request[f"k{name}"] = 1
        if value is not None:
            request["result"] = value
        ends[name] = request
    sinks = [name for name, node in nodes.items() if not node["next"]]
    if any("result" not in ends[name] for name in sinks):
        return None
    if len(sinks) == 1:
        return ends[sinks[0]]["result"]
    return {name: ends[name]["result"] for name in sinks}


@settings(max_examples=60, deadline=None)
@given(graphs(), st.text("ab", max_size=3))
def test_a_walk_gives_what_the_plainest_reading_gives(graph, data):
    nodes, before = graph
    wanted = reference(nodes, before, data)
    with headrace.pipe(nodes) as pipe:
        for way in (
            lambda request: pipe(request),
            lambda request: pipe(request, timeout=60),
            lambda request: pipe.submit(request).result(60),
        ):
            request = {"data": data}
            try:
                way(request)
            except errors.NoResultError:
                assert request.get("result") is None
            assert request.get("result") == wanted
            assert request["data"] is data
        stats = pipe.stats()["nodes"].values()
        failed = sum(sum(node["failed"].values()) for node in stats)
        assert failed >= 3 * (wanted is None)
        assert all(node["submitted"] <= 3 for node in stats)
        assert failed == 0 or wanted is None
