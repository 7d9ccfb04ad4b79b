"""A pipeline whose instances are all lost is built anew, and no other one is."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

import headrace
from headrace.errors import ClosedError, InstanceLostError, SetupError
from headrace_models import Models
from headrace_testing import FakeClock


class Mortal(headrace.Backend):
    """Gives the number of its build; ``"die"`` ends the instance."""

    built: ClassVar[int] = 0
    broken: ClassVar[bool] = False

    def init(self, options, context):
        Mortal.built += 1
        if Mortal.broken:
            raise SetupError("there is no device left")
        self.number = Mortal.built

    def forward(self, batch):
        if batch[0]["data"] == "die":
            raise InstanceLostError("the device is gone")
        for request in batch:
            request["result"] = self.number


@pytest.fixture(autouse=True)
def mortal():
    headrace.register("Mortal", Mortal, replace=True)
    Mortal.built, Mortal.broken = 0, False


class Changes:
    """Collects the states of which a model tells, and waits for one."""

    def __init__(self, models):
        self.told = []
        self._came = threading.Condition()
        models.subscribe(self._note)

    def _note(self, change):
        with self._came:
            self.told.append((change.state, change.reason))
            self._came.notify_all()

    def wait(self, state):
        with self._came:
            assert self._came.wait_for(lambda: state in [one for one, _ in self.told], 60)


def die(models):
    with pytest.raises(InstanceLostError):
        models("m", {"data": "die"})


@pytest.mark.parametrize("keys", [{}, {"instance_num": 2}])
def test_a_version_is_built_anew_once_all_its_instances_are_lost(keys):
    count = keys.get("instance_num", 1)
    with Models({"m": {"backend": "Mortal", "max": 1, **keys}}) as models:
        changes = Changes(models)
        for _ in range(count - 1):
            die(models)
        assert models("m", {"data": 0})["result"] <= count  # another instance serves
        assert changes.told == []
        die(models)
        changes.wait("ready")
        assert models("m", {"data": 0})["result"] > count
        assert Mortal.built == 2 * count
        status = models.status()["m"]
        assert (status["state"], status["version"]) == ("ready", "1")
        assert ("draining", "all instances of the node 'main' were lost") in changes.told


def test_where_it_cannot_be_built_requests_try_again_later():
    clock = FakeClock()
    with Models({"m": {"backend": "Mortal", "max": 1}}, clock=clock) as models:
        changes = Changes(models)
        Mortal.broken = True
        die(models)
        changes.wait("failed")
        with pytest.raises(SetupError, match="no device left"):
            models("m", {"data": 0})
        assert Mortal.built == 2  # it is not tried again yet
        Mortal.broken = False
        clock.advance(2.0)
        assert models("m", {"data": 0})["result"] == 3


def test_who_waits_meanwhile_gets_an_answer_of_the_new_one():
    with Models({"m": {"backend": "Mortal", "max": 1}}) as models:
        changes = Changes(models)
        die(models)
        changes.wait("draining")  # from here on the lost one gives no lease
        assert models("m", {"data": 0})["result"] == 2


def test_a_loss_while_the_models_close_builds_nothing():
    models = Models({"m": {"backend": "Mortal", "max": 1}})
    with models.lease("m") as pipe:
        pass
    models.close()
    with pytest.raises(ClosedError):
        pipe({"data": "die"})
    assert Mortal.built == 1
