"""The tree of errors: classes, codes, texts, and that every one can be pickled."""

from __future__ import annotations

import pickle
import traceback

import pytest

import headrace
from headrace import errors
from headrace.errors import Problem

PARENTS = {
    "ConfigError": ("HeadraceError", ValueError),
    "PluginError": ("HeadraceError",),
    "PluginLoadError": ("PluginError",),
    "MissingDependencyError": ("PluginError", ImportError),
    "SetupError": ("HeadraceError",),
    "RequestError": ("HeadraceError",),
    "InputError": ("RequestError", ValueError),
    "BackendError": ("RequestError",),
    "ContractError": ("BackendError",),
    "NoResultError": ("BackendError",),
    "BatchRangeError": ("RequestError",),
    "LimitError": ("RequestError",),
    "RequestNotFoundError": ("RequestError", KeyError),
    "OverloadedError": ("RequestError",),
    "DeadlineExceededError": ("RequestError", TimeoutError),
    "RequestsFailed": ("HeadraceError",),
    "ClosedError": ("HeadraceError", RuntimeError),
}

CODES = {
    "InputError": "input",
    "BackendError": "backend",
    "ContractError": "contract",
    "NoResultError": "no_result",
    "BatchRangeError": "batch_range",
    "LimitError": "limit",
    "OverloadedError": "overloaded",
    "DeadlineExceededError": "deadline",
    "ClosedError": "closed",
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
    errors.RequestNotFoundError("r"),
    errors.OverloadedError("w", queue_size=3, waiting=3),
    errors.DeadlineExceededError("w"),
    errors.RequestsFailed([None, ValueError("x")]),
    errors.ClosedError("w"),
]


@pytest.mark.parametrize(("name", "parents"), PARENTS.items())
def test_every_class_stands_in_its_place_of_the_tree(name, parents):
    for parent in parents:
        assert issubclass(
            getattr(errors, name), getattr(errors, parent) if isinstance(parent, str) else parent
        )


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_codes_are_stable(name, code):
    assert getattr(errors, name).code == code


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_every_error_can_be_pickled_with_all_it_says(error):
    error.__cause__ = ZeroDivisionError("why")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(again) == repr(error)
    assert {k: v for k, v in vars(again).items() if k != "errors"} == {
        k: v for k, v in vars(error).items() if k != "errors"
    }
    assert isinstance(again.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("name", PARENTS)
def test_every_error_can_be_made_of_a_text_or_of_nothing(name):
    cls = getattr(errors, name)
    for args in ([], [["busy"]] if name == "RequestsFailed" else ["busy"]):
        error = pickle.loads(pickle.dumps(cls(*args)))
        assert type(error) is cls
        assert error.code == cls.code
        assert "busy" in str(error) or not args


def test_an_error_that_holds_what_cannot_be_pickled_travels_as_text():
    error = errors.BackendError("w")
    error.__cause__ = type("Local", (Exception,), {})("why")
    again = pickle.loads(pickle.dumps(error))
    assert "Local: why" in str(again.__cause__)


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


def test_one_problem_is_shown_by_itself_and_several_are_numbered():
    first = Problem("c", "first", file="f.toml", path="n.k", span=(2, 3), text="S[X]")
    second = Problem("c", "second", suggestion="X", hint="Do it.")
    assert str(errors.ConfigError(first)) == "f.toml: n.k: first\n    S[X]\n      ^"
    assert str(errors.ConfigError([first, second])) == (
        "2 problems in the configuration\n"
        "1. f.toml: n.k: first\n    S[X]\n      ^\n"
        "2. second\n  Did you mean 'X'?\n  Do it."
    )


def test_a_long_text_is_cut_around_the_place():
    text = "A" * 500 + "X" + "B" * 500
    shown, caret = Problem("c", "m", span=(500, 501), text=text).render().splitlines()[1:]
    assert len(shown) < 120
    assert shown[caret.index("^")] == "X"


def test_a_problem_is_plain_data():
    problem = Problem("c", "m", path="a.b", span=(0, 1))
    assert problem.to_dict() == {
        "code": "c",
        "message": "m",
        "file": None,
        "path": "a.b",
        "span": (0, 1),
        "suggestion": None,
        "text": None,
        "hint": None,
        "line": None,
        "column": None,
    }


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
    with headrace.pipe({"backend": "Identity"}) as pipe, pytest.raises(errors.SetupError) as caught:
        pipe.reload("main", config)
    assert frames(caught.value) == [here, "reload", *(["init"] if wrapped else [])]


def test_a_traceback_of_a_wrong_configuration_is_short():
    with pytest.raises(errors.ConfigError) as caught:
        headrace.pipe({"backend": "Idntity"})
    assert frames(caught.value) == ["test_a_traceback_of_a_wrong_configuration_is_short", "pipe"]


def test_what_came_is_told_without_what_was_expected():
    assert str(errors.InputError("wrong", got="a text")) == "wrong: got a text"
    assert str(errors.InputError("wrong", expected="e", got="g")) == "wrong: expected e, got g"


def test_a_long_line_is_shown_around_the_place():
    problem = errors.Problem("c", "m", text="a" * 200 + "bb" + "c" * 200, span=(200, 202))
    _, line, caret = problem.render().splitlines()
    assert line == f"    …{'a' * 50}bb{'c' * 48}…"
    assert caret == f"     {' ' * 50}^^"


@pytest.mark.parametrize(("length", "shown"), [(400, "p" * 400), (401, "p" * 60 + "…" + "p" * 20)])
def test_a_long_word_is_cut_in_its_middle(length, shown):
    assert errors.Problem("c", "m", path="p" * length).render() == f"{shown}: m"
