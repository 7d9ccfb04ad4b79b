"""What `Cache` and `Once` compare: every key that a backend inside reads, so that nobody gets another request's answer."""

from __future__ import annotations

import threading
import types
from typing import Any, TypedDict

import numpy as np
import pytest
from flow_helpers import wait_until
from typing_extensions import NotRequired  # noqa: TC002 - the annotations of a TypedDict are read

import headrace
from headrace import errors
from headrace.words import Bracket
from headrace_flow.caching.content import content_of


class ReadsScale(TypedDict):
    data: Any
    scale: NotRequired[Any]


class KeysSays(headrace.Backend):
    """Answers with all that it reads; the base of the backends here."""

    max = 8
    rerun = True
    read: tuple[str, ...] = ()

    def forward(self, batch):
        for request in batch:
            found = [f"{key}={request[key]!r}" for key in self.read if key in request]
            request["result"] = " ".join(["of", *found])


class KeysLanguage(KeysSays):
    reads = ("data", "language")
    read = reads


class KeysScale(KeysSays):
    reads = ReadsScale
    read = ("data", "scale")


class KeysNamed(KeysSays):
    """Reads the keys that an option names."""

    class Options(headrace.Options):
        key: str = "box"
        more: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it

    reads = ("data", "{key}", "{more}")

    def init(self, options, context):
        self.read = ("data", options.key, *options.more.values())


class KeysOfModel(KeysSays):
    """Knows only once it is built what it reads, and that is not data."""

    reads = ("{inputs}",)

    class Options(headrace.Options):
        inputs: dict[str, str] | None = None

    def init(self, options, context):
        self.reads = self.read = ("x", "y")


class KeysUnsaid(KeysSays):
    read = ("data", "language")


class KeysLacks(KeysSays):
    """Cannot be built here."""

    reads = ("data",)

    def init(self, options, context):
        raise ImportError("no such library")


class KeysGathers(KeysSays):
    """The first of a CatSplit, which reads a key beside data."""

    reads = ("data", "language")
    read = reads


class KeysPlain:
    reads = ("data", "language")

    def forward(self, batch):
        for request in batch:
            request["result"] = f"{request['data']} {request.get('language')}"


@pytest.fixture(autouse=True)
def backends():
    for cls in (KeysLanguage, KeysScale, KeysNamed, KeysOfModel, KeysUnsaid, KeysPlain, KeysLacks):
        headrace.register(cls.__name__, cls, replace=True)
    headrace.register("KeysGathers", KeysGathers, replace=True)
    headrace.register("keys_upper", lambda text: str(text).upper(), replace=True)


def asked(backend, requests, **more):
    """Return the results of requests that are sent one by one, and how many were hits."""
    with headrace.pipe({"backend": f"Cache[{backend}]", "max": 8, **more}) as pipe:
        found = [pipe(dict(one))["result"] for one in requests]
        counts = pipe.stats()["caches"]["main"]
        assert counts["uncached"] == 0
    return found, counts["hits"]


def shared(backend, requests, **more):
    """Return the results of requests of one batch, and how many had the answer of another one."""
    with headrace.pipe({"backend": f"Once[{backend}]", "max": 8, **more}) as pipe:
        found = [one["result"] for one in pipe([dict(one) for one in requests])]
        return found, pipe.stats()["once"]["main"]["shared"]


def alone(backend, requests, **more):
    """Return what each request gets where nothing is kept and nothing shared."""
    with headrace.pipe({"backend": backend, "max": 8, **more}) as pipe:
        return [pipe(dict(one))["result"] for one in requests]


CASES = [
    ("KeysLanguage", "language"),
    ("KeysScale", "scale"),
    ("KeysPlain", "language"),
    ("KeysNamed", "box"),
    ("KeysNamed(key=place)", "place"),
    ("S[KeysNamed(key=place)]", "place"),
    ("S[keys_upper,KeysNamed,Identity]", "box"),
    ("S[S[Identity,S[KeysScale]],Identity]", "scale"),
    ("S[KeysLanguage,(or)KeysScale]", "language"),
    ("S[HasKey(a)[KeysLanguage,keys_upper],KeysScale]", "scale"),
    ("S[(key=loud)keys_upper,Identity]", "loud"),
    ("S[keys_upper,(key=loud)KeysScale]", "scale"),
    ("HasKey(a)[keys_upper,Identity]", "a"),
    ("NotHasKey(a)[KeysLanguage]", "a"),
    ("NotHasKey(a)[KeysLanguage]", "language"),
    ("Random(1.0)[KeysLanguage,KeysScale]", "language"),
    ("IoC[KeysLanguage,keys_upper;S[keys_upper,KeysLanguage]]", "language"),
    ("IoC[KeysLanguage;Forward[KeysLanguage]]", "language"),
    ("Reflect[inner]", "language"),
    ("Fallback[KeysLacks,KeysLanguage]", "language"),
    ("ModelLoader[(.a)KeysLanguage,(.b)keys_upper]", "language"),
    ("CatSplit[KeysGathers,Identity,Identity]", "language"),
    ("CatSplit[Identity,Identity,KeysScale]", "scale"),
    ("Loop(until=data)[KeysLanguage]", "language"),
    ("BackgroundThread[S[KeysLanguage]]", "language"),
]
MORE = {
    "Reflect[inner]": {"inner": "S[KeysLanguage]"},
    "ModelLoader[(.a)KeysLanguage,(.b)keys_upper]": {"model": "m.a"},
}


WAYS = [(asked, *case) for case in CASES]
# CatSplit answers a batch as one, so there it is asked one by one.
WAYS += [(shared, *case) for case in CASES if "CatSplit" not in case[0]]


@pytest.mark.parametrize(("way", "backend", "key"), WAYS)
def test_requests_that_differ_in_a_key_that_is_read_inside_have_answers_of_their_own(
    way, backend, key
):
    more = MORE.get(backend, {})
    scale = {"loud": 1} if "loud" in backend and key != "loud" else {}
    requests = [{"data": "x", **scale, **one} for one in ({key: "1"}, {key: "2"}, {}, {key: 1})]
    found, same = way(backend, requests, **more)
    assert found == alone(backend, requests, **more)
    assert same == 0
    assert len(set(found)) > 1  # the key does decide
    found, same = way(backend, [requests[0], {**requests[0], "unread": 5}], **more)
    assert (same, found[0]) == (1, found[1])  # what nobody reads makes no difference


@pytest.mark.parametrize("way", [asked, shared])
@pytest.mark.parametrize("backend", ["KeysOfModel", "S[KeysOfModel]", "S[KeysOfModel,keys_upper]"])
def test_a_model_with_two_inputs_needs_no_data(way, backend):
    requests = [{"x": 1, "y": 1}, {"x": 1, "y": 50}, {"x": 1, "y": 1, "data": "unread"}]
    found, same = way(backend, requests)
    assert found == alone(backend, requests)
    assert same == 1
    with pytest.raises((errors.InputError, errors.RequestsFailed), match=r"'y'|failed"):
        way(backend, [{"x": 1}])


def test_behind_a_map_the_inputs_of_a_model_are_compared():
    config = {
        "begin": {"backend": "Identity", "next": ["model"]},
        "model": {
            "backend": "Cache[KeysOfModel]",
            "map": {"begin": {"result": "data", "data": "x", "second": "y"}},
        },
    }
    with headrace.pipe(config) as pipe:
        answers = [pipe({"data": 1, "second": second})["result"] for second in (1, 2, 1)]
        assert answers == ["of x=1 y=1", "of x=1 y=2", "of x=1 y=1"]
        assert pipe.stats()["caches"]["model"]["hits"] == 1


UNKNOWN = [
    ("KeysUnsaid", "KeysUnsaid"),
    ("S[keys_upper,KeysUnsaid]", "KeysUnsaid"),
    ("HasKey(a)[keys_upper,S[KeysUnsaid]]", "KeysUnsaid"),
    ("IoC[KeysUnsaid;KeysUnsaid]", "KeysUnsaid"),
    ("Fallback[keys_upper,KeysUnsaid]", "KeysUnsaid"),
    ("BackgroundThread[KeysUnsaid]", "KeysUnsaid"),
    ("Call(html:unescape)", "Call"),
    ("S[Call(html:unescape),keys_upper]", "Call"),
    ("Forward[node.other]", "Forward"),
    ("S[keys_upper,Forward[node.other]]", "Forward"),
    ("Observer(q)", "Observer"),
]


@pytest.mark.parametrize("word", ["Cache", "Once"])
@pytest.mark.parametrize(("inside", "silent"), UNKNOWN)
def test_where_the_keys_are_not_known_they_have_to_be_named(word, inside, silent):
    other = {"other": {"backend": "Identity"}}
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load({"main": {"backend": f"{word}[{inside}]"}, **other}).plan()
    (problem,) = caught.value.problems
    assert problem.path == "main.backend"
    assert silent in problem.message
    assert "keys=[" in (problem.hint or "")
    for keys in ("[language]", "[]"):
        named = {"main": {"backend": f"{word}(keys={keys})[{inside}]"}, **other}
        headrace.PipelineConfig.load(named).plan()
    of_node = {"main": {"backend": f"{word}[{inside}]", "keys": ["language"]}, **other}
    headrace.PipelineConfig.load(of_node).plan()


def test_a_script_does_not_say_what_it_reads(tmp_path):
    (tmp_path / "page.py").write_text("def page(request):\n    yield []\n    return 1\n")
    script = f"Script('{tmp_path / 'page.py'}:page')"
    with pytest.raises(errors.ConfigError, match="Script does not say"):
        headrace.PipelineConfig.load({"backend": f"Cache[{script}]"}).plan()


@pytest.mark.parametrize("way", [asked, shared])
def test_keys_that_are_named_come_beside_those_that_are_known(way):
    inside = "S[KeysLanguage,KeysScale]"
    for word_keys in ({"keys": ["other"]}, {"keys": []}, {}):
        requests = [
            {"data": "x", "language": "en", "scale": 1},
            {"data": "x", "language": "de", "scale": 1},
            {"data": "x", "language": "de", "scale": 2},
            {"data": "x", "language": "de", "scale": 2, "other": 3},
        ]
        found, same = way(inside, requests, **word_keys)
        assert found == alone(inside, requests)
        assert same == (0 if word_keys.get("keys") else 1)


@pytest.mark.parametrize("way", [asked, shared])
def test_beside_a_backend_that_does_not_say_what_it_reads_the_others_still_count(way):
    inside = "S[KeysScale,KeysUnsaid]"
    requests = [{"data": "x", "scale": s, "language": t} for s in (1, 2) for t in ("en", "de")]
    found, same = way(inside, requests, keys=["language"])
    assert (found, same) == (alone(inside, requests), 0)


VALUES = [
    True, 1, 1.0, 1 + 0j, "1", b"1", None, False, 0, 0.0, -0.0, "", b"", [], (), {}, [1], (1,), [True], [1.0], [[1]],
    {"a": 1}, {"a": True}, {"b": 1}, {"a": None}, [None], np.int64(1), np.int32(1), np.float32(1), np.bool_(True),
    np.ones(1), np.ones(1, "f4"), np.ones((1, 1)), np.ones(()), np.array(["1"]), np.array([b"1"]), np.zeros(0),
    np.zeros((0, 1)), np.array(1, ">i4"), np.array(1, "<i4"), np.array(0, "M8[s]"), np.array(0, "M8[D]"),
    float("nan"), float("inf"), 10**400, "é", "e\u0301", "\x00", "a\ud800",
    np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")]),
    np.zeros(1, {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2], "itemsize": 8}),
]  # fmt: skip


def test_no_two_values_that_a_backend_could_tell_apart_are_equal():
    contents = [content_of({"data": value}, ["data"]) for value in VALUES]
    assert len(set(contents)) == len(VALUES)
    assert contents == [content_of({"data": value}, ["data"]) for value in VALUES]


def test_dtypes_of_other_libraries_are_told_apart():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = ("float8_e4m3", "float8_e4m3fn", "float8_e3m4", "float8_e5m2", "bfloat16")
    arrays = [np.zeros(4, getattr(ml_dtypes, name)) for name in names]
    assert len({content_of({"data": one}, ["data"]) for one in arrays}) == len(names)


@pytest.mark.parametrize("way", [asked, shared])
def test_rows_and_the_parameters_of_a_served_request_always_count(way):
    def served(context):
        return {"data": "x", "context": context}

    class KeysParameters(headrace.Backend):
        reads = ("data",)
        max = 8

        def forward(self, batch):
            for one in batch:
                rows = one.get("request_size", "one sample")
                one["result"] = f"{rows} {dict(one.get('context', {})).get('parameters')}"

    headrace.register("KeysParameters", KeysParameters, replace=True)
    requests = [
        {"data": "x"},
        {"data": "x", "request_size": 1},
        {"data": "x", "request_size": 2},
        served({"parameters": {"temperature": 0.1}}),
        served({"parameters": {"temperature": 0.9}}),
        served({"parameters": {"inputs": {"x": {"a": [1]}}}}),
    ]
    found, same = way("S[KeysParameters]", requests)
    assert (found, same) == (alone("KeysParameters", requests), 0)
    frozen = types.MappingProxyType({"traceparent": "1", "parameters": {"temperature": 0.1}})
    traced = [requests[3], served(frozen), served({"traceparent": "2"}), requests[0], served({})]
    found, same = way("S[KeysParameters]", traced)
    assert (found, same) == (alone("KeysParameters", traced), 3)


@pytest.mark.parametrize("way", [asked, shared])
def test_a_backend_that_reads_the_context_has_all_of_it_compared_but_the_trace(way):
    class KeysContext(KeysSays):
        reads = ("data", "context")

        def forward(self, batch):
            for one in batch:
                one["result"] = str(one.get("context", {}).get("user"))

    headrace.register("KeysContext", KeysContext, replace=True)
    more = [{"traceparent": "00-1"}, {"client_digest": "0f"}]
    contexts = [{"user": "a"}, {"user": "b"}, *({"user": "a", **each} for each in more)]
    requests = [{"data": "x", "context": one} for one in contexts] + [{"data": "x"}]
    assert way("KeysContext", requests) == (["a", "b", "a", "a", "None"], 2)


def test_a_container_of_others_asks_in_the_same_way():
    seen = {}

    class KeysAsks(headrace.Backend):
        class Options(headrace.Options):
            names: tuple[str, ...] | None = None

        takes = (1, 2)
        reads = ()
        bracket = Bracket(keys_option="names")

        def init(self, options, context):
            self.children = context.children
            seen["read"] = [
                context.expression.keys_read(place) for place in range(len(self.children))
            ]
            seen["first"] = context.expression.keys_read()

        def forward(self, batch):
            return self.children[0](batch)

    headrace.register("KeysAsks", KeysAsks, replace=True)
    with headrace.pipe({"backend": "KeysAsks[S[KeysOfModel,KeysScale],KeysNamed]"}):
        assert seen["read"] == [(("scale", "x", "y"), None), (("box", "data"), None)]
        assert seen["first"] == seen["read"][0]
    with pytest.raises(errors.ConfigError, match=r"KeysUnsaid does not say(.|\n)*names=\["):
        headrace.PipelineConfig.load({"backend": "KeysAsks[KeysNamed,KeysUnsaid]"}).plan()
    with headrace.pipe({"backend": "KeysAsks(names=[a])[S[KeysScale,KeysUnsaid]]"}):
        assert seen["read"] == [(("data", "scale"), "KeysUnsaid")]


@pytest.mark.parametrize(
    "inside", ["KeysColours", "S[KeysColours]", "IoC[KeysColours;S[KeysColours]]"]
)
@pytest.mark.parametrize("way", ["Cache", "Once"])
def test_an_answer_has_the_keys_that_are_written_deeper_inside_whoever_brought_them(way, inside):
    class KeysColours(KeysSays):
        """Writes the very object that a request may bring."""

        reads = ("data",)
        writes = ("result", "colour")

        def forward(self, batch):
            for one in batch:
                one["result"], one["colour"] = one["data"].upper(), True

    headrace.register("KeysColours", KeysColours, replace=True)
    with headrace.pipe({"backend": f"{way}[{inside}]", "max": 8}) as pipe:
        requests = [{"data": "x", "colour": True}, {"data": "x"}, {"data": "x", "colour": False}]
        answers = pipe(requests) if way == "Once" else [pipe(one) for one in requests]
        assert answers == [{"data": "x", "result": "X", "colour": True}] * 3


def test_a_hit_of_a_loop_has_the_key_that_ends_it():
    class KeysEnds(KeysSays):
        reads = ("data",)

        def forward(self, batch):
            for one in batch:
                one["result"], one["done"] = one["data"], True

    headrace.register("KeysEnds", KeysEnds, replace=True)
    with headrace.pipe({"backend": "Cache[Loop(until=done)[KeysEnds]]"}) as pipe:
        for request in ({"data": "x", "done": True}, {"data": "x"}):
            assert pipe(request) == {"data": "x", "result": "x", "done": True}
        assert pipe.stats()["caches"]["main"]["hits"] == 1


def test_a_property_tells_what_is_read_once_the_backend_is_built():
    class KeysLater(KeysSays):
        read = ("x", "y")
        reads = property(lambda self: self.read)

    headrace.register("KeysLater", KeysLater, replace=True)
    requests = [{"x": 1, "y": 1}, {"x": 1, "y": 2}, {"x": 1, "y": 1}]
    assert asked("S[KeysLater]", requests) == (["of x=1 y=1", "of x=1 y=2", "of x=1 y=1"], 1)


# Answers in parts.


class KeysSpeaks(KeysSays):
    """Gives each letter of a text as a part, then the text in capitals."""

    reads = ("data",)

    def init(self, options, context):
        self.asks = context.request

    def forward(self, batch):
        for one in batch:
            handle = self.asks.keep(one)
            for letter in one["data"]:
                self.asks.emit(handle, letter)
            one["result"] = one["data"].upper()


def spoken(text):
    yield from text
    return text.upper()


@pytest.fixture
def speakers():
    headrace.register("KeysSpeaks", KeysSpeaks, replace=True)
    headrace.register("KeysSpoken", spoken, replace=True)


def streamed(pipe, text):
    return [one if isinstance(one, str) else one["result"] for one in pipe.stream({"data": text})]


@pytest.mark.parametrize("backend", ["KeysSpeaks", "KeysSpoken", "S[KeysSpoken,Identity]"])
def test_parts_are_not_kept_so_a_hit_has_the_final_answer_alone(speakers, backend):
    with headrace.pipe({"backend": f"Cache[{backend}]"}) as pipe:
        assert streamed(pipe, "ab") == ["a", "b", "AB"]
        assert streamed(pipe, "ab") == ["AB"]
        assert streamed(pipe, "cd") == ["c", "d", "CD"]
        assert pipe({"data": "ab"})["result"] == "AB"
        assert pipe.stats()["caches"]["main"]["hits"] == 2


def test_parts_of_a_run_that_is_shared_go_to_the_request_that_runs_alone():
    begun, leave = threading.Event(), threading.Event()

    def slowly(text):
        begun.set()
        assert leave.wait(60)
        yield from text
        return text.upper()

    headrace.register("KeysSlowly", slowly, replace=True)
    answers = {}
    with headrace.pipe({"backend": "Once[KeysSlowly]", "instance_num": 2}) as pipe:

        def read(name):
            answers[name] = streamed(pipe, "ab")

        readers = [threading.Thread(target=read, args=(name,)) for name in ("first", "second")]
        readers[0].start()
        assert begun.wait(60)
        readers[1].start()
        wait_until(lambda: pipe.stats()["nodes"]["main"]["waiting"] == 1)
        wait_until(lambda: pipe.stats()["nodes"]["main"]["batches"] == 2)
        leave.set()
        for one in readers:
            one.join(60)
        assert answers == {"first": ["a", "b", "AB"], "second": ["AB"]}
        assert streamed(pipe, "ab") == ["a", "b", "AB"]  # nothing equal is in flight any more


def test_a_once_around_a_cache_shares_and_keeps_by_the_same_keys():
    with headrace.pipe({"backend": "Once[Cache(keys=[language])[KeysUnsaid]]", "max": 8}) as pipe:
        requests = [{"data": "x", "language": one} for one in ("en", "de", "en", "de")]
        assert [one["result"] for one in pipe(requests)] == alone("KeysUnsaid", requests)
        assert [one["result"] for one in pipe(requests)] == alone("KeysUnsaid", requests)
        assert pipe.stats()["once"]["main"]["shared"] == 4
        assert pipe.stats()["caches"]["main"]["hits"] == 2
