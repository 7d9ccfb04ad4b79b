"""The fakes: what they do to the requests that go through them."""

from types import SimpleNamespace

import pytest

import headrace
from headrace_testing import FakeClock, Slow


def test_the_clock_goes_forward_only():
    clock = FakeClock(5.0)
    clock.advance(2.5)
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="goes forward"):
            clock.advance(seconds)
    assert clock() == 7.5


def test_slow_takes_the_same_time_for_every_batch_of_any_size(monkeypatch):
    waited = []
    monkeypatch.setattr(Slow, "never", SimpleNamespace(wait=waited.append))
    headrace.register("SlowFake", Slow, replace=True)
    with headrace.pipe({"backend": "SlowFake(ms=20)", "max": 4}) as pipe:
        answers = [*pipe([{"data": k} for k in range(4)]), pipe({"data": "one"})]
    assert [answer["result"] for answer in answers] == [0, 1, 2, 3, "one"]
    assert waited == [0.02, 0.02]
