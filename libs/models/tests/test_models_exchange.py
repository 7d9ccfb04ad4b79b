"""Exchanges: a new model runs requests beside the old one, and has to prove itself."""

from __future__ import annotations

import asyncio
import random
import sys
import threading

import numpy as np
import pytest

import headrace
from headrace.errors import ConfigError, ContractError
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
        self.models, self.changed = models, threading.Condition()
        models.subscribe(self.note)

    def note(self, _):
        with self.changed:
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
        assert about["exchange"]["failed"] == [0, 20]
        assert "it fails 100.00% more requests" in about["reason"]


def test_a_canary_answers_where_the_old_model_fails():
    with Models({"m": {"backend": "Gives(fails=true)"}}) as models:
        ends = Ends(models)
        models.update("m", {"backend": "Gives([2])"}, exchange=always(compare="canary"))
        for got in asked(models, 20):
            np.testing.assert_array_equal(got, [[2.0]])
        assert ends.wait()["exchange"]["outcome"] == "passed"


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
        ({"slower": float("nan")}, "slower\n.*greater than 0"),
        ({"rtol": {"a": -1.0}}, "greater than or equal to 0"),
        ({"shares": 1.0}, "shares\n.*not permitted"),
    ],
)
def test_wrong_settings_are_refused(how, what):
    with pytest.raises(ValueError, match=what):
        Exchange(**how)


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


def test_who_is_told_of_its_pipeline_has_it_before_the_status_shows_it():
    shown = []
    with Models({"m": UPPER}) as models:
        models.subscribe(lambda _: shown.append(models.status()["m"]["exchange"]))
        models.update("m", TITLE, exchange=always())
        assert set(shown) == {None}
        assert models.status()["m"]["exchange"]["outcome"] == ""
