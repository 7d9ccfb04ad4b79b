"""`Cache`: equal requests get equal answers of their own memory, for so long, and nobody else's."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace import errors
from headrace_flow.caching.answers import Answer, Answers
from headrace_flow.caching.cache import Cache
from headrace_flow.caching.content import UnknownContentError, content_of
from headrace_testing import FakeClock

pytestmark = pytest.mark.first(
    "loop, cache, limit, keep state: equal requests are answered from memory"
)


class CachedRuns(headrace.Backend):
    """Writes an array and a score, and remembers what it has run; fails for ``bad``."""

    runs: ClassVar[list[list[object]]] = []
    max = 8
    reads = ("data",)
    writes = ("result", "score")

    def forward(self, batch):
        self.runs.append([one["data"] for one in batch])
        outcomes = []
        for one in batch:
            if isinstance(one["data"], str) and one["data"].startswith("bad"):
                outcomes.append(ValueError("no"))
                continue
            one["result"] = np.full(3, len(self.runs))
            one["score"] = len(self.runs)
            outcomes.append(None)
        return outcomes


class CachedFours(CachedRuns):
    min = 4


@pytest.fixture(autouse=True)
def runs():
    CachedRuns.runs.clear()
    for cls in (CachedRuns, CachedFours):
        headrace.register(cls.__name__, cls, replace=True)
    return CachedRuns.runs


def stats(pipe, name="main"):
    found = pipe.stats()["caches"][name]
    return found["hits"], found["misses"], found["uncached"]


def test_an_equal_request_gets_the_answer_again_in_memory_of_its_own(runs):
    with headrace.pipe({"backend": "Cache[CachedRuns]"}) as pipe:
        first = pipe({"data": "one"})
        first["result"][:] = 77  # an answer belongs to who asked
        second = pipe({"data": "one"})
        second["result"][:] = 78
        third = pipe({"data": "one"})
        assert (third["result"].tolist(), third["score"]) == ([1, 1, 1], 1)
        assert third == {"data": "one", "result": pytest.approx([1, 1, 1]), "score": 1}
        assert pipe({"data": "two"})["score"] == 2
        assert runs == [["one"], ["two"]]
        assert stats(pipe) == (2, 2, 0)


def test_errors_are_never_kept(runs):
    with headrace.pipe({"backend": "Cache[CachedRuns]"}) as pipe:
        for _ in range(2):
            with pytest.raises(errors.BackendError, match="no"):
                pipe({"data": "bad"})
        assert len(runs) == 2
        assert stats(pipe) == (0, 2, 0)


def test_an_answer_is_given_for_so_many_seconds(runs, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(Cache, "clock", staticmethod(clock))
    with headrace.pipe({"backend": "Cache(seconds=10)[CachedRuns]"}) as pipe:
        pipe({"data": "one"})
        clock.advance(9.9)
        assert pipe({"data": "one"})["score"] == 1
        clock.advance(0.1)
        assert pipe({"data": "one"})["score"] == 2
        assert stats(pipe) == (1, 2, 0)


def test_keys_that_are_named_or_declared_make_requests_differ(runs):
    class CachedLanguage(CachedRuns):
        reads = ("data", "language")

    headrace.register("CachedLanguage", CachedLanguage, replace=True)
    for backend in ("Cache(keys=[language])[S[Identity,CachedRuns]]", "Cache[CachedLanguage]"):
        runs.clear()
        with headrace.pipe({"backend": backend}) as pipe:
            asked = [{"data": "x", "language": one} for one in ("de", "en", "de")] + [{"data": "x"}]
            assert [pipe(one)["score"] for one in asked] == [1, 2, 1, 3]


def test_what_is_unknown_passes_and_is_counted(runs):
    with headrace.pipe({"backend": "Cache[CachedRuns]"}) as pipe:
        assert [pipe({"data": {1}})["score"] for _ in range(2)] == [1, 2]
        assert stats(pipe) == (0, 0, 2)
    headrace.register("CachedObject", lambda data: object(), replace=True)
    with headrace.pipe({"backend": "Cache[CachedObject]"}) as pipe:
        first, second = (pipe({"data": "x"})["result"] for _ in range(2))
        assert first is not second
        assert stats(pipe) == (0, 2, 2)


def test_an_answer_that_is_too_large_passes_and_is_counted(runs):
    with headrace.pipe({"backend": "Cache(bytes=100)[CachedRuns]"}) as pipe:
        assert [pipe({"data": "x"})["score"] for _ in range(2)] == [1, 2]
        assert stats(pipe) == (0, 2, 2)


def test_those_that_are_known_run_along_where_too_few_are_left(runs):
    with headrace.pipe({"backend": "Cache[CachedFours]", "max": 8}) as pipe:
        pipe([{"data": k} for k in range(4)])
        assert [one["score"] for one in pipe([{"data": k} for k in range(1, 5)])] == [2] * 4
        assert [one["score"] for one in pipe([{"data": k} for k in range(1, 5)])] == [2] * 4
    assert runs == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_copies_that_fill_a_batch_up_are_not_counted(runs):
    with headrace.pipe({"backend": "Cache[CachedFours]", "max": 8, "pad": True}) as pipe:
        assert [pipe({"data": 1})["score"] for _ in range(2)] == [1, 1]
        assert runs == [[1] * 4]
        assert stats(pipe) == (1, 1, 0)


def test_caches_of_one_node_and_of_two_nodes_are_apart():
    headrace.register("CachedUpper", str.upper, replace=True)
    headrace.register("CachedTwice", lambda text: text * 2, replace=True)
    inner = "S[Cache[CachedUpper],Cache[CachedTwice]]"
    with headrace.pipe({"backend": inner, "instance_num": 2, "max": 2}) as pipe:
        answers = [pipe({"data": text})["result"] for text in ("a", "AA", "a", "A")]
        assert answers == ["AA", "AAAA", "AA", "AA"]
        assert stats(pipe, "main") == (1, 3, 0)
        assert stats(pipe, "main.1") == (2, 2, 0)
    nodes = {"up": {"backend": "Cache[CachedUpper]"}, "twice": {"backend": "Cache[CachedTwice]"}}
    with headrace.pipe(nodes) as pipe:
        assert pipe({"data": "a", "node_name": "up"})["result"] == "A"
        assert pipe({"data": "a", "node_name": "twice"})["result"] == "aa"
        assert pipe.stats()["caches"].keys() == {"up", "twice"}


def test_the_instances_of_a_node_have_one_cache(runs):
    instances = [Cache(), Cache()]
    node = headrace.InitContext().store.node
    for one in instances:
        child = CachedRuns()
        child.init(CachedRuns.Options(), headrace.InitContext())
        store = headrace.InitContext.Stores(node=node)
        one.init(Cache.Options(), headrace.InitContext(children=(child,), store=store))
    batches = [[{"data": "x"}], [{"data": "x"}]]
    assert [one(batch) for one, batch in zip(instances, batches, strict=True)] == [None, None]
    assert [batch[0]["score"] for batch in batches] == [1, 1]
    assert len(runs) == 1


# What is equal, against a slow comparison.

ARRAYS = st.builds(
    lambda numbers, dtype, rows, order: np.array(numbers * rows, dtype=dtype, order=order).reshape(
        (rows, -1) if rows else (0, len(numbers))
    ),
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
    st.sampled_from(["u1", "i1", "i4", ">i4", "f4", "f8", "?", "S1", "U1"]),
    st.integers(0, 2),
    st.sampled_from(["C", "F"]),
)
VALUES = st.one_of(
    st.sampled_from([0, 1, True, False, 0.0, -0.0, 1.0, 1j, None, "", "0", "1", b"", b"0", b"1"]),
    st.sampled_from([float("nan"), float("inf"), 10**5000, "\ud800", np.float32(1), np.int64(1)]),
    ARRAYS,
)
REQUESTS = st.dictionaries(st.sampled_from(["data", "key", "datakey"]), VALUES)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        equal = a.dtype == b.dtype and a.shape == b.shape
        return equal and all(same(x, y) for x, y in zip(a.flat, b.flat, strict=True))
    if isinstance(a, (float, np.floating)):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return a == b


@given(REQUESTS, REQUESTS)
def test_contents_are_equal_where_all_keys_are(first, second):
    keys = ("data", "key")
    equal = all(
        (key in first) == (key in second) and (key not in first or same(first[key], second[key]))
        for key in keys
    )
    assert (content_of(first, keys) == content_of(second, keys)) == equal


@pytest.mark.parametrize(
    "value",
    [
        {1},
        [{"a": {1}}],
        bytearray(b"x"),
        object(),
        type("Text", (str,), {})("x"),
        np.array([object()]),
        np.ma.masked_array([1], mask=[True]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_of_all_else_nothing_is_known(value):
    with pytest.raises(UnknownContentError):
        content_of({"data": value}, ["data"])


def test_an_answer_is_a_copy_also_of_lists_and_tables():
    boxes = [{"box": np.arange(4), "label": ("cat", 0.5)}]
    answer = Answer({"result": boxes})
    boxes[0]["box"][:] = 9
    given = answer.values()
    given["result"][0]["box"][0] = 8
    given["result"].append(1)
    assert repr(answer.values()) == repr({"result": [{"box": np.arange(4), "label": ("cat", 0.5)}]})
    endless = []
    endless.append(endless)
    for value in (object(), [object()], endless, np.array([None]), {1, 2}):
        with pytest.raises(UnknownContentError):
            Answer({"result": value})


# Places and time, against a slow loop.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "put"]), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 4), st.integers(1, 6))
def test_what_is_kept_is_what_a_slow_loop_keeps(steps, entries, words):
    clock = FakeClock()
    sizes = [Answer({"result": b"x" * 1000 * k}).size for k in range(4)]
    most = sizes[0] + words * 1000
    kept = Answers(5.0, entries, most, clock)
    model = []  # (content, until, size, number), the least recently used first
    for number, (step, content, size, pause) in enumerate(steps):
        clock.advance(pause)
        found = next((one for one in model if one[0] == content), None)
        if step == "get":
            answer = kept.get(bytes([content]))
            if found is not None:
                model.remove(found)
                if clock() < found[1]:
                    model.append(found)
                else:
                    found = None
            assert (answer is None) == (found is None)
            assert answer is None or len(answer.values()["result"]) == found[2] * 1000
            continue
        assert kept.put(bytes([content]), Answer({"result": b"x" * 1000 * size})) == (
            sizes[size] <= most
        )
        if sizes[size] > most:
            continue
        model = [one for one in model if one[0] != content]
        model.append((content, clock() + 5.0, size, number))
        while len(model) > entries or sum(sizes[one[2]] for one in model) > most:
            del model[0]
        assert kept.statistics()["entries"] == len(model) <= entries
        assert kept.statistics()["bytes"] == sum(sizes[one[2]] for one in model)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), max_size=10))
def test_batches_get_what_each_request_alone_would_get(batches):
    headrace.register("CachedSquare", lambda number: number * number, replace=True)
    with headrace.pipe({"backend": "Cache(entries=3)[CachedSquare]", "max": 8}) as pipe:
        for batch in batches:
            answers = pipe([{"data": number} for number in batch])
            assert [one["result"] for one in answers] == [number**2 for number in batch]
        found = pipe.stats()["caches"]["main"]
        assert found["hits"] + found["misses"] == len(list(itertools.chain(*batches)))
