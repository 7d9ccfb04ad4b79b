"""The traversal of a graph by itself, without thread, lock or scheduler, against a plain reading.

The reading runs all nodes in order, copies every dict and goes on after a failure, so that it
knows all that may happen; the traversal is advanced in any order and ends with the first failure.
"""

from __future__ import annotations

import zlib
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._running.route import Links, Route, roots
from headrace._running.traversal import Failure, Traversal, unable
from headrace.errors import ContractError


def chance(*seed):
    """Return a number that only depends on ``seed``."""
    return zlib.crc32(repr(seed).encode())


def behave(links, request):
    """Run a node on a dict: it writes a result, or sometimes none."""
    number = chance(links.name, request["data"], sorted(request))
    request[f"k{links.name}"] = number % 5
    if number % 7:
        request["result"] = f"{links.name}{number % 9973}"


@st.composite
def graphs(draw):
    """Draw linked nodes."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 7)))]
    before = {}
    for place, name in enumerate(names):
        some = st.lists(st.sampled_from(names[:place]), max_size=3, unique=True)
        before[name] = draw(some) if place else []
    after = {name: [n for n in names if name in before[n]] for name in names}

    def always_before(name, node):
        return bool(before[node]) and all(n == name or always_before(name, n) for n in before[node])

    links = {}
    for name in names:
        pairs, further = None, [n for n in names if n not in before[name]]
        further = [n for n in further if always_before(n, name)]
        if len(before[name]) > 1 or (before[name] and draw(st.booleans())):
            targets = iter(["data", "p", "q", "r", "s", "t", "u", "v", "w"])
            key = st.sampled_from(["result", "result", "data", "ka"])
            pairs = {
                source: tuple(
                    (draw(key).replace("ka", f"k{source}"), next(targets))
                    for _ in range(draw(st.integers(1, 2)))
                )
                for source in draw(st.permutations(before[name] + further[:1]))
            }
        links[name] = Links(
            name,
            next=tuple(draw(st.permutations(after[name]))),
            map=pairs,
            otherwise=len(before[name]) == 1 and draw(st.integers(0, 2)) == 0,
        )
    return {name: links[name] for name in draw(st.permutations(names))}


class Reading:
    """What a request may come to, worked out node after node."""

    def __init__(self, links, entry, request):
        self.links, self.sinks, self.failures, self.visits = links, [], set(), Counter()
        self._run(entry, dict(request))
        for name, ended in self.sinks:
            if "result" not in ended:
                self.failures.add((name, "no_result", True))

    def _run(self, entry, request):
        ends, gone, reached = {}, set(), self._reached(entry)
        for name in sorted(reached):  # their names say the order in which they were linked
            one = self.links[name]
            before = [n for n in sorted(reached) if name in self.links[n].next]
            if name != entry and gone.intersection(before):
                gone.add(name)
                continue
            current = request if name == entry else self._input(one, before, ends)
            if current is None:
                gone.add(name)
                continue
            if current == "passed by":
                ends[name] = dict(ends[before[0]])
            else:
                self.visits[name] += 1
                behave(one, current)
                ends[name] = current
            if not one.next:
                self.sinks.append((name, ends[name]))

    def _reached(self, entry):
        found = {entry}
        for name in sorted(self.links):
            if name in found:
                found.update(self.links[name].next)
        return found

    def _input(self, one, before, ends):
        if one.otherwise:
            if "result" in ends[before[0]]:
                return "passed by"
        elif any("result" not in ends[n] for n in before):
            self.failures.add((one.name, "no_result", False))
            return None
        if one.map is None:
            current = dict(ends[before[0]])
            if not one.otherwise:
                current["data"] = current.pop("result")
            return current
        current = {}
        for source, pairs in one.map.items():
            for key, target in pairs if source in ends else ():
                if key not in ends[source] and not (one.otherwise and key == "result"):
                    self.failures.add((one.name, "input", False))
                    return None
                current[target] = ends[source].get(key, ends[source]["data"])
        if "data" not in current:
            self.failures.add((one.name, "input", False))
            return None
        return current


@settings(max_examples=400, deadline=None)
@given(graphs(), st.integers(0, 99), st.data())
def test_a_traversal_ends_as_the_plain_reading_does_in_any_order(links, seed, data):
    entry = data.draw(st.sampled_from(sorted(links)))
    order = data.draw(st.randoms(use_true_random=False))

    route = Route(entry, links, dict.fromkeys(links), links)
    expected = Reading(links, entry, {"data": seed})
    request = {"data": seed, "result": "of an earlier time"}
    traversal = Traversal(request)
    visits, seen, failure = [traversal.begin(route, request)], Counter(), None
    while visits and failure is None:
        assert traversal.sinks_left
        visit = visits.pop(order.randrange(len(visits)))
        seen[visit.step.name] += 1
        behave(visit.step.links, visit.request)
        found = traversal.advance(visit)
        if isinstance(found, Failure):
            failure = found
        else:
            visits += found
    if failure is None:
        assert not traversal.sinks_left
        failure = traversal.finish()
    if failure is not None:
        reported = (failure.step.name, failure.error.code, failure.has_run)
        assert reported in expected.failures
        return
    assert not expected.failures
    assert seen == expected.visits
    if len(expected.sinks) == 1:
        ((_, ended),) = expected.sinks
        returned = ended.keys() - {"data"}  # `data` is for the driver to put back
        assert {key: request[key] for key in returned} == {key: ended[key] for key in returned}
    else:
        assert request["result"] == {name: ended["result"] for name, ended in expected.sinks}


def test_of_nodes_that_repost_to_each_other_the_first_is_the_root():
    links = {
        "a": Links("a", reposts=("b",)),
        "b": Links("b", reposts=("a",)),
        "c": Links("c"),
        "d": Links("d", calls=("c",)),
    }
    assert roots(links) == ("a", "d")


def test_a_way_that_begins_anew_drops_what_is_left_and_ends_at_the_sinks_of_the_other():
    links = {
        "a": Links("a", next=("b",)),
        "b": Links("b", reposts=("d",), next=("c",)),
        "c": Links("c"),
        "d": Links("d", next=("e", "f")),
        **{name: Links(name) for name in "ef"},
    }

    def route_from(name):
        return Route(name, links, dict.fromkeys(links), links)

    request = {"data": 0}
    traversal = Traversal(request)
    visits, left = [traversal.begin(route_from("a"), request)], []
    while visits:
        visit = visits.pop(0)
        if visit.step.name == "b":
            visits.append(traversal.begin(route_from("d"), visit.request))
        else:
            visit.request["result"] = visit.step.name
            visits += traversal.advance(visit)
        left.append((visit.step.name, traversal.sinks_left))
    assert left == [("a", 1), ("b", 2), ("d", 2), ("e", 1), ("f", 0)]
    assert traversal.finish() is None
    assert request["result"] == {name: name for name in "ef"}


def test_a_request_that_cannot_go_on_fails_with_the_reason_and_the_node():
    reason = KeyError("odd")
    route = Route("a", {"a": Links("a")}, {"a": None}, ())
    error = unable(route.start, reason)
    assert type(error) is ContractError
    assert (error.node, error.__cause__) == ("a", reason)
    assert "KeyError: 'odd'" in str(error)
