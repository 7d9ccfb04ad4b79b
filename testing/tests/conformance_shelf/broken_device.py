"""Backends whose results stand on a device, and that do one thing wrong with them."""

from __future__ import annotations

from typing import ClassVar

from conformance_shelf.device import Device, OnDevice, on_device
from conformance_shelf.labels import breaks
from conformance_shelf.perfect import OnADevice, Perfect
from headrace.errors import InputError


@breaks("finished-when-answered")
class LeavesItsWorkToClose(OnADevice):
    def finish(self, context):
        """Leave it to whoever waits next."""

    def close(self):
        self.device.wait()


@breaks("finished-when-answered")
class LeavesItsWorkToTheNextBatch(OnADevice):
    def finish(self, context):
        """Leave it to whoever waits next."""

    def forward(self, batch):
        self.device.wait()
        return super().forward(batch)


@breaks("finished-when-answered")
class LeavesItsWorkToOthers(OnADevice):
    devices: ClassVar[list[Device]] = []
    """Waited for by a fake torch, when somebody synchronises; emptied by the test."""

    def finish(self, context):
        self.devices.append(self.device)


@breaks("results-kept")
class KeepsDeviceMemoryPerNumber(OnADevice):
    def init(self, options, context):
        super().init(options, context)
        self.kept = {}

    def memory(self, number):
        return self.kept.setdefault(number % 100, on_device(0.0))


def on_device_item(self, k):
    return {"data": on_device(k + 1, k + 2)}


@breaks("inputs-kept", make_item=on_device_item)
class ScalesItsInputOnTheDevice(Perfect):
    """Multiply the numbers of an array on the device.

    Reads:
        data: ``float64 [N]`` on the device.
    Writes:
        result: The numbers times ``factor``, ``float64 [N]`` on the device.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no such array.
    Source:
        Own.
    """

    rerun = False

    def read(self, request):
        if not isinstance(request.get("data"), OnDevice):
            raise InputError("no array on the device", key="data")
        return request["data"].memory

    def one(self, request):
        memory = self.read(request)
        scaled = [number * self.factor for number in memory]
        memory[0] = 0.0
        request["result"] = on_device(*scaled)
