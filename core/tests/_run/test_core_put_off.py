"""Callers of a batch are woken once the device works on the next one, and in any case soon."""

from __future__ import annotations

import threading
import time

import internals
import pytest

import headrace

LONG_S = 3600


class Device(headrace.Backend):
    """Launches at once, and works for a millisecond or as long as the test says."""

    max = 1
    owns_thread = True
    launches = works = None

    def init(self, options, context):
        context.batch.at_end(self.wait)

    def forward(self, batch):
        (request,) = batch
        self.number = request["data"]
        Device.launches.get(self.number, bool)()
        request["result"] = self.number

    def wait(self):
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            pass
        Device.works.get(self.number, bool)()


@pytest.fixture
def device(client, until):
    """Return a function that sends one request, and another one while the device works on the first."""
    headrace.register("PutOffDevice", Device, replace=True)
    Device.launches, Device.works = {}, {}

    def send(pipe):
        for _ in range(5):  # from now on the node knows how long a launch and a batch take
            pipe({"data": 0})
        begun, goes_on = threading.Event(), threading.Event()
        Device.works[1] = lambda: (begun.set(), goes_on.wait())
        first = client(pipe, {"data": 1})
        begun.wait()
        second = client(pipe, {"data": 2})
        until(lambda: internals.in_queue(pipe) == 1)
        goes_on.set()
        return first, second

    return send


def test_they_go_on_while_the_device_works_on_the_next(device, monkeypatch):
    internals.put_off_s(monkeypatch, LONG_S)
    asleep, awake = [], threading.Event()
    with headrace.pipe({"backend": "PutOffDevice"}) as pipe:
        Device.launches[2] = lambda: asleep.append(internals.put_off(pipe))
        Device.works[2] = awake.wait
        first, second = device(pipe)
        assert first.outcome()["result"] == 1
        awake.set()
        assert second.outcome()["result"] == 2
        assert asleep == [1]


def test_they_go_on_if_the_launch_hangs(device, monkeypatch):
    awake = threading.Event()
    with headrace.pipe({"backend": "PutOffDevice"}) as pipe:
        Device.launches[2] = awake.wait
        first, second = device(pipe)
        assert first.outcome()["result"] == 1
        awake.set()
        assert second.outcome()["result"] == 2


def test_they_go_on_if_the_launch_fails(device, monkeypatch):
    internals.put_off_s(monkeypatch, LONG_S)

    def fail():
        raise ValueError("no launch")

    with headrace.pipe({"backend": "PutOffDevice"}) as pipe:
        Device.launches[2] = fail
        first, second = device(pipe)
        assert first.outcome()["result"] == 1
        with pytest.raises(headrace.errors.BackendError, match="no launch"):
            second.outcome()
