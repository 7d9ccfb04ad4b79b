"""`enter(request)` of a backend class: called in the caller's thread, once per request, where it comes in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sending import WAYS

import headrace
from headrace.errors import BackendError, InputError, RequestsFailed


class Log:
    """What `enter` was called with, and in which thread; each call returns a value of its own."""

    def __init__(self):
        self.calls = []

    def note(self, name, request):
        value = (name, request["data"], threading.get_ident())
        self.calls.append(value)
        return value


@pytest.fixture
def log():
    """Three backends that have `enter`, in the three ways in which it can be written, and one without."""
    log = Log()

    class Reports(headrace.Backend):
        """Adds what `enter` has returned for this class to what others have reported."""

        def init(self, options, context):
            self.context = context

        def forward(self, batch):
            for request in batch:
                before = request["data"] if isinstance(request["data"], list) else []
                request["result"] = [*before, self.context.request.entered(request)]

    class EntersStatic(Reports):
        @staticmethod
        def enter(request):
            if request["data"] == "bad":
                raise ValueError("no such stream")
            if request["data"] == "wrong":
                raise InputError("not on this device", key="data")
            return log.note("static", request)

    class EntersClass(Reports):
        @classmethod
        def enter(cls, request):
            assert cls is EntersClass
            return log.note("class", request)

    class EntersPlain(Reports):
        owns_thread = True

        def enter(request):  # noqa: N805 - called on the class
            return log.note("plain", request)

    class NothingEnters(Reports):
        @staticmethod
        def enter(request):
            log.calls.append(("nothing", request["data"], threading.get_ident()))

    for one in (Reports, EntersStatic, EntersClass, EntersPlain, NothingEnters):
        headrace.register(one.__name__, one, replace=True)
    log.reports = Reports
    return log


EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
MAIN = pytest.mark.parametrize("main", [True, False], ids=["main thread", "other thread"])


def in_thread(function, *, main):
    """Run a function in the main thread or in another one; give its result and the thread's identifier."""
    if main:
        return function(), threading.get_ident()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: (function(), threading.get_ident())).result(timeout=60)


@MAIN
@EVERY_WAY
@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("EntersStatic", "static"),
        ("EntersClass", "class"),
        ("EntersPlain", "plain"),
        ("S[Identity,EntersStatic]", "static"),
        ("S[Identity,BackgroundThread[EntersClass]]", "class"),
    ],
)
def test_what_enter_returns_in_the_callers_thread_reaches_forward(log, expression, name, way, main):
    with headrace.pipe({"backend": expression}) as pipe:
        for data in range(2):
            answer, ident = in_thread(lambda data=data: way(pipe, {"data": data}), main=main)
            assert answer == {"data": data, "result": [(name, data, ident)]}
            assert log.calls == [(name, data, ident)]
            log.calls.clear()


@MAIN
@EVERY_WAY
def test_each_class_is_asked_once_and_finds_what_it_has_returned(log, way, main):
    expression = "S[EntersStatic,EntersPlain,EntersStatic,Reports,NothingEnters]"
    with headrace.pipe({"backend": expression, "instance_num": 2}) as pipe:
        answer, ident = in_thread(lambda: way(pipe, {"data": 1}), main=main)
    static, plain = ("static", 1, ident), ("plain", 1, ident)
    assert answer["result"] == [static, plain, static, None, None]
    assert sorted(log.calls) == sorted([static, plain, ("nothing", 1, ident)])


@MAIN
@EVERY_WAY
def test_copies_of_a_request_find_what_was_returned_for_it(log, way, main):
    """`each`, branches, a `map` and a chain: the dicts there are others than the caller's."""
    config = {
        "first": {"backend": "Identity", "next": "boxes,branch"},
        "boxes": {"backend": "EntersStatic", "each": "list:data", "next": "end"},
        "branch": {"backend": "S[Identity,EntersClass]", "next": "end"},
        "end": {"backend": "Collect", "map": "boxes[result:boxes],branch[result:data]"},
    }

    class Collect(headrace.Backend):
        reads = ("data", "boxes")

        def init(self, options, context):
            self.context = context

        @staticmethod
        def enter(request):
            return log.note("collect", request)

        def forward(self, batch):
            for request in batch:
                request["result"] = [
                    request["boxes"],
                    request["data"],
                    self.context.request.entered(request),
                ]

    headrace.register("Collect", Collect, replace=True)
    with headrace.pipe(config) as pipe:
        answer, ident = in_thread(lambda: way(pipe, {"data": 7, "list": [8, 9]}), main=main)
    static, of_class = ("static", 7, ident), ("class", 7, ident)
    assert answer["result"] == [[[static], [static]], [of_class], ("collect", 7, ident)]
    assert len(log.calls) == 3


@MAIN
@EVERY_WAY
def test_a_chain_and_a_call_pass_it_on(log, way, main):
    chain = {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "EntersPlain"}}
    called = {"a": {"backend": "S[Identity,Forward[node.b]]"}, "b": {"backend": "EntersPlain"}}
    for config in (chain, called):
        with headrace.pipe(config) as pipe:
            answer, ident = in_thread(lambda: way(pipe, {"data": 1}), main=main)
            assert answer["result"] == [("plain", 1, ident)]
    assert len(log.calls) == 2


def test_what_enter_raises_fails_that_request_alone(log):
    with headrace.pipe({"backend": "EntersStatic", "max": 4}) as pipe:
        with pytest.raises(RequestsFailed) as failed:
            pipe([{"data": 1}, {"data": "bad"}, {"data": "wrong"}, {"data": 2}])
        none, bad, wrong, also_none = failed.value.errors
        assert none is also_none is None
        assert isinstance(bad, BackendError)
        assert isinstance(bad.__cause__, ValueError)
        assert (bad.node, bad.backend) == ("main", "EntersStatic")
        assert "no such stream" in str(bad)
        assert isinstance(wrong, InputError)
        assert (wrong.node, wrong.key) == ("main", "data")
        request = {"data": "bad", "result": "old"}
        with pytest.raises(BackendError, match="no such stream"):
            pipe(request)
        assert request == {"data": "bad"}
        with pytest.raises(BackendError, match="no such stream"):
            pipe.submit({"data": "bad"}).result(timeout=60)
        stats = pipe.stats()["nodes"]["main"]
        assert (stats["submitted"], stats["ok"]) == (6, 2)
        assert stats["failed"] == {"backend": 3, "input": 1}


def test_requests_of_several_callers_in_one_batch_keep_their_own(log):
    entered, leave = threading.Event(), threading.Event()

    class Waits(headrace.Backend):
        def init(self, options, context):
            self.context = context

        @staticmethod
        def enter(request):
            return log.note("waits", request)

        def forward(self, batch):
            if batch[0]["data"] == "first":
                entered.set()
                assert leave.wait(60)
            for request in batch:
                request["result"] = (len(batch), self.context.request.entered(request))

    headrace.register("Waits", Waits, replace=True)
    with headrace.pipe({"backend": "Waits", "max": 4}) as pipe, ThreadPoolExecutor(1) as pool:
        first = pool.submit(pipe, {"data": "first"})
        assert entered.wait(60)
        others = [pipe.submit({"data": k}) for k in range(3)]
        leave.set()
        me = threading.get_ident()
        answers = [one.result(timeout=60)["result"] for one in others]
        assert answers == [(3, ("waits", k, me)) for k in range(3)]
        assert first.result(timeout=60)["result"][1][:2] == ("waits", "first")


def test_a_plain_class_may_have_it_too_and_outside_of_a_pipeline_nothing_has_entered():
    class Plain:
        def init(self, options, context):
            self.context = context

        @staticmethod
        def enter(request):
            return "entered"

        def forward(self, batch):
            for request in batch:
                request["result"] = self.context.request.entered(request)

    headrace.register("PlainEnters", Plain, replace=True)
    with headrace.pipe({"backend": "PlainEnters"}) as pipe:
        assert pipe({"data": 1})["result"] == "entered"
    assert headrace.InitContext().request.entered({"data": 1}) is None


def test_a_function_that_two_classes_share_is_asked_once(log):
    class Base(log.reports):
        @staticmethod
        def enter(request):
            return log.note("base", request)

    headrace.register("SharesOne", type("SharesOne", (Base,), {}))
    headrace.register("SharesTwo", type("SharesTwo", (Base,), {}))
    with headrace.pipe({"backend": "S[SharesOne,SharesTwo]"}) as pipe:
        for ask in WAYS.values():
            log.calls.clear()
            first, second = ask(pipe, {"data": 1})["result"]
            assert log.calls == [first] == [second]


def test_requests_of_one_call_share_a_dict(log):
    class Shares(log.reports):
        @staticmethod
        def enter(request, *, call=None):
            call[request["data"]] = True
            return len(call)

    headrace.register("Shares", Shares)
    with headrace.pipe({"backend": "Shares"}) as pipe:
        two = [{"data": 1}, {"data": 2}]
        assert [one["result"] for one in pipe(two)] == [[1], [2]]
        assert [one.result(60)["result"] for one in pipe.submit(two)] == [[1], [2]]
        assert pipe({"data": 3})["result"] == [1]
