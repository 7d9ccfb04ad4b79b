"""What a run reports of its device, by events whose times are given."""

import itertools

import pytest
from fake_device import FakeCuda

from headrace_trt.running.spans import Spans


class Timed(FakeCuda):
    """Events happen two milliseconds after one another."""

    def __init__(self):
        super().__init__()
        self.recorded, self.made, self.destroyed = {}, 0, []
        self.moments = itertools.count()

    def event_create(self, *, timing=False):
        assert timing
        self.made += 1
        return super().event_create(timing=timing)

    def event_record(self, event, stream):
        self.recorded[event] = next(self.moments)

    def event_elapsed_ms(self, first, last):
        return 2.0 * (self.recorded[last] - self.recorded[first])

    def event_destroy(self, event):
        self.destroyed.append(event)


def test_spans_follow_one_another_from_the_clock_of_the_beginning():
    reported, cuda = [], Timed()
    spans = Spans(cuda, 7, lambda *one: reported.append(one), "cuda:1", clock=lambda: 5.0)
    for _ in range(3):
        spans.begin()
        spans.begin()
        spans.mark("copy in")
        spans.mark("computation")
        assert len(reported) % 2 == 0
        spans.report()
        spans.report()
    assert reported[:2] == [
        ("copy in", 5.0, pytest.approx(5.002), "cuda:1"),
        ("computation", pytest.approx(5.002), pytest.approx(5.004), "cuda:1"),
    ]
    assert len(reported) == 6
    assert cuda.made == 3  # used again
    with spans.silence():
        spans.begin()
        spans.mark("copy in")
        spans.report()
    assert len(reported) == 6
    spans.close()
    assert len(cuda.destroyed) == 3
