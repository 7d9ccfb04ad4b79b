"""Queues and instances as a test has them, for policies and conditions that are asked without a scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Request:
    weight: int = 1
    arrival: float = 0.0
    deadline: float | None = None
    priority: int = 0


@dataclass
class Line:
    """A queue, in the order of service; priorities may put the oldest last."""

    items: list
    running: int = 0
    free: int = 1
    open: bool = True

    @property
    def weight(self):
        return sum(item.weight for item in self.items)

    @property
    def oldest(self):
        return min(item.arrival for item in self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@dataclass
class Inst:
    index: int = 0
    min: int = 1
    max: int | None = 4
    device: str | None = None
    busy: bool = False
    running_weight: int = 0
    batches: int = 0


def line(*weights, at=0.0, **more):
    return Line([Request(weight, at) for weight in weights], **more)


class PlainLine:
    """A queue that tells no more than its length, its weight and its requests."""

    def __init__(self, *items):
        self._items = items
        self.weight = sum(item.weight for item in items)

    def __len__(self):
        return len(self._items)

    def __getitem__(self, index):
        return self._items[index]
