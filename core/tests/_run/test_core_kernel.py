"""A pipeline of plain objects: made from a blueprint, with nothing of what reads configurations."""

from __future__ import annotations

import dataclasses
import gc

import pytest
from loading import python

from headrace import Pipeline, errors
from headrace.blueprint import Links, blueprint, node

ALONE = """
import sys
from headrace import Pipeline
from headrace.blueprint import Limits, blueprint, node
from headrace.errors import BackendError, ClosedError, RequestsFailed

events = []

class Upper:
    def __init__(self):
        self.number = sum(event.startswith("made") for event in events)
        events.append(f"made {self.number}")

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"].upper()

    def close(self):
        events.append(f"closed {self.number}")

class Ends:
    def forward(self, batch):
        for request in batch:
            if request["data"] == "BAD":
                raise ValueError("bad")
            request["result"] = request["data"] + "!"

nodes = [
    node("upper", Upper, instance_num=2, max=4, next=["ends"]),
    node("ends", Ends, instance_num=2, limits=Limits(queue_size=8)),
]
with Pipeline(blueprint(*nodes)) as pipe:
    assert pipe({"data": "a"})["result"] == "A!"
    assert [request["result"] for request in pipe([{"data": c} for c in "abcde"])] == [c + "!" for c in "ABCDE"]
    assert pipe.submit({"data": "b"}).result(60)["result"] == "B!"
    assert [part["result"] for part in pipe.stream({"data": "c"})] == ["C!"]
    for call in (pipe, lambda request: pipe.submit(request).result(60)):
        try:
            call({"data": "bad"})
        except BackendError as error:
            assert (error.node, error.backend) == ("ends", "Ends"), error
        else:
            raise AssertionError("nothing was raised")
    try:
        pipe([{"data": "bad"}, {"data": "d"}])
    except RequestsFailed as failed:
        assert [type(error) for error in failed.errors] == [BackendError, type(None)]
    stats = pipe.stats()["nodes"]
    assert stats["upper"]["submitted"] == 12 and stats["ends"]["failed"] == {"backend": 3}, stats
try:
    pipe({"data": "a"})
except ClosedError:
    pass
else:
    raise AssertionError("a closed pipeline answers")
assert events == ["made 0", "made 1", "closed 1", "closed 0"], events
print([name for name in sys.modules if name.startswith(("headrace._language", "pydantic"))])
"""


def test_it_runs_without_anything_that_reads_configurations():
    ended = python("-c", ALONE)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


class Plain:
    """Notes which objects were closed, in this order, and may raise then."""

    def __init__(self, closed=None, raises=None):
        self.closed, self.raises = [] if closed is None else closed, raises

    def forward(self, batch):
        for request in batch:
            if request["data"] is not None:
                request["result"] = request["data"]

    def close(self):
        self.closed.append(self)
        if self.raises:
            raise self.raises


class Without:
    """Has no forward."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: blueprint(node("a", Plain, next=["uper"]), node("upper", Plain)),
            "'uper'.*'upper'",
        ),
        (lambda: blueprint(node("a", Plain, next=["b"])), "node 'a': the next node 'b' is not"),
        (lambda: blueprint(node("a", Plain), node("a", Plain)), "a name of its own"),
        (blueprint, "a blueprint has nodes"),
        (lambda: node("a", Plain, instance_num=0), "node 'a': instance_num=0 is below 1"),
        (lambda: node("a", Plain, min=0), "node 'a': min=0"),
        (lambda: node("a", Plain, max=0), "node 'a': min=1, max=0 is no batch range"),
        (lambda: node("a", Plain, min=3, max=2), "node 'a': min=3"),
        (lambda: node("a", Plain, min="1"), "node 'a': min"),
    ],
)
def test_a_wrong_blueprint_is_refused_before_anything_is_made(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def raises():
    raise OSError("no device")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Without, "an object of Without is no backend"),
        (raises, "instance 1 could not be made: OSError: no device"),
    ],
)
def test_what_was_made_is_closed_where_the_next_cannot_be_made(make, said):
    closed, first, second = [], [], [make]

    def makes_two():
        if first:
            return second[0]()
        first.append(Plain(closed, ValueError("while it closes")))
        return first[0]

    earlier = Plain(closed)
    with pytest.raises(errors.SetupError, match=said) as caught:
        Pipeline(blueprint(node("a", lambda: earlier), node("b", makes_two, instance_num=2)))
    assert caught.value.node == "b"
    assert closed == [*first, earlier]


def test_errors_of_headrace_in_make_stay_as_they_are():
    def refuses():
        raise errors.SetupError("not here")

    with pytest.raises(errors.SetupError, match="not here"):
        Pipeline(blueprint(node("a", refuses)))


@pytest.mark.parametrize("raised", [None, ValueError("while it closes")])
def test_each_object_is_closed_once_and_the_newest_first(raised):
    closed, made = [], []

    def make():
        made.append(Plain(closed, raised))
        return made[-1]

    with Pipeline(blueprint(node("a", make, instance_num=3, next=["b"]), node("b", make))) as pipe:
        pipe({"data": 1})
    pipe.close()
    assert closed == made[::-1]
    assert len(made) == 4


def test_the_error_of_an_object_has_the_error_that_it_raised_as_its_cause():
    class Raises(Plain):
        def forward(self, batch):
            raise ValueError("bad")

    with (
        Pipeline(blueprint(node("a", Raises))) as pipe,
        pytest.raises(errors.BackendError) as caught,
    ):
        pipe({"data": 1})
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_object_without_close_needs_none():
    class Silent:
        forward = Plain.forward

    with Pipeline(blueprint(node("a", Silent))) as pipe:
        assert pipe({"data": 1})["result"] == 1
        with pytest.raises(errors.NoResultError, match="Silent wrote no 'result'"):
            pipe({"data": None})
        with pytest.raises(errors.InputError):
            pipe(3)


def test_the_range_of_a_node_holds_for_its_objects():
    sizes = []

    class Counts(Plain):
        def forward(self, batch):
            sizes.append(len(batch))
            super().forward(batch)

    with Pipeline(blueprint(node("a", Counts, min=2, max=3))) as pipe:
        pipe([{"data": n} for n in range(6)])
        with pytest.raises(errors.BatchRangeError):
            pipe({"data": 1, "request_size": 4})
    assert sizes == [3, 3]


def test_links_say_more_than_next():
    class Fails(Plain):
        def forward(self, batch):
            return [None if request["data"] != 1 else ValueError("one") for request in batch]

    nodes = [
        node("a", Plain, links=Links(each="items:data", each_errors="none"), next=["b"]),
        node("b", Plain, links=Links(map={"a": {"result": "data"}})),
    ]
    with Pipeline(blueprint(*nodes)) as pipe:
        assert pipe({"items": [1, 2]})["result"] == [1, 2]
    nodes = [node("a", Fails, max=2, next=["b"]), node("b", Plain, links=Links(otherwise=True))]
    with Pipeline(blueprint(*nodes)) as pipe:
        assert pipe({"data": 2})["result"] == 2
        with pytest.raises(errors.BackendError):
            pipe({"data": 1})


def test_a_blueprint_makes_as_many_pipelines_as_wanted():
    plan = blueprint(node("a", Plain, limits=None))
    with Pipeline(plan) as first, Pipeline(plan) as second:
        assert (first({"data": 1})["result"], second({"data": 2})["result"]) == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.order = ()


def test_probes_of_a_blueprint_hear_what_runs():
    heard = []

    class Probe:
        def request_done(self, *about):
            heard.append(about)

    with Pipeline(blueprint(node("a", Plain), probes={"mine": Probe})) as pipe:
        pipe({"data": 1})
    gc.collect()
    assert len(heard) == 1


def test_a_closed_pipeline_of_objects_answers_nothing():
    pipe = Pipeline(blueprint(node("a", Plain)))
    pipe.close()
    for call in (pipe, pipe.submit):
        with pytest.raises(errors.ClosedError):
            call({"data": 1})
    with pytest.raises((errors.RequestsFailed, errors.ClosedError)):
        pipe([{"data": 1}])
