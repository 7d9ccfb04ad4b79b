"""A batch begins and ends in one place, and the short cut has a copy of it: both leave the same state, field by field."""

from __future__ import annotations

import threading
from contextlib import suppress

import internals
import pytest

import headrace
from headrace.errors import RequestError

REQUESTS = 40
"""So many that a fast backend is timed and is not, more than once."""

FAST_S, SLOW_S = 2.0**-14, 2.0**-7

FROM_THE_QUEUE = {"entries", "node.entered", "node.sizes", "reasons", "sizes"}
"""What only a batch with entries, or out of the queue, sets. `stats()` makes the same of both, which is compared as well."""


class Seen(headrace.Backend):
    """Does what the test says, and has it look first."""

    max = 4
    look = act = None

    def forward(self, batch):
        Seen.look()
        return Seen.act(batch)


def succeed(batch):
    for request in batch:
        request["result"] = request["data"]


def fail(batch):
    return [ValueError("no") for _ in batch]


def raise_error(batch):
    raise ValueError("no")


def write_nothing(batch):
    return None


def called(pipe, request):
    pipe(request)


def submitted(pipe, request):
    pipe.submit(request).result()


SHORT_CUT = "the caller runs it"
WAYS = {
    SHORT_CUT: (called, True),
    "it is handed over": (submitted, True),
    "called, from the queue": (called, False),
    "submitted, from the queue": (submitted, False),
}


def changes(before, after):
    """Return what has changed, by the name of the field."""
    assert before.keys() <= after.keys()
    names = [name for name in after if name not in before or before[name] != after[name]]
    return {name: after[name] for name in names}


def course(monkeypatch, way, act, duration_s):
    """Return what each of many requests changes once it has begun, and once it has ended."""
    send, skips = WAYS[way]
    headrace.register("Seen", Seen, replace=True)
    with monkeypatch.context() as patch:
        if not skips:
            internals.never_skips_the_queue(patch)
        internals.runs_take(patch, duration_s)
        states = []
        with headrace.pipe({"backend": "Seen"}) as pipe:
            Seen.look, Seen.act = lambda: states.append(internals.state_of(pipe)), act

            def send_all():
                Seen.look()
                for number in range(REQUESTS):
                    with suppress(RequestError):
                        send(pipe, {"data": number})
                    internals.settled(pipe)
                    Seen.look()

            thread = threading.Thread(target=send_all)
            thread.start()
            thread.join()
    return states


def of_all_ways(states):
    """Return the changes from the first state on, without what only comes from the queue."""
    found = [changes(states[0], state) for state in states[1:]]
    return [
        {name: value for name, value in fields.items() if name not in FROM_THE_QUEUE}
        for fields in found
    ]


@pytest.mark.parametrize("duration_s", [FAST_S, SLOW_S])
@pytest.mark.parametrize("act", [succeed, fail, raise_error, write_nothing])
@pytest.mark.parametrize("way", sorted(WAYS.keys() - {SHORT_CUT}))
def test_each_way_leaves_the_state_of_the_short_cut(monkeypatch, way, act, duration_s):
    first = course(monkeypatch, SHORT_CUT, act, duration_s)
    other = course(monkeypatch, way, act, duration_s)
    assert len(first) == len(other) == 1 + 2 * REQUESTS
    assert of_all_ways(other) == of_all_ways(first)


@pytest.mark.parametrize("way", WAYS)
def test_the_state_says_who_has_the_instance(monkeypatch, way):
    idle, *states = course(monkeypatch, way, succeed, FAST_S)
    busy = {"holder": "set", "ident": "this thread", "running_weight": 1}
    for begun, ended in zip(states[::2], states[1::2], strict=True):
        assert {name: begun[name] for name in busy} == busy
        assert {name: ended[name] for name in busy} == {name: idle[name] for name in busy}


@pytest.mark.parametrize("place", ["begin", "end"])
@pytest.mark.parametrize("name", ["batches", "reason", "unheard_of"])
def test_a_field_that_one_side_alone_sets_is_seen(monkeypatch, place, name):
    first = course(monkeypatch, SHORT_CUT, succeed, FAST_S)
    internals.sets_more(monkeypatch, place, name)
    other = course(monkeypatch, "called, from the queue", succeed, FAST_S)
    assert of_all_ways(other) != of_all_ways(first)
