"""The parts of the kit: rules, watched requests, values that are compared and kept, memory."""

from __future__ import annotations

import gc
import io
import locale
import logging
import math
import os
import sys
import threading
import types
from pathlib import Path

import pytest
from pydantic import Field

import headrace
from headrace.errors import BackendError, InputError, SetupError
from headrace_testing import BackendConformance, certify
from headrace_testing.conformance import ConformanceRun, rules
from headrace_testing.conformance.backend_rules import docs as rules_docs
from headrace_testing.conformance.backend_rules import process as rules_process
from headrace_testing.conformance.memory import shares_memory
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.settings import restore, settings
from headrace_testing.conformance.values import difference, kept
from headrace_testing.conformance.watching import DECOY, WatchedRequest


def test_every_rule_has_an_identifier_a_reason_and_a_text():
    for identifier, rule in rules().items():
        assert identifier == rule.id
        assert identifier.replace("-", "").isalpha()
        assert identifier.islower()
        assert rule.reason.endswith(".")
        assert len(rule.text) > 40
        assert set(rule.needs) < set(rules())


def test_where_python_has_dropped_the_docstrings_the_backend_is_not_blamed(monkeypatch):
    dropped = types.SimpleNamespace(flags=types.SimpleNamespace(optimize=2))
    monkeypatch.setattr(rules_docs, "sys", dropped)
    with pytest.raises(Broken, match="without -OO and PYTHONOPTIMIZE=2"):
        rules_docs.docstring_sections.check(types.SimpleNamespace(cls=headrace.Backend))


def test_names_that_the_interpreter_keeps_are_no_memory_of_requests():
    tracemalloc = pytest.importorskip("tracemalloc")
    with rules_process._traced(tracemalloc):
        before = rules_process._traced_bytes(tracemalloc)
        for name in [f"read_{number}" for number in range(4096)]:
            assert getattr(before, name, None) is None
        del name
        # Names that are kept are 30 kB and more. Threads of earlier tests may allocate a little meanwhile.
        assert rules_process._traced_bytes(tracemalloc) - before < 10_000


def test_an_object_of_plain_python_is_a_backend_too():
    class Plain:
        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"]

    headrace.register("PlainOfConformance", Plain, replace=True)

    class PlainConformance(BackendConformance):
        expression = "PlainOfConformance"

        def make_item(self, k):
            return {"data": k}

    found = {v.id: v.outcome for v in certify(PlainConformance).rules}
    assert found["docstring-sections"] == "failed"
    assert found["missing-key"] == "failed"
    assert found["batch-equals-items"] == "passed"
    assert found["imports-lazily"] == "not_applicable"


@pytest.mark.parametrize("look", [
    lambda r: r["a"], lambda r: r.get("a"), lambda r: "a" in r, lambda r: r.setdefault("a", 1),
    lambda r: r.pop("a"), dict, lambda r: {**r}, lambda r: r.copy(), lambda r: list(r.items()),
    lambda r: list(r.values()), lambda r: r | {}, lambda r: r == {"a": 1}, lambda r: dict(**r),
])  # fmt: skip
def test_every_way_of_reading_a_request_is_noticed(look):
    request = WatchedRequest(a=1)
    look(request)
    assert request.read == {"a"}
    assert isinstance(request, dict)


@pytest.mark.parametrize("change", [
    lambda r: r.update(a=2), lambda r: r.update({"a": 2}), lambda r: r.__setitem__("a", 2),
    lambda r: r.__ior__({"a": 2}), lambda r: r.pop("a"), lambda r: r.__delitem__("a"),
    lambda r: r.clear(), lambda r: r.popitem(),
])  # fmt: skip
def test_every_way_of_changing_a_request_is_noticed(change):
    request = WatchedRequest(a=1)
    change(request)
    assert request.written == {"a"}


def test_what_was_written_first_is_not_read():
    request = WatchedRequest({"a": 1, DECOY: 2})
    request["b"] = 3
    assert request["b"] == 3
    assert (request.read, request.written, request.walked) == (set(), {"b"}, False)
    dict(request)
    assert request.walked


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        (1, 1, False),
        (1, 1.0, True),
        (True, 1, True),
        ("a", "b", True),
        (float("nan"), float("nan"), False),
        (1.0, 1.0 + 1e-9, False),
        (1.0, 1.1, True),
        (float("inf"), 1.0, True),
        ([1, [2.0]], [1, [2.0]], False),
        ([1, 2], (1, 2), True),
        ([1], [1, 2], True),
        ({"a": 1}, {"a": 1}, False),
        ({"a": 1}, {"b": 1}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, True),
        (b"ab", b"ab", False),
        (memoryview(b"ab"), memoryview(b"ab"), False),
        (memoryview(b"ab"), memoryview(b"ac"), True),
        (None, 0, True),
    ],
)
def test_values_are_compared_by_type_and_content(a, b, differ):
    assert (difference(a, b, rtol=1e-6) is not None) is differ


def test_values_that_hold_themselves_are_compared_as_far_as_they_go():
    one, other, third = [1], [1], [2]
    for value in (one, other, third):
        value.append(value)
    assert difference(one, other) is None
    assert difference(one, third) == "at 0: 1 and 2"
    assert shares_memory(one, [one])
    assert not shares_memory(one, other)
    assert difference([ValueError(1)], [ValueError(1)]) is None
    assert "give their class an __eq__" in str(difference(object(), object()))


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        (math.nan, math.nan, False),
        (1.0, 1.0 + 1e-9, False),
        (1.0, 1.1, True),
        (1.0, math.nan, True),
    ],
)
def test_numbers_in_arrays_with_fields_are_compared_like_others(a, b, differ):
    numpy = pytest.importorskip("numpy")
    one, other = (numpy.array([(x, 1)], [("score", "f8"), ("box", "i4")]) for x in (a, b))
    assert (difference(one, other, rtol=1e-6) is not None) is differ


def test_numbers_of_an_array_library_share_no_memory():
    numpy = pytest.importorskip("numpy")
    whole = numpy.arange(4.0)
    kept_alive = [whole.sum() for _ in range(50)]
    assert not any(shares_memory(one, whole.sum()) for one in kept_alive)
    assert shares_memory(whole[1:], whole[:2])
    assert shares_memory({"a": [whole]}, (whole,))


def test_arrays_are_compared_by_dtype_shape_and_numbers():
    np = pytest.importorskip("numpy")
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert difference(a, a.copy()) is None
    assert difference(a, a.astype(np.float64)) is not None
    assert difference(a, a.reshape(3, 2)) is not None
    assert difference(a, a + 1) is not None
    assert difference({"x": [a]}, {"x": [a + 1e-7]}, atol=1e-5) is None
    assert difference(np.array(["a", None]), np.array(["a", "b"], object)) is not None
    times = np.array(["2026-01-01", "NaT"], "M8[D]")
    assert difference(times, times.copy()) is None
    assert difference(times, times[::-1]) is not None
    copy = kept({"x": a})
    a[0] = 9
    assert difference(copy, {"x": a}) is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1 or more", (1, None)),
        ("4 or more; items are independent", (4, None)),
        ("One or more items.", (1, None)),
        ("Any number of items.", (1, None)),
        ("1 to 8", (1, 8)),
        ("2-16, see the option", (2, 16)),
        ("1", (1, 1)),
        ("1; one at a time.", (1, 1)),
        ("Exactly 4 rows", None),
        ("exactly 4 items", (4, 4)),
        ("2 to the size of the window", (2, "what words tell")),
        ("Any size.", (1, None)),
        ("Unbounded", (1, None)),
        ("at least 2", (2, None)),
        ("min 2, max unbounded", (2, None)),
        ("min 2, max 8", (2, 8)),
        ("Up to 16 items.", (1, 16)),
        ("At most 16", (1, 16)),
        ("up to ``batch``", (1, "what words tell")),
        ("[1, 8]", (1, 8)),
        ("1..8", (1, 8)),
        ("1..", (1, None)),
        ("[2, inf)", (2, None)),
        ("1 to \u221e", (1, None)),
        (">= 2", (2, None)),
        ("\u2265 1 item", (1, None)),
        ("from 2 on", (2, None)),
        ("from 2", (2, None)),
        ("from 2 to 4", (2, 4)),
        ("from 2, up to 4", (2, 4)),
        ("<= 8", (1, 8)),
        (">= 2, <= 8", (2, 8)),
        ("\u2264 8; any order", (1, 8)),
        ("1, 2 or 4", (1, 1)),
        ("That of what is inside.", None),
        ("10 milliseconds", None),
    ],
)
def test_the_range_in_a_docstring_is_read(text, found):
    from headrace_testing.conformance.backend_rules.docs import _range_of

    assert _range_of(text) == found


DOCSTRINGS = {
    "underlined": """Do something.

Reads
-----
data : number
    What comes.

Batch
-----
Any size.
""",
    "with bullets": """Do something.

Reads:
    - `data` (number): What comes.
Batch:
    - 1 or more
""",
}


@pytest.mark.parametrize("doc", DOCSTRINGS.values(), ids=DOCSTRINGS)
def test_sections_of_other_styles_are_read(doc):
    from headrace_testing.conformance.backend_rules.docs import _range_of, entries, sections

    found = sections(doc)
    assert list(found) == ["Reads", "Batch"]
    assert "data" in entries(found["Reads"])
    assert "What comes." in entries(found["Reads"])["data"]
    assert _range_of(found["Batch"]) == (1, None)


class NamesItsKeysInSentences(headrace.Backend):
    """Return what came.

    Reads: ``data``, which may be anything.
    Writes: the same object as ``result``.
    Batch: any.
    Raises: InputError, without data.
    Source: own.
    """

    def forward(self, batch):
        for request in batch:
            if "data" not in request:
                raise InputError("no data", key="data")
            request["result"] = request["data"]


class ForgetsAKeyInItsSentence(NamesItsKeysInSentences):
    __doc__ = NamesItsKeysInSentences.__doc__.replace("``data``, which", "It")


@pytest.mark.parametrize(
    ("cls", "outcome"),
    [(NamesItsKeysInSentences, "passed"), (ForgetsAKeyInItsSentence, "failed")],
)
def test_a_section_may_name_its_keys_in_a_sentence(cls, outcome):
    headrace.register(cls.__name__, cls, replace=True)
    made = {"expression": cls.__name__, "make_item": lambda self, k: {"data": k}}
    with ConformanceRun(type("Made", (BackendConformance,), made)) as run:
        assert run.verdict("docstring-keys").outcome == outcome
        assert run.verdict("docstring-batch").outcome == "passed"


def test_a_factory_that_gives_no_request_for_a_later_number_is_told_by_that_number():
    made = {"expression": "Identity", "make_item": lambda self, k: {"data": k} if k < 3 else None}
    with ConformanceRun(type("Made", (BackendConformance,), made)) as run:
        assert run.verdict("items").outcome == "passed"
        assert (
            run.verdict("outcomes").detail
            == "make_item(3) gives NoneType, not a dict with text keys"
        )


class TakesArrays(headrace.Backend):
    """Return the array that comes.

    Reads:
        data: An array of any shape and dtype.
    Writes:
        result: The same array.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is no array.
    Source:
        Own.
    """

    def forward(self, batch):
        outcomes = [None] * len(batch)
        for place, request in enumerate(batch):
            if hasattr(request.get("data"), "dtype"):
                request["result"] = request["data"]
            else:
                outcomes[place] = InputError("no array", key="data")
        return outcomes


class SpeaksOfShapesAlone(TakesArrays):
    __doc__ = TakesArrays.__doc__.replace("any shape and dtype", "any shape")


@pytest.mark.parametrize(
    ("cls", "outcome"), [(TakesArrays, "passed"), (SpeaksOfShapesAlone, "failed")]
)
def test_a_key_may_take_arrays_of_any_shape_and_dtype(cls, outcome):
    numpy = pytest.importorskip("numpy")
    headrace.register(cls.__name__, cls, replace=True)
    make_item = lambda self, k: {"data": numpy.full(3, k + 0.5)}  # noqa: E731
    made = {"expression": cls.__name__, "make_item": make_item}
    with ConformanceRun(type("Made", (BackendConformance,), made)) as run:
        assert run.verdict("wrong-shape").outcome == "passed"
        assert run.verdict("wrong-dtype").outcome == outcome


class Constant(headrace.Backend):
    """Return the same number to all.

    Reads:
        Nothing.
    Writes:
        result: 7.
    Batch:
        1 or more

    Raises:
        Nothing.
    Source:
        Own.
    """

    reads = ()
    rerun = True

    def forward(self, batch):
        for request in batch:
            request["result"] = 7


@pytest.mark.parametrize("make", [lambda k: {"data": k}, lambda k: {}], ids=["data", "nothing"])
def test_rules_about_keys_do_not_apply_where_none_is_read(make):
    headrace.register("ConstantOfConformance", Constant, replace=True)

    class ConstantConformance(BackendConformance):
        expression = "ConstantOfConformance"

        def make_item(self, k):
            return make(k)

    certificate = certify(ConstantConformance)
    found = {v.id: v.detail for v in certificate.rules if v.outcome != "passed"}
    assert certificate.certified, found
    about_keys = {"missing-key", "wrong-type", "wrong-shape", "wrong-dtype", "bad-item-alone"}
    about_imports = {"imports-lazily", "missing-library"}  # it is a class of a test module
    assert set(found) == about_keys | about_imports | {"right-answers"}


class OddNumberError(InputError):
    """There is no even number."""


class HalfOfConformance(headrace.Backend):
    """Half of an even number.

    Reads:
        data: An even number.
    Writes:
        result: Half of it.
    Batch:
        1 or more

    Raises:
        OddNumberError: ``data`` is missing or no even number.
    Source:
        Own.
    """

    def forward(self, batch):
        outcomes = [None] * len(batch)
        for index, request in enumerate(batch):
            if type(request.get("data")) is int and not request["data"] % 2:
                request["result"] = request["data"] // 2
            else:
                outcomes[index] = OddNumberError("no even number", key="data")
        return outcomes


@pytest.mark.parametrize(
    ("named", "outcome"),
    [("OddNumberError", "passed"), ("InputError", "passed"), ("An error", "failed")],
)
def test_raises_may_name_an_input_error_of_its_own(named, outcome):
    name = "HalfOfConformance" + named.replace(" ", "")
    doc = HalfOfConformance.__doc__.replace("OddNumberError", named)
    headrace.register(name, type(name, (HalfOfConformance,), {"__doc__": doc}), replace=True)
    made = {"expression": name, "make_item": lambda self, k: {"data": 2 * k}}
    with ConformanceRun(type("Made", (BackendConformance,), made)) as run:
        assert run.verdict("docstring-raises").outcome == outcome


class AddsWhatStandsInAFile(headrace.Backend):
    """Add the number of a file.

    Reads:
        data: An int.
    Writes:
        result: The sum.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no int.
    Source:
        Own.
    """

    class Options(headrace.Options):
        """The file."""

        file: Path = Field(description="Where the number stands.")

    rerun = True

    def init(self, options, context):
        self.number = int(options.file.read_text(encoding="utf-8"))

    def forward(self, batch):
        for request in batch:
            if type(request.get("data")) is not int:
                raise InputError("no int", key="data")
            request["result"] = request["data"] + self.number


def test_options_that_need_a_file_are_made_once(tmp_path):
    headrace.register("AddsWhatStandsInAFile", AddsWhatStandsInAFile, replace=True)
    made = []

    class Kit(BackendConformance):
        expression = "AddsWhatStandsInAFile"

        def make_options(self):
            made.append(tmp_path / "number.txt")
            made[-1].write_text("7", encoding="utf-8")
            return {"file": str(made[-1])}

        def make_item(self, k):
            return {"data": k}

        def expected(self, k):
            return 7 + k

    found = certify(Kit)
    assert {v.id: v.detail for v in found.rules if not v.good} == {}
    assert found.certified
    assert (len(made), found.options) == (1, {"file": str(tmp_path / "number.txt")})


class PartOfConformance(headrace.Backend):
    """Adds one, after another part has shown that it may.

    Reads:
        data: A number.
    Writes:
        result: The number and one.
    Batch:
        1 or more.

    Raises:
        InputError: There is no data.
        BackendError: Nothing was shown.
    Source:
        own
    """

    rerun = True
    broken = False

    def init(self, options, context):
        if not context.store.scope.get("shown", False):
            raise SetupError("it works only inside IoC[ShowOfConformance,...]")

    def forward(self, batch):
        outcomes = []
        for request in batch:
            right = isinstance(request.get("data"), int)
            outcomes.append(None if right else InputError("there is no number", key="data"))
            if right:
                request["result"] = request["data"] + (len(batch) if self.broken else 1)
        return outcomes


class ShowOfConformance(headrace.Backend):
    """Shows that the other may; it is never called."""

    reads = writes = ()

    def init(self, options, context):
        context.store.scope.get_or_create("shown", lambda: True)

    def forward(self, batch):
        raise BackendError("it is never called")


class WholeConformance(BackendConformance):
    __test__ = False
    expression = "IoC[ShowOfConformance,PartOfConformance;PartOfConformance]"
    options = {"max": 4}  # noqa: RUF012

    def make_item(self, k):
        return {"data": k}


class InsideConformance(WholeConformance):
    expression = "PartOfConformance"
    inside = WholeConformance


@pytest.mark.parametrize("broken", [False, True])
def test_a_part_is_judged_by_itself_and_in_the_whole(broken, monkeypatch):
    for cls in (PartOfConformance, ShowOfConformance):
        headrace.register(cls.__name__, cls, replace=True)
    monkeypatch.setattr(PartOfConformance, "broken", broken)
    found = certify(InsideConformance)
    outcomes = {v.id: v for v in found.rules}
    assert found.backend == "PartOfConformance"
    assert outcomes["docstring-sections"].detail == ""
    assert outcomes["order-kept"].detail.startswith("judged in IoC[ShowOfConformance,")
    wrong = {v.id: v.detail for v in found.rules if not v.good}
    assert found.certified is not broken, wrong
    if broken:
        assert set(wrong) >= {"batch-equals-items"}


def test_what_the_whole_lacks_the_part_lacks(monkeypatch):
    for cls in (PartOfConformance, ShowOfConformance):
        headrace.register(cls.__name__, cls, replace=True)
    monkeypatch.setattr(WholeConformance, "unavailable", lambda self: "no device")
    found = certify(InsideConformance)
    assert (found.unavailable, found.certified) == ("no device", False)
    outcomes = {v.id: (v.outcome, v.detail) for v in found.rules}
    assert outcomes["runs"] == ("not_judged", f"judged in {WholeConformance.expression}: no device")
    assert outcomes["docstring-keys"][0] == "passed"


CHANGES = {
    "mask of new files": lambda: os.umask(0o077),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "POSIX"),
    "hooks of exceptions and of the prompt": lambda: setattr(threading, "excepthook", print),
    "stream of stdin, stdout or stderr": lambda: setattr(sys, "stderr", io.StringIO()),
    "limit of logging.disable": lambda: logging.disable(logging.INFO),
    "thresholds of the garbage collector": lambda: gc.set_threshold(12345),
    "size of new threads' stacks": lambda: threading.stack_size(1 << 20),
    "trace functions of new threads": lambda: threading.setprofile(print),
    "loggers of Headrace": lambda: setattr(logging.getLogger("headrace"), "disabled", True),
    "limits of the system": lambda: lower("RLIMIT_NOFILE"),
}


def lower(name):
    """Lower the soft limit of the system by one."""
    import resource

    soft, hard = resource.getrlimit(getattr(resource, name))
    resource.setrlimit(getattr(resource, name), (soft - 1, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells all of them")
@pytest.mark.parametrize("name", CHANGES)
def test_what_belongs_to_the_process_is_read_and_put_back(name):
    present = settings()
    try:
        if name == "locale":
            locale.setlocale(locale.LC_ALL, "C.UTF-8")
        before = settings()
        CHANGES[name]()
        after = settings()
        restore(before)
        again = settings()
    finally:
        restore(present)
    assert [key for key in before if before[key] != after[key]] == [name]
    assert again == before


@pytest.mark.parametrize(
    ("attributes", "error", "said"),
    [
        ({"options": [1]}, TypeError, r"options of C is a dict, got \[1\]"),
        (
            {"expected_failures": ["order-kept"]},
            TypeError,
            r"expected_failures of C is a dict, got \['order-k",
        ),
        ({"atol": "much"}, TypeError, "atol of C is a number, got 'much'"),
        ({"model_brings": "xgboost"}, TypeError, "model_brings of C is a tuple of names, got 'xgb"),
        ({"atol": math.nan}, ValueError, "atol of C is finite and at least 0, got nan"),
        ({"rtol": math.inf}, ValueError, "rtol of C is finite and at least 0, got inf"),
        ({"rtol": -1}, ValueError, "rtol of C is finite and at least 0, got -1"),
        ({"limit_s": 0}, ValueError, "limit_s of C is more than 0, got 0"),
        ({"options": {"backend": "Identity"}}, ValueError, "options of C has the key 'backend'"),
    ],
)
def test_a_class_with_attributes_that_say_nothing_or_something_else_is_refused(
    attributes, error, said
):
    with pytest.raises(error, match=said):
        certify(type("C", (BackendConformance,), {"expression": "Identity", **attributes}))


@pytest.mark.parametrize("wrong", ["Identity", int, BackendConformance()])
def test_what_is_no_conformance_class_is_refused(wrong):
    with pytest.raises(TypeError, match=r"is a subclass of headrace_testing\.BackendConformance"):
        certify(wrong)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        *(({"expression": wrong}, f"got {wrong!r}") for wrong in ("", 3, None)),
        *(
            (
                {"expression": "Identity", "make_options": lambda self, made=made: made},
                f"make_options gives {made!r}, which is no dict of keys",
            )
            for made in (None, {"backend": "Identity"})
        ),
    ],
)
def test_an_expression_or_options_that_are_none_break_the_first_rule(attributes, said):
    certificate = certify(type("C", (BackendConformance,), attributes))
    assert not certificate.certified
    assert certificate.rules[0].id == "resolves"
    assert said in certificate.rules[0].detail
