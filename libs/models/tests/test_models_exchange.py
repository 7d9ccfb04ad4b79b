"""Exchanges: a new model runs requests beside the old one, and has to prove itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
from typing import ClassVar

import numpy as np
import pytest

import headrace
from headrace.errors import (
    BackendError,
    ConfigError,
    ContractError,
    DeadlineExceededError,
    HeadraceError,
    InputError,
    OverloadedError,
)
from headrace_models import Exchange, Memory, Models
from headrace_models.errors import OutOfMemoryError

UPPER = {"backend": "Call(builtins:str.upper)"}
TITLE = {"backend": "Call(builtins:str.title)"}
BOUND_S = 60
"""Ends a wait for what never comes; no test waits for so long."""


class Gives(headrace.Backend):
    """Give an array, wait at a gate before, or fail each request."""

    class Options(headrace.Options):
        positional = ("values",)
        values: list[float] = [1.0]  # noqa: RUF012 - pydantic copies it
        fails: bool = False
        waits: bool = False

    gate = threading.Event()

    def init(self, options, context):
        self.options = options

    def forward(self, batch):
        for request in batch:
            if self.options.waits:
                assert self.gate.wait(BOUND_S)
            if self.options.fails:
                raise ValueError("it fails")
            rows = request.get("request_size", 1)
            request["result"] = np.tile(np.array(self.options.values, np.float32), (rows, 1))


@pytest.fixture(autouse=True)
def gives():
    headrace.register("Gives", Gives, replace=True)
    Gives.gate = threading.Event()


def always(**how):
    """An exchange that samples all, and that no load of the machine fails."""
    return Exchange(**{"share": 1.0, "requests": 20, "slower": 1e9, **how})


class Ends:
    """Hears when the state of models has changed, and waits for the end of an exchange."""

    def __init__(self, models):
        self.models, self.changed, self.reasons = models, threading.Condition(), []
        models.subscribe(self.note)

    def note(self, change):
        with self.changed:
            self.reasons.append(change.reason)
            self.changed.notify_all()

    def wait(self, name="m"):
        def is_over():
            about = self.models.status()[name]
            passed = about["exchange"]["outcome"] in ("passed", "taken")
            return not about["reason"] if passed else about["reason"].startswith("not updated")

        with self.changed:
            assert self.changed.wait_for(is_over, BOUND_S)
        return self.models.status()[name]


def asked(models, number, data="ab"):
    return [models("m", {"data": data})["result"] for _ in range(number)]


@pytest.mark.parametrize(
    ("compare", "seen"), [("shadow", "AB"), ("canary", "Ab")], ids=["shadow", "canary"]
)
def test_other_answers_do_not_take_the_place(compare, seen):
    with Models({"m": UPPER}) as models:
        ends = Ends(models)
        assert models.update("m", TITLE, exchange=always(compare=compare)) == "2"
        assert asked(models, 20) == [seen] * 20
        about = ends.wait()
        assert (about["version"], about["exchange"]["outcome"]) == ("1", "failed")
        assert "100.00% of the rows differ" in about["reason"]
        assert asked(models, 1) == ["AB"]
        worst = about["exchange"]["worst"]
        assert len(worst) == 10
        assert worst[0]["old"] == {"result": "AB"}
        assert worst[0]["new"] == {"result": "Ab"}
        assert "inputs" not in worst[0]


@pytest.mark.parametrize("compare", ["shadow", "canary"])
def test_equal_answers_take_the_place_however_they_are_asked_for(compare):
    async def ask_all(models):
        found = [await models.call_async("m", {"data": "ab"}) for _ in range(3)]
        return found + await models.call_async("m", [{"data": "ab"} for _ in range(3)])

    with Models({"m": UPPER}) as models:
        ends = Ends(models)
        models.update("m", {**UPPER, "max": 4}, exchange=always(requests=14, compare=compare))
        found = [models("m", {"data": "ab"}), models.submit("m", {"data": "ab"}).result()]
        found += models("m", [{"data": "ab"} for _ in range(3)])
        found += [one.result() for one in models.submit("m", [{"data": "ab"} for _ in range(3)])]
        found += asyncio.run(ask_all(models))
        assert [one["result"] for one in found] == ["AB"] * 14
        about = ends.wait()
        assert (about["version"], about["exchange"]["outcome"]) == ("2", "passed")
        assert about["exchange"]["compared"] == 14
        assert models.rollback("m") == "1"


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({"rtol": 1e-2}, "passed"),
        ({"rtol": 1e-4}, "failed"),
        ({"rtol": {"result": 1e-2}}, "passed"),
        ({"rtol": {"other": 1e-2}}, "failed"),
        ({"atol": 0.1}, "passed"),
        ({"differ": 1.0}, "passed"),
        ({"verdict": lambda old, new: bool(abs(new - old).max() < 0.1)}, "passed"),
        ({"verdict": lambda old, new: (abs(new - old) < 0.1).all()}, "passed"),
        ({"verdict": lambda old, new: abs(new - old).max() > 0.1}, "failed"),
        ({"verdict": lambda old, new: np.float32("nan")}, "failed"),
        ({"verdict": lambda old, new: "equal"}, "failed"),
        ({"verdict": lambda old, new: float(100 * abs(new - old).max())}, "failed"),
        ({"verdict": lambda old, new: 1 / 0}, "failed"),
    ],
)
def test_tolerances_or_a_function_decide_what_differs(how, outcome):
    with Models({"m": {"backend": "Gives([1,-20])"}}) as models:
        ends = Ends(models)
        models.update("m", {"backend": "Gives([1,-20.05])"}, exchange=always(**how))
        asked(models, 20)
        assert ends.wait()["exchange"]["outcome"] == outcome


def test_an_answer_that_cannot_be_shown_ends_it():
    class Odd:
        def __str__(self):
            raise OSError("no text")

    class Odds(headrace.Backend):
        def forward(self, batch):
            for request in batch:
                request["result"] = Odd()

    headrace.register("Odds", Odds, replace=True)
    with Models({"m": {"backend": "Odds"}}) as models:
        ends = Ends(models)
        models.update("m", {"backend": "Odds", "max": 4}, exchange=always())
        asked(models, 1)
        told = ends.wait()["exchange"]
        assert (told["outcome"], told["reason"]) == (
            "failed",
            "the comparison raised OSError: no text",
        )


def test_a_request_without_rows_is_compared_as_a_whole():
    with Models({"m": {"backend": "Gives([1])"}}) as models:
        ends = Ends(models)
        models.update("m", {"backend": "Gives([2])"}, exchange=always(requests=5))
        for _ in range(5):
            models("m", {"data": np.empty((0, 1)), "request_size": 0})
        told = ends.wait()["exchange"]
        assert (told["outcome"], told["rows"], told["differ"]) == ("passed", 5, 0)


def test_rows_are_compared_one_by_one():
    with Models({"m": {"backend": "Gives([1])", "max": 8}}) as models:
        ends = Ends(models)
        twos = {"backend": "Gives([2])", "max": 8}
        models.update("m", twos, exchange=always(keep_inputs=True))
        for number in range(20):
            models("m", {"data": np.full((3, 1), number), "request_size": 3, "request_id": "r"})
        told = ends.wait()["exchange"]
        assert (told["compared"], told["rows"], told["differ"]) == (20, 60, 60)
        worst = told["worst"][0]
        assert (worst["old"], worst["new"]) == ({"result": [1.0]}, {"result": [2.0]})
        assert worst["request_id"] == "r"
        assert len(worst["inputs"]["data"]) == 1
        # 1 apart, of 1e-6 + 1e-5 * 1 that may be
        assert worst["distance"] == pytest.approx(1 / 1.1e-5)


@pytest.mark.parametrize("compare", ["shadow", "canary"])
def test_a_model_that_fails_does_no_harm(compare):
    with Models({"m": {"backend": "Gives([1])"}}) as models:
        ends = Ends(models)
        failing = {"backend": "Gives([1],fails=true)"}
        models.update("m", failing, exchange=always(compare=compare))
        for got in asked(models, 20):
            np.testing.assert_array_equal(got, [[1.0]])
        about = ends.wait()
        assert about["exchange"]["failed"] == [0, 1]
        assert "it fails 1 of 1 requests that the old one answers" in about["reason"]


def test_a_canary_answers_where_the_old_model_fails():
    now = [0.0]
    with Models({"m": {"backend": "Gives(fails=true)"}}, clock=lambda: now[0]) as models:
        ends = Ends(models)
        models.update("m", {"backend": "Gives([2])"}, exchange=always(compare="canary"))
        for got in asked(models, 20):
            np.testing.assert_array_equal(got, [[2.0]])
        now[0] = 5000.0
        with pytest.raises(BackendError):
            asked(models, 1)
        told = ends.wait()["exchange"]
        assert (told["outcome"], told["pairs"]["old failed"]) == ("not judged", 20)


class Plays(headrace.Backend):
    """Answer or fail as ``data`` says for the old model and for the new one."""

    class Options(headrace.Options):
        positional = ("side",)
        side: int = 0

    errors: ClassVar = {
        "fail": ValueError,
        "input": InputError,
        "deadline": DeadlineExceededError,
        "overloaded": OverloadedError,
    }

    def init(self, options, context):
        self.side = options.side

    def forward(self, batch):
        for request in batch:
            play = request["data"][self.side]
            if play in self.errors:
                raise self.errors[play]("as it is told")
            request["result"] = play


GOOD, NEW_FAILS, CRASH = ("same", "same"), ("same", "fail"), ("input", "fail")
VERDICTS = {
    # the pairs, each so many times; settings; the pairs of each kind; how many have an old answer; the outcome
    "enough": ([(GOOD, 10)], {}, {"answered": 10}, 10, "passed"),
    "too few": ([(GOOD, 9)], {}, {"answered": 9}, 9, "not judged"),
    "both fail": ([(("fail", "fail"), 20)], {}, {"both failed": 20}, 0, "not judged"),
    "both fail beside enough": (
        [(("fail", "fail"), 5), (("input", "input"), 2), (("fail", "input"), 1), (GOOD, 10)],
        {},
        {"both failed": 8, "answered": 10},
        10,
        "passed",
    ),
    "the new one fails once": (
        [(GOOD, 5), (NEW_FAILS, 1)],
        {},
        {"answered": 5, "new failed": 1},
        6,
        "failed",
    ),
    "the new one refuses once": ([(("same", "input"), 1)], {}, {"new failed": 1}, 1, "failed"),
    "as many are repaired": (
        [(("fail", "same"), 9), (NEW_FAILS, 1)],
        {},
        {"old failed": 9, "new failed": 1},
        1,
        "failed",
    ),
    "all are repaired": ([(("fail", "same"), 20)], {}, {"old failed": 20}, 0, "not judged"),
    "1 of 10, a tenth may": (
        [(NEW_FAILS, 1), (GOOD, 9)],
        {"errors": 0.1},
        {"new failed": 1, "answered": 9},
        10,
        "passed",
    ),
    "2 of 10, a tenth may": (
        [(NEW_FAILS, 2)],
        {"errors": 0.1},
        {"new failed": 2},
        2,
        "failed",
    ),
    "crashes where the old one refuses": ([(CRASH, 1)], {}, {"new crashed": 1}, 0, "failed"),
    "2 crashes beside 10, a sixth": (
        [(CRASH, 2), (GOOD, 10)],
        {"errors": 0.17},
        {"new crashed": 2, "answered": 10},
        10,
        "passed",
    ),
    "2 crashes beside 10, above": ([(CRASH, 2)], {"errors": 0.16}, {"new crashed": 2}, 0, "failed"),
    "no answer of both, though all may fail": (
        [(NEW_FAILS, 10)],
        {"errors": 1.0},
        {"new failed": 10},
        10,
        "failed",
    ),
    "others differ": (
        [(("same", "other"), 2), (GOOD, 8)],
        {"differ": 0.1},
        {"answered": 10},
        10,
        "failed",
    ),
    "a tenth differs, as it may": (
        [(("same", "other"), 1), (GOOD, 9)],
        {"differ": 0.1},
        {"answered": 10},
        10,
        "passed",
    ),
    "ends that tell nothing of a model": (
        [
            (("same", "deadline"), 3),
            (("deadline", "same"), 1),
            (("same", "overloaded"), 2),
            (("fail", "deadline"), 1),
            (("overloaded", "fail"), 1),
            (GOOD, 10),
        ],
        {},
        {"deadline": 5, "overloaded": 3, "answered": 10},
        10,
        "passed",
    ),
    "such ends alone": ([(("same", "deadline"), 20)], {}, {"deadline": 20}, 0, "not judged"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_verdict_is_of_pairs(case):
    pairs, how, kinds, compared, outcome = VERDICTS[case]
    headrace.register("Plays", Plays, replace=True)
    now = [0.0]
    with Models({"m": {"backend": "Plays(0)"}}, clock=lambda: now[0]) as models:
        ends = Ends(models)
        # In a canary both have ended when the client has its answer.
        exchange = always(requests=10, compare="canary", **how)
        models.update("m", {"backend": "Plays(1)"}, exchange=exchange)
        for play, number in pairs:
            for _ in range(number):
                with contextlib.suppress(HeadraceError):
                    models("m", {"data": play})
        now[0] = exchange.at_most_s
        models("m", {"data": GOOD})  # after the time it is not drawn
        about = ends.wait()
    told = about["exchange"]
    assert (told["outcome"], told["compared"]) == (outcome, compared)
    assert {kind: number for kind, number in told["pairs"].items() if number} == kinds
    assert told["clients"] == int(any(kinds.get(kind) for kind in COUNTED))
    assert about["version"] == ("2" if outcome == "passed" else "1")
    for kind, number in kinds.items():
        assert f"{number} {kind}" in told["summary"]
    assert f"{compared} of 10 requests compared, clients: {told['clients']}" in told["summary"]
    prefix = "" if outcome == "passed" else "not updated: "
    assert f"{prefix}{told['summary']}" in ends.reasons
    assert about["reason"] == ("" if outcome == "passed" else f"not updated: {told['summary']}")


COUNTED = ("answered", "new failed", "new crashed")


def test_who_withdraws_a_request_tells_nothing_of_a_model(entered):
    with Models({"m": {"backend": "Runs(waits=true)"}}) as models:
        ends = Ends(models)
        models.update("m", {"backend": "Gives"}, exchange=always(requests=1))
        first = models.submit("m", {"data": 1})
        assert entered.wait(BOUND_S)
        assert models.submit("m", {"data": 2}).cancel()
        Gives.gate.set()
        assert first.result(BOUND_S)
        told = ends.wait()["exchange"]
    assert (told["pairs"]["cancelled"], told["pairs"]["answered"]) == (1, 1)


def of_client(models, client, number):
    for _ in range(number):
        context = {} if client is None else {"context": {"client_digest": client}}
        models("m", {"data": "ab", **context})


@pytest.mark.parametrize(
    ("sent", "how", "clients", "not_sampled"),
    [
        ([("a", 1), ("b", 1), ("c", 1), ("a", 15), ("b", 7), ("c", 1)], {}, 3, 6),
        ([("a", 1), (None, 1), ("c", 1), (None, 15), ("a", 7), ("c", 1)], {}, 3, 6),
        ([("a", 1), ("b", 1), ("c", 1), ("b", 17)], {"per_client": 1.0}, 3, 0),
        ([("a", 1), ("b", 19)], {}, 2, 0),
        ([(None, 20)], {}, 1, 0),
        ([(name, 2) for name in "abcdefghij"], {"per_client": 0.1}, 10, 0),
        # a has given 3 before there were three clients
        (
            [("a", 3), ("b", 2), *((n, 3) for n in "cadefghi"), ("j", 1)],
            {"per_client": 0.1},
            10,
            10,
        ),
    ],
)
def test_one_client_is_not_the_sample_where_there_are_three(sent, how, clients, not_sampled):
    with Models({"m": UPPER}) as models:
        ends = Ends(models)
        models.update("m", {**UPPER, "max": 4}, exchange=always(**how))
        for client, number in sent:
            of_client(models, client, number)
        told = ends.wait()["exchange"]
    assert (told["outcome"], told["clients"]) == ("passed", clients)
    assert told["not_sampled"].get("of one client", 0) == not_sampled


def test_a_shadow_waits_for_nothing_and_is_bounded():
    with Models({"m": {"backend": "Gives([1])"}}) as models:
        ends = Ends(models)
        stuck = {"backend": "Gives([1],waits=true)"}
        models.update("m", stuck, exchange=always(requests=64))
        assert len(asked(models, 100)) == 100  # none of them has ended in the new model
        assert models.status()["m"]["exchange"]["not_sampled"] == {"no room": 36}
        Gives.gate.set()
        assert ends.wait()["exchange"]["outcome"] == "passed"


def test_a_slow_model_fails():
    with Models({"m": {"backend": "Gives([1])"}}) as models:
        ends = Ends(models)
        stuck = {"backend": "Gives([1],waits=true)"}
        models.update("m", stuck, exchange=always(requests=40, slower=1.0))
        took_s = asked(models, 40)
        assert len(took_s) == 40
        Gives.gate.set()  # so each has waited in the new model for all that came after it
        about = ends.wait()
        assert about["exchange"]["outcome"] == "failed"
        assert "p50 is" in about["reason"]


def test_without_a_verdict_in_time_the_old_model_stays():
    now = [0.0]
    with Models({"m": UPPER}, clock=lambda: now[0]) as models:
        ends = Ends(models)
        models.update("m", {**UPPER, "max": 4}, exchange=always(at_most_s=5000))
        asked(models, 10)
        now[0] = 5001.0
        asked(models, 1)
        about = ends.wait()
        assert (about["version"], about["exchange"]["outcome"]) == ("1", "not judged")


def test_a_share_of_the_requests_is_sampled():
    drawn = random.Random(1)
    with Models({"m": UPPER}, draw=drawn.random) as models:
        models.update("m", TITLE, exchange=always(share=0.2, requests=1000))
        asked(models, 500)
        models.end_exchange("m")
        told = models.status()["m"]["exchange"]
        expected = random.Random(1)
        most = sum(expected.random() < 0.2 for _ in range(500))
        assert told["compared"] + sum(told["not_sampled"].values()) <= most
        assert told["outcome"] == "stopped"


def test_what_cannot_be_compared_is_counted_by_its_kind():
    class OnDevice:
        """An array on a device, as DLPack tells it."""

        def __dlpack_device__(self):
            return 2, 0  # CUDA

    class Uncopied:
        def __deepcopy__(self, _):
            raise TypeError("not copied")

    with Models({"m": {"backend": "Gives([1])"}}) as models:
        models.update("m", {"backend": "Gives([2])"}, exchange=always())
        with models.lease("m") as pipe:
            pipe.submit({"data": 1}, on_part=print).result()
            assert len([*pipe.stream({"data": 1})]) == 1
        models("m", {"data": [OnDevice()]})
        models("m", {"data": Uncopied()})
        told = models.status()["m"]["exchange"]
        assert told["not_sampled"] == {"streams": 2, "on a device": 1, "not copied": 1}
        assert told["compared"] == 0


def test_sequences_are_not_sampled():
    class Keeps(Gives):
        stateful = True

    headrace.register("Keeps", Keeps, replace=True)
    with Models({"m": {"backend": "Keeps([1])"}}) as models:
        models.update("m", {"backend": "Keeps([2])"}, exchange=always())
        asked(models, 3)
        assert models.status()["m"]["exchange"]["not_sampled"] == {"sequences": 3}


@pytest.mark.parametrize("what", ["update", "rollback", "unload", "replace", "move"])
def test_a_further_change_ends_it_for_the_old_model(what):
    changes = {
        "update": lambda models: models.update("m", TITLE),
        "rollback": lambda models: models.rollback("m"),
        "unload": lambda models: models.unload("m"),
        "replace": lambda models: models.replace({"m": UPPER}),
        "move": lambda models: models.move("m", "cpu"),
    }
    left = threading.Event()

    def note(change):
        if (change.version, change.state) == ("3", "unloaded"):
            left.set()

    with Models({"m": TITLE}) as models:
        models.update("m", UPPER)
        models.subscribe(note)
        assert models.update("m", TITLE, exchange=always()) == "3"
        changes[what](models)
        assert left.wait(BOUND_S)
        told = models.status()["m"]["exchange"]
        assert told is None if what == "replace" else told["outcome"] == "stopped"


@pytest.mark.parametrize(
    ("take", "version", "outcome"), [(True, "2", "taken"), (False, "1", "stopped")]
)
def test_it_ends_by_hand(take, version, outcome):
    with Models({"m": UPPER}) as models:
        models.update("m", TITLE, exchange=always())
        models.end_exchange("m", take=take)
        about = models.status()["m"]
        assert (about["version"], about["exchange"]["outcome"]) == (version, outcome)
        with pytest.raises(ConfigError, match="no exchange of model 'm' goes on"):
            models.end_exchange("m")


def test_the_same_configuration_and_files_begin_none(tmp_path):
    file = tmp_path / "m.toml"
    file.write_text('backend = "Call(builtins:str.upper)"\n')
    with Models({"m": str(file)}) as models:
        assert models.update("m", str(file), exchange=always()) == "1"
        assert models.status()["m"]["exchange"] is None
        file.write_text('backend = "Call(builtins:str.title)"\n')
        assert models.update("m", str(file), exchange=always()) == "2"
        asked(models, 3)
        # the file of the one that is compared goes on with that
        assert models.update("m", str(file), exchange=always()) == "2"
        assert models.status()["m"]["exchange"]["outcome"] == ""


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"share": 0.0}, "share\n.*greater than 0"),
        ({"share": 1.5}, "share\n.*less than or equal to 1"),
        ({"requests": 0}, "requests\n.*greater than or equal to 1"),
        ({"at_most_s": 0.0}, "at_most_s\n.*greater than 0"),
        ({"compare": "mirror"}, "'shadow' or 'canary'"),
        ({"errors": -1.0}, "errors\n.*greater than or equal to 0"),
        ({"per_client": 0.0}, "per_client\n.*greater than 0"),
        ({"per_client": 1.5}, "per_client\n.*less than or equal to 1"),
        ({"slower": float("nan")}, "slower\n.*greater than 0"),
        ({"rtol": {"a": -1.0}}, "greater than or equal to 0"),
        ({"shares": 1.0}, "shares\n.*not permitted"),
    ],
)
def test_wrong_settings_are_refused(how, what):
    with pytest.raises(ValueError, match=what):
        Exchange(**how)


def test_an_exchange_is_no_dict():
    with Models({"m": UPPER}) as models:
        with pytest.raises(ConfigError, match=r"a headrace_models\.Exchange, got dict"):
            models.update("m", TITLE, exchange={"share": 1.0})
        assert asked(models, 1) == ["AB"]
    with (
        Models({"m": UPPER}, exchange=lambda *_: {"share": 1.0}) as models,
        pytest.raises(ConfigError, match=r"a headrace_models\.Exchange, got dict"),
    ):
        models.update("m", TITLE)


@pytest.mark.parametrize("verdict", ["nowhere_to_be_found:judge", "math:nothing", "math"])
def test_a_judge_that_cannot_be_imported_is_told_before_anything_is_built(verdict):
    states = []
    with Models({"m": UPPER}) as models:
        models.subscribe(lambda change: states.append(change.state))
        with pytest.raises(ConfigError, match=f"the verdict {verdict!r}"):
            models.update("m", TITLE, exchange=always(verdict=verdict))
        assert states == []


def test_a_judge_is_imported_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "judges_of_a_test.py").write_text(
        "def same(old, new):\n    return old == new.upper()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Models({"m": UPPER}) as models:
        ends = Ends(models)
        models.update("m", TITLE, exchange=always(verdict="judges_of_a_test:same"))
        asked(models, 20)
        assert ends.wait()["exchange"]["outcome"] == "passed"
    del sys.modules["judges_of_a_test"]


class Named(Gives):
    """Describes its output by name."""

    class Options(headrace.Options):
        positional = ("name",)
        name: str = "a"

    def forward(self, batch):
        for request in batch:
            request["result"] = {self.options.name: 1.0}

    def describe(self):
        return {"outputs": {self.options.name: {"dtype": "float32", "shape": []}}}


@pytest.mark.parametrize(
    ("new", "rtol", "what"),
    [
        ("b", 1e-5, "only one of the models has the output 'a'"),
        ("a", {"z": 1.0}, "rtol names 'z', which is no output"),
    ],
)
def test_outputs_that_do_not_fit_are_told_before_it_begins(new, rtol, what):
    headrace.register("Named", Named, replace=True)
    with Models({"m": {"backend": "Named(a)"}}) as models:
        with pytest.raises(ConfigError, match=what):
            models.update("m", {"backend": f"Named({new})", "max": 4}, exchange=always(rtol=rtol))
        about = models.status()["m"]
        assert (about["version"], about["exchange"]) == ("1", None)


def test_without_room_for_both_it_does_not_begin():
    memory = Memory({"host": "3 GiB"}, sizes={"m": "2 GiB"}, min_stay_s=0)
    with Models({"m": UPPER}, memory=memory) as models:
        with pytest.raises(OutOfMemoryError, match="needs 2147483648 bytes on host, and there are"):
            models.update("m", TITLE, exchange=always())
        assert models.status()["m"]["exchange"] is None
        assert asked(models, 1) == ["AB"]


def test_both_stay_in_memory_until_its_end():
    memory = Memory({"host": "3 GiB"}, sizes={"m": "1 GiB", "n": "2 GiB"}, min_stay_s=0)
    with Models({"m": UPPER, "n": UPPER}, memory=memory) as models:
        models.unload("n")
        models.update("m", TITLE, exchange=always())
        with pytest.raises(OutOfMemoryError, match="m:1, m:2"):
            models.load("n")
        models.end_exchange("m")
        models.load("n")
        assert models.status()["n"]["state"] == "ready"


@pytest.mark.parametrize("is_built", [False, True], ids=["refused", "prepared, then closed"])
def test_who_prepares_others_ends_no_protection_of_an_exchange(is_built):
    memory = Memory({"host": "3 GiB"}, sizes=dict.fromkeys("mno", "1 GiB"), min_stay_s=0)
    with Models(dict.fromkeys("mno", UPPER), memory=memory) as models:
        models("m", {"data": "ab"})
        ends = Ends(models)
        models.update("m", {**UPPER, "max": 4}, exchange=always())
        if is_built:
            models.prepare({"m": TITLE}, keep_others=True).close()
        else:
            with pytest.raises(OutOfMemoryError, match="These stay: m:1"):
                models.replace(dict.fromkeys("mno", TITLE))
        for name in "nono":  # both do not fit beside the two versions, and come by turns
            models(name, {"data": "ab"})
        assert models.status()["m"]["exchange"]["outcome"] == ""
        asked(models, 20)
        assert ends.wait()["exchange"]["outcome"] == "passed"


def test_a_changed_file_begins_an_exchange_as_the_rules_say(tmp_path):
    file = tmp_path / "m.toml"
    file.write_text('backend = "Call(builtins:str.upper)"\n')
    with Models({"m": str(file)}, exchange=lambda *_: always()) as models:
        ends = Ends(models)
        file.write_text('backend = "Call(builtins:str.title)"\n')
        models.update("m")
        assert asked(models, 20) == ["AB"] * 20
        assert ends.wait()["exchange"]["outcome"] == "failed"


def test_closed_models_end_it():
    models = Models({"m": UPPER})
    models.update("m", TITLE, exchange=always())
    models.close()
    assert models.status()["m"]["exchange"]["outcome"] == "stopped"
    assert {one["state"] for one in models.status()["m"]["versions"].values()} == {"unloaded"}


@pytest.fixture
def entered():
    """Register the backend ``Runs``, which says that it runs, and then does as ``Gives``."""
    event = threading.Event()

    class Runs(Gives):
        def forward(self, batch):
            event.set()
            super().forward(batch)

    headrace.register("Runs", Runs, replace=True)
    return event


@pytest.mark.parametrize("compare", ["shadow", "canary"])
def test_a_request_on_which_a_backend_runs_is_not_cancelled(compare, entered):
    with Models({"m": {"backend": "Runs(waits=true)"}}) as models:
        models.update("m", {"backend": "Gives"}, exchange=always(compare=compare))
        future = models.submit("m", {"data": 1})
        assert entered.wait(BOUND_S)
        assert (future.cancel(), future.running(), future.cancelled()) == (False, True, False)
        Gives.gate.set()
        assert future.result(BOUND_S)["result"].shape == (1, 1)


@pytest.mark.parametrize("compare", ["shadow", "canary"])
def test_a_request_that_waits_is_withdrawn(compare, entered):
    with Models({"m": {"backend": "Runs(waits=true)"}}) as models:
        models.update("m", {"backend": "Gives"}, exchange=always(compare=compare))
        first = models.submit("m", {"data": 1})
        assert entered.wait(BOUND_S)
        request = {"data": 2}
        waiting = models.submit("m", request)
        assert waiting.cancel()
        assert waiting.cancelled()
        assert request == {"data": 2}
        Gives.gate.set()
        assert first.result(BOUND_S)
        assert models("m", request)["result"].shape == (1, 1)


@pytest.mark.parametrize("compare", ["shadow", "canary"])
@pytest.mark.parametrize("who", ["both", "old", "new"])
def test_a_model_that_calls_itself_fails_as_without_an_exchange(compare, who):
    class Again(headrace.Backend):
        class Options(headrace.Options):
            again: bool = True

        def init(self, options, context):
            self.again = options.again

        def forward(self, batch):
            for request in batch:
                if self.again and request["data"]:
                    models("m", {"data": request["data"] - 1})
                request["result"] = request["data"]

    headrace.register("Again", Again, replace=True)
    old, new = (f"Again(again={str(who in ('both', side)).lower()})" for side in ("old", "new"))
    with Models({"m": {"backend": old}}) as models:
        models.update("m", {"backend": new}, exchange=always(compare=compare))
        if who == "new" or (who == "old" and compare == "canary"):
            assert models("m", {"data": 1})["result"] == 1
        else:
            with pytest.raises(ContractError):
                models("m", {"data": 1})


@pytest.mark.parametrize("call", ["call", "submit", "await", "soon"])
@pytest.mark.parametrize("end", ["by hand", "deadline"])
def test_a_canary_whose_new_model_hangs_answers_with_the_old_one(call, end):
    entered, answers = threading.Event(), []
    timeout = 0.2 if end == "deadline" else None

    class Hangs(Gives):
        def forward(self, batch):
            entered.set()
            assert self.gate.wait(BOUND_S)

    async def ask():
        return await models.call_async("m", {"data": 1}, timeout=timeout)

    async def ask_soon():
        with models.lease("m") as pipe:
            ended = asyncio.Event()
            sent = pipe.call_soon({"data": 1}, lambda _: ended.set(), timeout=timeout)
            await ended.wait()
            return sent.request if sent.error is None else sent.error

    ways = {
        "call": lambda: models("m", {"data": 1}, timeout=timeout),
        "submit": lambda: models.submit("m", {"data": 1}, timeout=timeout).result(BOUND_S),
        "await": lambda: asyncio.run(ask()),
        "soon": lambda: asyncio.run(ask_soon()),
    }
    headrace.register("Hangs", Hangs, replace=True)
    with Models({"m": {"backend": "Gives"}}) as models:
        models.update("m", {"backend": "Hangs"}, exchange=always(compare="canary"))
        client = threading.Thread(target=lambda: answers.append(ways[call]()))
        client.start()
        assert entered.wait(BOUND_S)
        if end == "by hand":
            models.end_exchange("m")
        client.join(BOUND_S)
        assert answers[0]["result"].shape == (1, 1)
        Gives.gate.set()


class Waits(headrace.Backend):
    """Wait for the word of one side, then answer with the side, or fail."""

    class Options(headrace.Options):
        positional = ("side",)
        side: str = "old"
        fails: bool = False

    def init(self, options, context):
        self.options = options

    def forward(self, batch):
        side = self.options.side
        self.entered[side].set()
        for request in batch:
            self.ran[side].append(request["data"])
        assert self.go_on[side].wait(BOUND_S)
        if self.options.fails:
            raise ValueError("it fails")
        for request in batch:
            request["result"] = side


@pytest.fixture
def sides():
    """Register ``Waits``, each side of which says that it runs and what it has run, and waits for a word."""
    for each in ("entered", "go_on"):
        setattr(Waits, each, {"old": threading.Event(), "new": threading.Event()})
    Waits.ran = {"old": [], "new": []}
    headrace.register("Waits", Waits, replace=True)
    yield Waits
    for event in Waits.go_on.values():
        event.set()


ENDINGS = {
    "stopped": lambda models: models.end_exchange("m"),
    "taken": lambda models: models.end_exchange("m", take=True),
    "a further change": lambda models: models.update("m", UPPER),
    "replaced": lambda models: models.replace({"m": UPPER}),
    "unloaded": lambda models: models.unload("m"),
}


@pytest.mark.parametrize("compare", ["shadow", "canary"])
@pytest.mark.parametrize("fails", [False, True], ids=["answers", "fails"])
@pytest.mark.parametrize("is_first", ["old", "new", ""])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_gives_an_open_pair_the_outcome_of_the_old_model(
    ending, is_first, fails, compare, sides
):
    old = {"backend": f"Waits(old,fails={str(fails).lower()})"}
    with Models({"m": old}, drain_s=0.0) as models:
        models.update("m", {"backend": "Waits(new)"}, exchange=always(compare=compare))
        client = models.submit("m", {"data": 1})
        for entered in sides.entered.values():
            assert entered.wait(BOUND_S)
        if is_first:
            sides.go_on[is_first].set()
        ENDINGS[ending](models)
        sides.go_on["old"].set()  # the new one may hang on
        if fails:
            with pytest.raises(BackendError, match="it fails"):
                client.result(BOUND_S)
        else:
            assert client.result(BOUND_S)["result"] == "old"
        sides.go_on["new"].set()


def test_the_end_withdraws_copies_that_wait(sides):
    left = threading.Event()
    sides.go_on["old"].set()
    with Models({"m": {"backend": "Waits(old)"}}) as models:
        models.update("m", {"backend": "Waits(new)"}, exchange=always())
        models.subscribe(
            lambda change: (change.version, change.state) == ("2", "unloaded") and left.set()
        )
        assert asked(models, 1, 0) == ["old"]
        assert sides.entered["new"].wait(BOUND_S)
        for number in range(1, 5):
            assert asked(models, 1, number) == ["old"]
        models.end_exchange("m")
        sides.go_on["new"].set()
        assert left.wait(BOUND_S)
    assert sides.ran == {"old": [0, 1, 2, 3, 4], "new": [0]}


def test_who_is_told_of_its_pipeline_has_it_before_the_status_shows_it():
    shown = []
    with Models({"m": UPPER}) as models:
        models.subscribe(lambda _: shown.append(models.status()["m"]["exchange"]))
        models.update("m", TITLE, exchange=always())
        assert set(shown) == {None}
        assert models.status()["m"]["exchange"]["outcome"] == ""
