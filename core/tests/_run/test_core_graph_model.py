"""Random graphs against the plainest reading of the rules: node after node, element after element."""

from __future__ import annotations

import asyncio
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

import headrace
from headrace import errors

UNSEEN = ("data", "result", "node_name")
"""Keys that do not count for what a node computes."""


def chance(*seed):
    """Return a number that only depends on ``seed``."""
    return zlib.crc32(repr(seed).encode())


def computed(name, request):
    """Return what a node writes into a request; raises what it fails with.

    Nodes with an ``f`` in their name sometimes fail, with an ``x`` sometimes give no result, with
    an ``l`` give lists; all write a key of their own and ``items``, which sometimes is no list.
    """
    keys = [(key, request[key]) for key in sorted(request) if key not in UNSEEN]
    number = chance(name, request["data"], keys)
    written = {f"k{name}": 1, "items": [f"{number % 97}.{i}" for i in range(number % 3)]}
    if number % 11 == 0:
        written["items"] = "no list"
    mood = number % 23
    if mood == 0 and "f" in name:
        raise ValueError(name)
    if mood == 1 and "f" in name:
        raise errors.InputError(name)
    if not (mood < 7 and "x" in name):
        value = f"{name}:{number % 9973}"
        written["result"] = [f"{value}.{i}" for i in range(mood % 4)] if "l" in name else value
    return written


class GraphNode(headrace.Backend):
    class Options(headrace.Options):
        name: str = Field(description="The node.")
        positional = ("name",)

    def init(self, options, context):
        self.name = options.name

    def forward(self, batch):
        outcomes = []
        for request in batch:
            try:
                request.update(computed(self.name, request))
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        return outcomes


headrace.register("GraphNode", GraphNode, replace=True)


# What is drawn.

EACH = st.sampled_from([*[None] * 12, "items", "items:el", "items", "data", " items : data "])


def always_before(name, node, before):
    """Tell whether every way to ``node`` goes through ``name``."""
    return bool(before[node]) and all(
        n == name or always_before(name, n, before) for n in before[node]
    )


@st.composite
def graphs(draw):
    """Draw nodes, the predecessors of those that are linked, and the pairs of their maps."""
    nodes, before, maps = {}, {}, {}
    for i in range(draw(st.integers(0, 2))):  # nodes that expressions call
        name, others = f"w{i}{draw(st.sampled_from(['', 'f', 'x']))}", list(nodes)
        own = f"GraphNode({name})"
        nodes[name] = {"backend": own}
        if others and draw(st.booleans()):
            nodes[name]["backend"] = f"S[{own},Forward[node.{draw(st.sampled_from(others))}]]"
    called = list(nodes)
    for i in range(draw(st.integers(1, 7))):
        name, earlier = f"n{i}{draw(st.sampled_from(['', 'x', 'f', 'l', 'xf']))}", list(before)
        own = f"GraphNode({name})"
        kinds = [own, own]
        if called:
            call = f"Forward[node.{draw(st.sampled_from(called))}]"
            kinds += [call, f"S[{own},{call}]"]
        nodes[name] = {"backend": draw(st.sampled_from(kinds))}
        some = (
            st.lists(st.sampled_from(earlier), max_size=3, unique=True) if earlier else st.just([])
        )
        found = draw(some)
        before[name] = [n for n in earlier if n in found]
        for one in before[name]:
            nodes[one].setdefault("next", []).append(name)
        if len(found) > 1 or (found and draw(st.booleans())):
            maps[name] = draw_map(draw, name, before)
            nodes[name]["map"] = written_map(maps[name], as_text=draw(st.booleans()))
        if len(found) == 1 and draw(st.integers(0, 3)) == 0:
            nodes[name]["or"] = True
    for node in nodes.values():
        each = draw(EACH)
        if each is not None:
            node.update(each=each, each_errors=draw(st.sampled_from(["none", "fail"])))
        if not node["backend"].startswith("Forward"):
            node.update(max=draw(st.integers(1, 4)), instance_num=draw(st.integers(1, 2)))
    return {name: nodes[name] for name in draw(st.permutations(list(nodes)))}, before, maps


def draw_map(draw, name, before):
    """Draw pairs of a map: of all predecessors, and perhaps of nodes further back."""
    further = [n for n in before if n != name and n not in before[name]]
    further = [n for n in further if always_before(n, name, before)]
    sources = before[name] + draw(
        st.lists(st.sampled_from(further), max_size=2, unique=True) if further else st.just([])
    )
    targets = iter(["data", "items", "p", "q", "r", "s", "t", "u", "v", "w"])
    pairs = []
    for source in draw(st.permutations(sources)):
        keys = st.sampled_from([*["result", "items", "data", f"k{source}"] * 4, "missing"])
        chosen = draw(st.lists(keys, min_size=1, max_size=2))
        pairs += [(source, key, next(targets)) for key in chosen]
    return pairs


def written_map(pairs, *, as_text):
    table = {}
    for source, key, target in pairs:
        table.setdefault(source, {}).setdefault(key, []).append(target)
    if not as_text:
        return table
    return ", ".join(
        f"{source}[{', '.join(f'{k}:{t}' for k, to in keys.items() for t in to)}]"
        for source, keys in table.items()
    )


# The plainest reading.


class PathError(Exception):
    """A request fails. Its args are pairs of code and node, one of which is told."""


def run_expression(nodes, text, request, node):
    """Run the expression of a node on a request, in place."""
    if text.startswith("S["):
        first, _, second = text[2:-1].partition(",")
        run_expression(nodes, first, request, node)
        if "result" not in request:
            raise PathError(("no_result", node))
        request["data"] = request.pop("result")
        called = second.removeprefix("Forward[node.").removesuffix("]")
        run_node(nodes, called, request)
        if "result" not in request:
            raise PathError(("no_result", called))
    elif text.startswith("Forward["):
        run_node(nodes, text.removeprefix("Forward[node.").removesuffix("]"), request)
    else:
        try:
            request.update(computed(text.removeprefix("GraphNode(").removesuffix(")"), request))
        except errors.InputError:
            raise PathError(("input", node)) from None
        except ValueError:
            raise PathError(("backend", node)) from None


def run_node(nodes, name, request):
    """Run a node on a request, in place."""
    node = nodes[name]
    request.pop("result", None)
    if "each" not in node:
        data = request["data"]
        run_expression(nodes, node["backend"], request, name)
        request["data"] = data
        return
    source, _, target = (part.strip() for part in node["each"].partition(":"))
    if not isinstance(request.get(source), list):
        raise PathError(("input", name))
    results, failures = [], []
    for value in request[source]:
        copy = {**request, target or "data": value}
        try:
            run_expression(nodes, node["backend"], copy, name)
            if "result" not in copy:
                raise PathError(("no_result", name))
            results.append(copy["result"])
        except PathError as failed:
            results.append(None)
            failures += failed.args
    if failures and node["each_errors"] == "fail":
        raise PathError(*failures)
    request["result"] = results


def input_of(name, nodes, before, pairs, ends, *, shared):
    """Make the dict on which a node runs, of the ends of those before it."""
    otherwise = nodes[name].get("or")
    without = [n for n in before if "result" not in ends[n]]
    if without and not otherwise:
        raise PathError(*[("no_result", n) for n in without])
    if pairs is None:
        request = ends[before[0]] if shared(before[0]) else dict(ends[before[0]])
        if not otherwise:
            request["data"] = request.pop("result")
        return request
    request = {}
    for source, key, target in pairs:
        kept = {k: ends[source][k] for k in ("context", "request_id") if k in ends[source]}
        request = {**kept, **request}
        if key in ends[source]:
            request[target] = ends[source][key]
        elif key == "result" and otherwise:
            request[target] = ends[source]["data"]
        else:
            raise PathError(("input", source))
    if "data" not in request:
        raise PathError(("input", name))
    return request


def outcome_of(graph, entry, request):
    """Return the dict that the caller gets; raises PathError with all that may have gone wrong."""
    nodes, before, maps = graph
    data, taking_part = request["data"], {entry}
    for name in before:  # each stands after its predecessors
        if taking_part & set(before[name]):
            taking_part.add(name)
    mapped = {source for n in taking_part - {entry} for source, _, _ in maps.get(n, ())}

    def shared(name):
        return len(nodes[name].get("next", ())) == 1 and name not in mapped

    ends, failures = {}, []
    for name in [n for n in before if n in taking_part]:
        found = [n for n in before[name] if n in taking_part] if name != entry else []
        pairs = [p for p in maps[name] if p[0] in taking_part] if name in maps else None
        needed = {*found, *(source for source, _, _ in pairs or ())} if name != entry else set()
        if not needed <= ends.keys():
            # After a failure. If another of those before it gave no result, that may be told instead.
            without = [n for n in found if n in ends and "result" not in ends[n]]
            failures += [("no_result", n) for n in without if not nodes[name].get("or")]
            continue
        if found and nodes[name].get("or") and "result" in ends[found[0]]:
            ends[name] = ends[found[0]] if shared(found[0]) else dict(ends[found[0]])
            continue
        try:
            current = (
                request
                if name == entry
                else input_of(name, nodes, found, pairs, ends, shared=shared)
            )
            run_node(nodes, name, current)
            ends[name] = current
        except PathError as failed:
            failures += failed.args
    sinks = [n for n in nodes if n in taking_part and "next" not in nodes[n]]
    failures += [("no_result", n) for n in sinks if n in ends and "result" not in ends[n]]
    if failures:
        raise PathError(*failures)
    if len(sinks) == 1:
        request.update(ends[sinks[0]])
    else:
        request["result"] = {n: ends[n]["result"] for n in sinks}
    return {**request, "data": data}


WAYS = (
    lambda pipe, request: pipe(request),
    lambda pipe, request: pipe(request, timeout=60),
    lambda pipe, request: pipe.submit(request).result(60),
    lambda pipe, request: asyncio.run(pipe.call_async(request)),
    lambda pipe, request: pipe([request]),
)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.sampled_from(["a", [], ["u", "v"], [["u"], []]]), st.data())
def test_a_request_ends_as_the_plainest_reading_gives(graph, data, drawn):
    nodes, before, _ = graph
    first, *others = before
    entry = drawn.draw(st.sampled_from([first, first, *others]))
    sent = {"data": data, "items": ["z", "y"], "node_name": entry, "context": {}, "mine": 5}
    try:
        pipe = headrace.pipe(nodes)
    except errors.ConfigError as refused:
        unread = [p for p in refused.problems if "does not bring it" in p.message]
        if len(unread) < len(refused.problems):
            raise
        return  # an `each` whose list, or a `map` whose source, a map before it does not bring
    try:
        wanted, failures = outcome_of(graph, entry, dict(sent)), None
    except PathError as failed:
        wanted, failures = None, failed.args
    with pipe:
        for way in WAYS:
            request, error = dict(sent), None
            try:
                way(pipe, request)
            except errors.RequestsFailed as failed:
                (error,) = failed.errors
            except errors.RequestError as failed:
                error = failed
            assert (error is None) == (failures is None)
            if error is None:
                assert request == wanted
            else:
                # An alias has no result where the node that answers has none: either name will do.
                codes = {code for code, _ in failures}
                assert (error.code, error.node) in failures or error.code == "no_result" in codes
                assert "result" not in request
            assert request["data"] is data
        assert all(node["waiting"] == 0 for node in pipe.stats()["nodes"].values())
