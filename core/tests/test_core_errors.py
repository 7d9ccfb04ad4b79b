"""The tree of errors: classes, codes, texts, and that every one can be pickled."""

from __future__ import annotations

import asyncio
import copy
import pickle
import traceback
from concurrent.futures import CancelledError

import pytest

import headrace
from headrace import errors
from headrace.errors import Problem

TREE = {
    "ConfigError": ("config", "HeadraceError", ValueError),
    "PluginError": ("plugin", "HeadraceError"),
    "PluginLoadError": ("plugin_load", "PluginError"),
    "MissingDependencyError": ("missing_dependency", "PluginError", ImportError),
    "SetupError": ("setup", "HeadraceError"),
    "RequestError": ("request", "HeadraceError"),
    "InputError": ("input", "RequestError", ValueError),
    "BackendError": ("backend", "RequestError"),
    "ContractError": ("contract", "BackendError"),
    "NoResultError": ("no_result", "BackendError"),
    "BatchRangeError": ("batch_range", "RequestError"),
    "LimitError": ("limit", "RequestError"),
    "OverloadedError": ("overloaded", "RequestError"),
    "DeadlineExceededError": ("deadline", "RequestError", TimeoutError),
    "RequestsFailed": ("requests_failed", "HeadraceError"),
    "ClosedError": ("closed", "HeadraceError", RuntimeError),
}

SAMPLES = [
    errors.ConfigError(Problem("c", "m", "f", "p", (1, 2), "s", "text", "h")),
    errors.PluginError("w", distribution="d", hint="h"),
    errors.PluginLoadError("w"),
    errors.MissingDependencyError("w", hint="pip install x"),
    errors.SetupError("w", node="n", backend="b", instance=1, hint="h"),
    errors.RequestError("w", node="n", abandoned=True),
    errors.InputError("w", key="k", expected="e", got="g", node="n"),
    errors.BackendError("w", backend="b"),
    errors.ContractError("w"),
    errors.NoResultError("w"),
    errors.BatchRangeError("w", weight=9, min=1, max=4),
    errors.LimitError("w", limit=3),
    errors.OverloadedError("w", queue_size=3, waiting=3),
    errors.DeadlineExceededError("w"),
    errors.RequestsFailed([None, ValueError("x")]),
    errors.ClosedError("w"),
]


@pytest.mark.parametrize("cls", [errors.SetupError, errors.BackendError, errors.InputError])
def test_the_args_of_an_error_hold_what_went_wrong_however_it_was_given(cls):
    assert cls(what="w").args == cls("w").args == ("w",)


@pytest.mark.parametrize(("name", "expected"), TREE.items())
def test_every_class_has_its_stable_code_and_its_place_in_the_tree(name, expected):
    code, *parents = expected
    assert getattr(errors, name).code == code
    for parent in parents:
        cls = getattr(errors, parent) if isinstance(parent, str) else parent
        assert issubclass(getattr(errors, name), cls)


class RaisingError(errors.BackendError):
    @property
    def code(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NoResultError("w"), "no_result"),
        (RaisingError("w"), "backend"),
        (ValueError("w"), "backend"),
        (CancelledError(), "cancelled"),
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "interrupt"),
        (SystemExit(1), "interrupt"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_any_error_has_a_code(error, code):
    assert errors.code_of(error) == code


def test_the_repr_of_an_error_of_several_things_tells_them():
    assert repr(errors.ConfigError("no such node")) == "ConfigError('no such node')"
    failed = errors.RequestsFailed([None, errors.InputError("no picture")])
    assert repr(failed) == f"RequestsFailed({str(failed)!r})"
    assert "item 1: InputError: no picture" in repr(failed)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_can_be_pickled_with_all_it_says(error):
    error.__cause__ = ZeroDivisionError("why")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(again) == repr(error)
    assert {**vars(again), "errors": 0} == {**vars(error), "errors": 0}
    assert isinstance(again.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("name", TREE)
def test_every_error_can_be_made_of_a_text_or_of_nothing(name):
    cls = getattr(errors, name)
    for args in ([], [["busy"]] if name == "RequestsFailed" else ["busy"]):
        error = pickle.loads(pickle.dumps(cls(*args)))
        assert type(error) is cls
        assert error.code == cls.code
        assert "busy" in str(error) or (str(error) and not args)


def test_an_error_that_holds_what_cannot_be_pickled_travels_as_text():
    error = errors.BackendError("w")
    error.__cause__ = type("Local", (Exception,), {})("why")
    again = pickle.loads(pickle.dumps(error))
    assert "Local: why" in str(again.__cause__)


def test_an_error_of_a_class_without_a_name_is_pickled_as_its_base_with_its_code():
    class Blurred(errors.InputError):
        code = "blurred"

    failed = errors.RequestsFailed([Blurred("too blurred", key="data", node="n"), None])
    error, none = pickle.loads(pickle.dumps(failed)).errors
    assert (type(error), none) == (errors.InputError, None)
    assert (errors.code_of(error), error.key) == ("blurred", "data")
    assert str(error) == str(failed.errors[0])
    assert type(copy.copy(failed.errors[0])) is Blurred


@pytest.mark.parametrize(
    "error",
    [errors.InputError("w", key="k", node="n"), errors.DeadlineExceededError("w", node="n")],
    ids=lambda e: type(e).__name__,
)
def test_a_copy_is_a_new_object_that_says_the_same(error):
    error.__cause__ = ValueError("x")
    twin = error.copy()
    assert twin is not error
    assert (str(twin), repr(twin), twin.__cause__) == (str(error), repr(error), error.__cause__)


def test_the_place_stands_in_the_first_line_of_an_error_around_another():
    error = errors.SetupError("ValueError: one\ntwo", node="n", hint="Mend it.")
    assert str(error) == "ValueError: one [node 'n']\ntwo\n  Mend it."


def test_one_problem_is_shown_by_itself_and_several_are_numbered():
    first = Problem("c", "first", file="f.toml", path="n.k", span=(2, 3), text="S[X]")
    second = Problem("c", "second", suggestion="X", hint="Do it.")
    assert str(errors.ConfigError(first)) == "f.toml: n.k: first\n    S[X]\n      ^"
    assert str(errors.ConfigError([first, second])) == (
        "2 problems in the configuration\n"
        "1. f.toml: n.k: first\n    S[X]\n      ^\n"
        "2. second\n  Did you mean 'X'?\n  Do it."
    )


def test_a_problem_is_plain_data():
    problem = Problem("c", "m", path="a.b", span=(0, 1))
    known = {"code": "c", "message": "m", "path": "a.b", "span": [0, 1]}
    unknown = ("file", "suggestion", "text", "hint", "line", "column")
    assert problem.to_dict() == {**known, **dict.fromkeys(unknown)}


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


class Unbuildable(headrace.Backend):
    """Fails a few frames below its init."""

    class Options(headrace.Options):
        wrapped: bool = False

    def init(self, options, context):
        try:
            self.find_device()
        except OSError as error:
            if options.wrapped:
                raise errors.SetupError("there is none") from error
            raise

    def find_device(self):
        raise OSError("no device")

    def forward(self, batch):
        """Never called."""


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_traceback_shows_the_call_and_the_backend_and_nothing_between(wrapped):
    headrace.register("Unbuildable", Unbuildable, replace=True)
    config = {"backend": "S[Identity,S[Unbuildable]]", "wrapped": wrapped}
    with pytest.raises(errors.SetupError) as caught:
        headrace.pipe(config)
    here = "test_a_traceback_shows_the_call_and_the_backend_and_nothing_between"
    assert frames(caught.value) == [here, "pipe", *(["init"] if wrapped else [])]
    assert frames(caught.value.__cause__) == ["init", "find_device"]


def test_a_traceback_of_a_wrong_configuration_is_short():
    with pytest.raises(errors.ConfigError) as caught:
        headrace.pipe({"backend": "Idntity"})
    assert frames(caught.value) == ["test_a_traceback_of_a_wrong_configuration_is_short", "pipe"]


@pytest.mark.parametrize(
    "request_of",
    [lambda long: {"node_name": long, "data": 1}, lambda long: {long: 1, "node_name": "a"}],
    ids=["value", "key"],
)
def test_what_came_is_shortened_in_the_text_of_an_error(request_of):
    config = {"a": {"backend": "Identity"}, "b": {"backend": "Identity"}}
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError) as caught:
        pipe(request_of("long" * 100_000))
    assert len(str(caught.value)) < 1000
    wrong = errors.InputError("wrong", expected="a word", got=repr("é" * 100_000))
    assert str(wrong).startswith("wrong: expected a word, got 'éé")
    assert str(errors.InputError("wrong", got="a text")) == "wrong: got a text"
    assert len(str(wrong)) < 200
    assert len(pickle.loads(pickle.dumps(wrong)).got) > 100_000


def test_a_long_line_is_shown_around_the_place():
    problem = errors.Problem("c", "m", text="a" * 200 + "bb" + "c" * 200, span=(200, 202))
    _, line, caret = problem.render().splitlines()
    assert line == f"    …{'a' * 50}bb{'c' * 48}…"
    assert caret == f"     {' ' * 50}^^"


@pytest.mark.parametrize(("length", "shown"), [(400, "p" * 400), (401, "p" * 60 + "…" + "p" * 20)])
def test_a_long_word_is_cut_in_its_middle(length, shown):
    assert errors.Problem("c", "m", path="p" * length).render() == f"{shown}: m"


OF_A_PLUGIN = {"what": "w", "distribution": None, "hint": None}
OF_A_PLACE = {"what": "w", "node": None, "backend": None, "instance": None, "hint": None}
OF_A_REQUEST = {**OF_A_PLACE, "abandoned": False}
ATTRIBUTES = {
    **dict.fromkeys(("PluginError", "PluginLoadError"), OF_A_PLUGIN),
    "MissingDependencyError": {**OF_A_PLACE, **OF_A_PLUGIN},
    "SetupError": OF_A_PLACE,
    **dict.fromkeys(("RequestError", "BackendError", "ContractError"), OF_A_REQUEST),
    **dict.fromkeys(("NoResultError", "DeadlineExceededError"), OF_A_REQUEST),
    "InputError": {**OF_A_REQUEST, "key": None, "expected": None, "got": None},
    "BatchRangeError": {**OF_A_REQUEST, "weight": 0, "min": 1, "max": None},
    "LimitError": {**OF_A_REQUEST, "limit": 0},
    "OverloadedError": {**OF_A_REQUEST, "queue_size": 0, "waiting": 0},
    "ClosedError": {"abandoned": False, "_passes": False},
}


@pytest.mark.parametrize(("name", "attributes"), ATTRIBUTES.items())
def test_what_an_error_does_not_know_has_the_documented_default(name, attributes):
    error = getattr(errors, name)("w")
    assert {key: getattr(error, key) for key in attributes} == attributes


MORE = "Allow more time (timeout, timeout_ms), or more instances."


def test_a_message_of_a_deadline_says_whether_a_backend_ran(gate, client, waiting, expire):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        runs = gate.entered(client(pipe, {"data": "runs"}, timeout=60))
        waits = client(pipe, {"data": "waits"}, timeout=60)
        waiting(pipe, 1)
        expire(pipe, "runs", "waits")
        ran = f"over while a backend ran on it [node 'main']\n  Do not use its dict again. {MORE}"
        for one, said in ((runs, ran), (waits, f"over while it waited [node 'main']\n  {MORE}")):
            with pytest.raises(errors.DeadlineExceededError) as caught:
                one.outcome()
            assert str(caught.value).endswith(said)
            assert (caught.value.abandoned, caught.value.node) == (one is runs, "main")
        gate.open()


@pytest.mark.parametrize(("most", "waits"), [(1, "1 request waits"), (2, "2 requests wait")])
def test_a_message_of_overload_says_how_many_wait(most, waits, gate):
    with headrace.pipe({"backend": "Gate", "queue_size": most, "queue_full": "reject"}) as pipe:
        gate.entered(pipe.submit({"data": 0}))
        futures = [pipe.submit({"data": n}) for n in range(most + 1)]
        error = futures[-1].exception(60)
        said = f"the queue is full: {waits}, queue_size is {most}"
        advice = "Send fewer at a time, raise queue_size, or set queue_full = 'wait'."
        assert str(error) == f"{said} [node 'main']\n  {advice}"
        gate.open()


@pytest.mark.parametrize(
    ("reads", "expected", "written"),
    [((), "a dict", "{}"), (("mask",), "a dict with the key 'mask'", '{"mask": x}')],
)
def test_what_is_no_dict_is_told_what_was_expected(reads, expected, written):
    class Raises(headrace.Backend):
        def forward(self, batch):
            raise KeyError

    Raises.reads = reads
    headrace.register(Raises, replace=True)
    with headrace.pipe({"backend": "Raises"}) as pipe:
        with pytest.raises(errors.InputError) as caught:
            pipe("x")
        told = f": expected {expected}, got str [node 'main']\n  Write pipe({written})."
        assert str(caught.value).endswith(told)
        with pytest.raises(errors.BackendError, match=r"^Raises raised KeyError \["):
            pipe({"mask": 1})


def test_a_call_that_would_wait_for_its_own_instance_says_so(gate):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        gate.calls["outer"] = lambda: pipe({"data": "inner"})
        gate.open()
        held = "deadlock: a backend called its own pipeline, and waits for the instance it holds"
        with pytest.raises(errors.ContractError, match=rf"^{held} \[node 'main'"):
            pipe({"data": "outer"})


def test_a_public_name_that_is_wrong_is_an_error_from_which_python_finds_the_nearest():
    with pytest.raises(AttributeError, match="Pipline") as caught:
        _ = headrace.Pipline
    assert (caught.value.name, caught.value.obj) == ("Pipline", headrace)
