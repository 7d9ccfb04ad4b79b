"""What elements report of their device, by events whose times are given."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from headrace_torch.devices.spans import DeviceSpans


class Event:
    """An event that happens three milliseconds after the one before."""

    moments = itertools.count()
    done = True

    def record(self, stream):
        assert stream == "the stream"
        self.at_ms = 3.0 * next(self.moments)

    def query(self):
        return self.done

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


def test_spans_stand_where_the_device_ran_them():
    clock = iter([7.0, 7.001, 9.0, 10.0])
    reported = []
    spans = DeviceSpans("the stream", "cuda:0", Event, lambda: next(clock))
    copy = spans.around(lambda batch: [*batch, "in"], lambda *one: reported.append(one), "copy in")
    run = spans.around(lambda batch: 1 / 0, lambda *one: reported.append(one), "computation")
    assert copy(["a"]) == ["a", "in"]
    with pytest.raises(ZeroDivisionError):
        run([])
    assert reported == []
    spans.report()
    spans.report()
    assert reported == [
        ("copy in", 7.0, pytest.approx(7.003), "cuda:0"),
        ("computation", pytest.approx(7.006), pytest.approx(7.009), "cuda:0"),
    ]
    copy([])
    spans.report()
    assert reported[2] == ("copy in", 9.0, pytest.approx(9.003), "cuda:0")


def test_what_has_not_happened_is_not_waited_for(monkeypatch):
    reported = []
    spans = DeviceSpans("the stream", "cuda:0", Event, lambda: 1.0)
    spans.around(lambda: None, lambda *one: reported.append(one), "copy out")()
    monkeypatch.setattr(Event, "done", False)
    spans.report()
    assert reported == []
