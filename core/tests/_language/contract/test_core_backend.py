"""The backend contract, as core enforces it."""

from __future__ import annotations

import json
import pickle
import traceback
from math import inf

import pytest

import headrace
from headrace import InitContext
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ContractError,
    InputError,
    MissingDependencyError,
    RequestsFailed,
    SetupError,
)


def ready(forward=None, **body):
    """Make a backend that is initialised."""
    attributes = {**body, **({"forward": forward} if forward is not None else {})}
    made = type("Made", (headrace.Backend,), attributes)()
    made._start(made.Options(), InitContext(node_name="n", instance_index=2))
    return made


def echo(self, batch):
    for request in batch:
        request["result"] = request["data"]


def requests(*data, **keys):
    return [{"data": d, **keys} for d in data]


def raising(error):
    def forward(self, batch):
        raise error

    return forward


def _refusal(backend):
    (error,) = backend(requests(1))
    assert isinstance(error, ContractError)
    return str(error)


def test_an_author_may_call_init_and_close_of_one_backend_alone():
    class Base(headrace.Backend):
        max = 4

        def init(self, options, context):
            self.factor, self.max = options.factor, 2

    class Scale(Base):
        class Options(headrace.Options):
            factor: int = 1

        def init(self, options, context):
            super().init(options, context)

        def forward(self, batch):
            for request in batch:
                request["result"] = self.factor * request["data"]

    backend = Scale()
    backend.init(options=Scale.Options(factor=3), context=InitContext())
    batch = requests(1, 2)
    assert backend(batch) is None
    assert [r["result"] for r in batch] == [3, 6]
    assert [type(e) for e in backend(requests(1, 2, 3))] == [BatchRangeError] * 3  # as init said
    backend.close()


def _sets_no_range(self, options, context):
    self.min, self.max = 3, 2


def test_an_empty_batch_is_no_call():
    assert ready(raising(ValueError()))([]) is None


def test_an_exception_is_an_outcome_of_its_own_for_each_item():
    error = KeyError("x")
    first, second = ready(raising(error))(requests(1, 2))
    assert type(first) is type(second) is BackendError
    assert first is not second
    assert first.__cause__ is second.__cause__ is error
    assert (first.node, first.backend, first.instance) == ("n", "Made", 2)


def test_an_input_error_passes_unwrapped_with_the_node_filled_in():
    (outcome,) = ready(raising(InputError("w", key="k")))(requests(1))
    assert type(outcome) is InputError
    assert (outcome.node, outcome.key) == ("n", "k")


def test_single_items_fail_by_a_list_with_an_exception_or_none_each():
    made = ready(lambda self, batch: [None, ValueError("x")])
    first, second = made(requests(1, 2))
    assert first is None
    assert isinstance(second.__cause__, ValueError)
    assert ready(lambda self, batch: [None, None])(requests(1, 2)) is None


@pytest.mark.parametrize(
    "value",
    [[], [None], [None] * 3, (None, None), [None, 1], [None, KeyboardInterrupt()], 0, True, {}],
)
def test_any_other_value_is_a_contract_error_for_all(value):
    found = ready(lambda self, batch: value)(requests(1, 2))
    assert [type(e) for e in found] == [ContractError, ContractError]


def test_the_list_is_a_copy_whatever_the_backend_does_to_it():
    def forward(self, batch):
        echo(self, batch)
        batch.clear()

    batch = requests(1, 2)
    assert ready(forward)(batch) is None
    assert len(batch) == 2


def test_an_item_that_is_run_again_fails_by_what_is_returned_as_well():
    def forward(self, batch):
        if len(batch) > 1:
            raise ValueError("not together")
        return [InputError("bad") if batch[0]["data"] == "bad" else None]

    first, second = ready(forward, rerun=True)(requests("a", "bad"))
    assert first is None
    assert isinstance(second, InputError)


def test_a_dict_that_cannot_be_tried_again_costs_itself_alone():
    class Keeps(dict):
        def pop(self, *_):
            raise TypeError("no")

    def forward(self, batch):
        echo(self, batch)
        if len(batch) > 1:
            raise ValueError("not together")

    batch = [{"data": 1}, Keeps(data=2), {"data": 3}]
    first, second, third = ready(forward, rerun=True)(batch)
    assert first is third is None
    assert isinstance(second.__cause__, TypeError)


class OtherError(Exception):
    """Somebody else's."""


def secretive(error):
    """Let an error raise whatever is asked for."""

    def refuse(self, name):
        raise LookupError(name)

    error.__class__ = type("SecretiveError", (type(error),), {"__getattribute__": refuse})
    return error


def secret_cause():
    error = ValueError("because of")
    error.__cause__ = secretive(OtherError("bad"))
    return error


@pytest.mark.parametrize(
    "made",
    [lambda: secretive(OtherError("bad")), lambda: secretive(InputError("bad")), secret_cause],
)
def test_an_error_that_lets_nobody_read_it_costs_its_own_item_alone(made):
    def forward(self, batch):
        if any(r["data"] == "bad" for r in batch):
            raise made()
        echo(self, batch)

    def returning(self, batch):
        echo(self, batch)
        return [made() if r["data"] == "bad" else None for r in batch]

    for backend in (ready(forward, rerun=True), ready(returning)):
        batch = requests("a", "bad", "b")
        first, second, third = backend(batch)
        assert first is third is None
        assert [batch[0]["result"], batch[2]["result"]] == ["a", "b"]
        assert isinstance(second, BackendError)
        assert type(made()).__name__ in str(second)
        assert (second.node, second.backend) == ("n", "Made")
        assert str(pickle.loads(pickle.dumps(second))) == str(second)


def test_an_error_that_lets_nobody_read_it_is_one_of_the_setup():
    class Fails(headrace.Backend):
        def init(self, options, context):
            raise secretive(OtherError("no device"))

        forward = echo

    headrace.register(Fails)
    with pytest.raises(SetupError, match="SecretiveError: no device") as caught:
        headrace.pipe({"backend": "Fails"})
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert str(again.__cause__) == "SecretiveError: no device"


def test_an_error_that_lets_nobody_read_it_ends_the_end_of_a_batch_for_no_other():
    called = []

    class Ends(headrace.Backend):
        def init(self, options, context):
            context.batch.at_end(self.fail)
            context.batch.at_end(lambda: called.append("second"))

        def fail(self):
            raise secretive(OtherError("late"))

        forward = echo

    headrace.register(Ends)
    with headrace.pipe({"backend": "Ends"}) as pipe:
        with pytest.raises(BackendError, match="SecretiveError: late at the end of the batch"):
            pipe({"data": 1})
        assert called == ["second"]


@pytest.mark.parametrize(
    ("low", "high", "weights", "fits"),
    [
        (1, None, [1, 9], True),
        (1, 4, [1, 3], True),
        (1, 4, [2, 3], False),
        (3, 8, [1, 1], False),
        (3, 8, [1, 2], True),
        (1, 1, [5], True),
        (1, 1, [1, 1], False),
    ],
)
def test_the_range_is_exact_and_counts_weights(low, high, weights, fits):
    batch = [{"data": 1, "request_size": w} for w in weights]
    outcomes = ready(echo, min=low, max=high)(batch)
    if fits:
        assert outcomes is None
    else:
        assert [type(e) for e in outcomes] == [BatchRangeError] * len(weights)
        assert (outcomes[0].min, outcomes[0].max) == (low, high)


def test_a_weight_that_is_no_number_is_an_outcome_too():
    first, second = ready(echo, max=8)([{"data": 1, "request_size": "x"}, {"data": 2}])
    assert isinstance(first, InputError)
    assert isinstance(second, BackendError)


def test_close_runs_once_and_only_after_an_init_that_succeeded():
    closed = []
    made = ready(echo, close=lambda self: closed.append(1))
    made._stop()
    made._stop()
    assert closed == [1]


def test_a_class_without_forward_says_so():
    (outcome,) = ready()(requests(1))
    assert isinstance(outcome, ContractError)
    assert "forward" in str(outcome)


def test_a_plain_class_becomes_a_backend_that_keeps_its_own_methods():
    class Plain:
        min = 2

        def __call__(self):
            raise AssertionError("never")

        def forward(self, batch):
            echo(self, batch)

    headrace.register(Plain)
    with headrace.plugins.build({"backend": "Plain", "max": 2}) as built:
        assert isinstance(built.root, headrace.Backend)
        assert built.call(requests(1, 2)) == [None, None]
        assert isinstance(built.call(requests(1))[0], BatchRangeError)


# Errors that do not behave.


class NoTextError(Exception):
    def __str__(self):
        raise RuntimeError("no text either")


class TwoArgumentsError(Exception):
    def __init__(self, what, where):
        super().__init__(f"{what} at {where}")


def test_an_error_without_a_text_is_told_apart_and_hits_its_item_alone():
    bad = NoTextError()
    first, second = ready(lambda self, batch: [bad, None])(requests(1, 2))
    assert isinstance(first, BackendError)
    assert first.__cause__ is bad
    assert "NoTextError" in str(first)
    assert second is None
    with pytest.raises(SetupError, match="NoTextError"):
        ready(echo, init=lambda self, options, context: raising(bad)(self, []))


def test_an_error_that_cannot_be_made_again_is_pickled_by_its_text():
    (outcome,) = ready(raising(TwoArgumentsError("bad", "there")))(requests(1))
    assert isinstance(outcome.__cause__, TwoArgumentsError)
    again = pickle.loads(pickle.dumps(outcome))
    assert str(again) == str(outcome)
    assert "bad at there" in str(again.__cause__)
    failed = RequestsFailed([None, NoTextError(), TwoArgumentsError("a", "b")])
    again = pickle.loads(pickle.dumps(failed))
    assert again.errors[0] is None
    assert "a at b" in str(again.errors)


@pytest.mark.parametrize("step", ["init", "warm_up"])
@pytest.mark.parametrize(
    ("fails", "kind", "what", "cause"),
    [
        (lambda *_: 1 / 0, SetupError, "ZeroDivisionError", ZeroDivisionError),
        (lambda *_: __import__("nothing"), MissingDependencyError, "'nothing'", ImportError),
        (raising(SetupError("no engine", hint="Build one.")), SetupError, "Build one.", type(None)),
    ],
)
def test_an_error_of_setting_up_says_where_and_why(step, fails, kind, what, cause):
    body = {"forward": echo, step: lambda self, *_: fails(self, [])}
    headrace.register("Fails", type("Fails", (), body), replace=True)
    with pytest.raises(kind, match=what) as caught:
        headrace.pipe({"backend": "S[Identity,Fails]"})
    error = caught.value
    assert (error.node, error.backend, error.instance) == ("main", "Fails", 0)
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize("around", ["{}", "BackgroundThread[{}]"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_what_close_raises_keeps_nothing_from_being_closed(around, raised):
    closed = []

    def close(self):
        closed.append(type(self).__name__)
        if type(self).__name__ == "Interrupted":
            raise raised

    for name in ("Before", "Interrupted", "After"):
        headrace.register(name, type(name, (), {"forward": echo, "close": close}), replace=True)
    pipe = headrace.pipe({"backend": f"S[Before,{around.format('Interrupted')},After]"})
    pipe.close()
    assert closed == ["After", "Interrupted", "Before"]
    assert pipe.stats()["state"] == "closed"


def test_a_describe_that_fails_says_so_in_its_place():
    def describe(self):
        raise OSError("device lost")

    headrace.register("Lost", type("Lost", (), {"forward": echo, "describe": describe}))
    headrace.register("Odd", type("Odd", (), {"forward": echo, "describe": lambda s: {"x": inf}}))
    with headrace.pipe({"backend": "S[Lost,Odd]"}) as pipe:
        tree = pipe.describe()["nodes"]["main"]["tree"]
    lost, odd = (child["built"] for child in tree["children"])
    assert lost == {"error": "OSError: device lost"}
    assert json.loads(json.dumps(odd, allow_nan=False)) == {"x": "inf"}


def test_an_input_error_shows_where_in_the_backend_it_was_raised():
    def forward(self, batch):
        try:
            measure_of(batch[0])
        except ValueError:
            raise InputError("no length", key="data")  # noqa: B904 - what an author forgets

    def measure_of(request):
        raise ValueError("told to")

    headrace.register("Measure", type("Measure", (), {"forward": forward}))
    pipe = headrace.pipe({"backend": "S[Identity,Measure]"})
    with pipe, pytest.raises(InputError) as caught:
        pipe({"data": 1})
    shown = "".join(traceback.format_exception(caught.value))
    assert "ValueError: told to" in shown
    assert "measure_of" in shown
    assert 'raise InputError("no length"' in shown
