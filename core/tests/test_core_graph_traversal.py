"""The traversal of a graph by itself, without thread, lock or scheduler, against a plain reading.

The reading runs all nodes of a leg in order, copies every dict and goes on after a failure, so that it
knows all that may happen; the traversal is advanced in any order and ends with the first failure.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._running.graph import Graph
from headrace._running.route import Links, Route, roots
from headrace._running.traversal import MOST_REPOSTS, Failure, Traversal, unable
from headrace.errors import ContractError


def chance(*seed):
    """Return a number that only depends on ``seed``."""
    return zlib.crc32(repr(seed).encode())


def behave(links, request):
    """Run a node on a dict: it writes a result, or sometimes none, or ends the leg by a repost."""
    number = chance(links.name, request["data"], sorted(request))
    request[f"k{links.name}"] = number % 5
    if number % 7:
        request["result"] = f"{links.name}{number % 9973}"
    if links.reposts and number % 3 == 0:
        request["repost"] = links.reposts[number % len(links.reposts)]


@st.composite
def graphs(draw):
    """Draw linked nodes; a repost stands only where nothing after it joins."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 7)))]
    before = {}
    for place, name in enumerate(names):
        some = st.lists(st.sampled_from(names[:place]), max_size=3, unique=True)
        before[name] = draw(some) if place else []
    after = {name: [n for n in names if name in before[n]] for name in names}

    def joins(name):
        return any(len(before[one]) > 1 or joins(one) for one in after[name])

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
            reposts=tuple(draw(st.lists(st.sampled_from(names), max_size=2, unique=True)))
            if not joins(name) and draw(st.integers(0, 2)) == 0
            else (),
        )
    return {name: links[name] for name in draw(st.permutations(names))}


class Reading:
    """What a request may come to, worked out node after node."""

    def __init__(self, links, entry, request):
        self.links, self.sinks, self.failures, self.visits = links, [], set(), Counter()
        todo, reposts = [(entry, dict(request))], 0
        while todo:
            for name, target, ended in self._leg(*todo.pop(0)):
                reposts += 1
                if reposts > MOST_REPOSTS:
                    self.failures.add((name, "limit", True))
                    return
                todo.append((target, ended))
        for name, ended in self.sinks:
            if "result" not in ended:
                self.failures.add((name, "no_result", True))

    def _leg(self, entry, request):
        ends, gone, reposts, reached = {}, set(), [], self._reached(entry)
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
                current.pop("repost", None) if one.reposts else None
                self.visits[name] += 1
                behave(one, current)
                if "repost" in current and one.reposts:
                    target = current.pop("repost")
                    if "result" not in current:
                        self.failures.add((name, "no_result", True))
                    else:
                        current["data"] = current.pop("result")
                        reposts.append((name, target, current))
                    gone.add(name)
                    continue
                ends[name] = current
            if not one.next:
                self.sinks.append((name, ends[name]))
        return reposts

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

    @functools.cache
    def route_from(name):
        return Route(name, links, dict.fromkeys(links), links)

    expected = Reading(links, entry, {"data": seed})
    request = {"data": seed, "result": "of an earlier time"}
    traversal = Traversal(route_from(entry), request, route_from)
    visits, seen, failure = [traversal.begin()], Counter(), None
    while visits and failure is None:
        assert traversal.sinks_left
        visit = visits.pop(order.randrange(len(visits)))
        assert visit.step in list(traversal.unvisited())
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
        # Which legs begin before the limit is a matter of order.
        limited = any(code == "limit" for _, code, _ in expected.failures)
        assert reported in expected.failures or limited
        return
    assert not expected.failures
    assert seen == expected.visits
    if len(expected.sinks) == 1:
        ((_, ended),) = expected.sinks
        returned = ended.keys() - {"data"}  # `data` is for the driver to put back
        assert {key: request[key] for key in returned} == {key: ended[key] for key in returned}
    else:
        # Of two legs that come to one sink, that which comes last has its result there.
        assert request["result"].keys() == dict(expected.sinks).keys()
        found = [(name, ended["result"]) for name, ended in expected.sinks]
        assert all(one in found for one in request["result"].items())


def test_of_nodes_that_repost_to_each_other_the_first_is_the_root():
    links = {
        "a": Links("a", reposts=("b",)),
        "b": Links("b", reposts=("a",)),
        "c": Links("c"),
        "d": Links("d", calls=("c",)),
    }
    assert roots(links) == ("a", "d")


def test_a_request_may_be_reposted_a_hundred_times_and_no_more():
    links = {"a": Links("a", reposts=("a",))}

    @functools.cache
    def route_from(name):
        return Route(name, links, dict.fromkeys(links), links)

    traversal = Traversal(route_from("a"), {"data": 0}, route_from)
    (visit,), times = [traversal.begin()], 0
    while True:
        visit.request.update(result=visit.request["data"] + 1, repost="a")
        found = traversal.advance(visit)
        if isinstance(found, Failure):
            break
        (visit,), times = found, times + 1
    assert times == 100
    assert (found.error.code, found.error.limit, found.has_run) == ("limit", 100, True)


def test_a_repost_trades_the_sinks_behind_it_for_those_of_its_target():
    links = {
        "a": Links("a", next=("b", "c")),
        "b": Links("b", reposts=("d",)),
        "c": Links("c"),
        "d": Links("d", next=("e", "f", "g")),
        **{name: Links(name) for name in "efg"},
    }

    @functools.cache
    def route_from(name):
        return Route(name, links, dict.fromkeys(links), links)

    request = {"data": 0}
    traversal = Traversal(route_from("a"), request, route_from)
    visits, left = [traversal.begin()], []
    while visits:
        visit = visits.pop(0)
        visit.request["result"] = visit.step.name
        if visit.step.name == "b":
            visit.request["repost"] = "d"
        visits += traversal.advance(visit)
        left.append((visit.step.name, traversal.sinks_left))
    assert left == [("a", 2), ("b", 4), ("c", 3), ("d", 3), ("e", 2), ("f", 1), ("g", 0)]
    assert traversal.finish() is None
    assert request["result"] == {name: name for name in "cefg"}


class Scheduled:
    """A scheduler as far as a graph links it."""

    def result_required(self, value):
        self.value = value


def test_the_last_request_that_ends_wakes_whoever_waits_for_all(client, until):
    class Asked(dict):
        times = 0

        def __bool__(self):
            self.times += 1
            return len(self) > 0

    graph = Graph({"a": Links("a")}, {"a": Scheduled()})
    graph.in_flight = Asked()
    graph.in_flight.update({"first": 0, "second": 0})
    closing = client(graph.wait_ended, time.monotonic() + 3600)
    until(lambda: graph.closers)
    graph.ended("first")
    graph.ended("second")
    assert closing.outcome() is True
    assert graph.in_flight.times <= 3  # it sleeps between two of them
    assert graph.wait_ended(0)
    graph.in_flight["third"] = 0
    assert not graph.wait_ended(0)
    assert graph.closers == []


def test_a_node_before_an_or_may_end_without_a_result():
    schedulers = {name: Scheduled() for name in "abc"}
    links = {"a": Links("a", next=("b",)), "b": Links("b", next=("c",), otherwise=True)}
    graph = Graph({**links, "c": Links("c")}, schedulers)
    assert {name: one.value for name, one in schedulers.items()} == {
        "a": False,
        "b": True,
        "c": True,
    }
    assert not graph.only.is_chain


def test_a_request_that_cannot_go_on_fails_with_the_reason_and_the_node():
    reason = KeyError("odd")
    graph = Graph({"a": Links("a")}, {"a": Scheduled()})
    error = unable(graph.route_from("a").steps[0], reason)
    assert type(error) is ContractError
    assert (error.node, error.__cause__) == ("a", reason)
    assert "KeyError: 'odd'" in str(error)
