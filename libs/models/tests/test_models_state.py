"""A stateful model: what requests get after any order of operations and failures."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_models import Models, UnloadedError
from headrace_testing import FakeClock


class Word(headrace.Backend):
    """Write the option ``text``.

    Reads:
        data: Anything.
    Writes:
        result: The text.
    Batch:
        1 or more.

    Raises:
        SetupError: Words are broken.
    Source:
        own
    """

    class Options(headrace.Options):
        """Options of Word."""

        positional = ("text",)
        text: str

    broken = False
    living = 0
    tries = 0

    def init(self, options, context):
        Word.tries += 1
        if Word.broken:
            raise ValueError("broken")
        self.text = options.text
        Word.living += 1

    def forward(self, batch):
        for request in batch:
            request["result"] = self.text

    def close(self):
        if hasattr(self, "text"):
            Word.living -= 1


class AnyOrder(RuleBasedStateMachine):
    """One lazy model; beside it what must be true of it, in plain variables."""

    def __init__(self):
        super().__init__()
        headrace.register("Word", Word)
        Word.broken, Word.living, Word.tries = False, 0, 0
        self.clock = FakeClock()
        self.made = 0
        self.models = Models({"m": self._new()}, preload=False, clock=self.clock)
        self.text, self.number, self.newest = "w1", 1, 1
        self.previous = []  # number and text of each
        self.ready, self.on_demand = False, True
        self.retry_at, self.failures = None, 0
        self.leases = []

    def _new(self):
        self.made += 1
        return {"backend": f"Word(w{self.made})"}

    @rule(broken=st.booleans())
    def break_or_mend(self, broken):
        Word.broken = broken

    @rule(seconds=st.sampled_from([0.5, 1, 3, 100]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    def _built(self):
        self.ready, self.retry_at, self.failures = True, None, 0

    def _failed(self):
        self.ready, self.on_demand = False, True
        self.retry_at = self.clock() + min(60, 2**self.failures)
        self.failures += 1

    @rule()
    def request(self):
        tries = Word.tries
        if self.ready:
            assert self.models("m", {"data": 1})["result"] == self.text
            assert Word.tries == tries
        elif not self.on_demand:
            with pytest.raises(UnloadedError):
                self.models("m", {"data": 1})
        elif self.retry_at is not None and self.clock() < self.retry_at:
            with pytest.raises(SetupError):
                self.models("m", {"data": 1})
            assert Word.tries == tries
        elif Word.broken:
            with pytest.raises(SetupError):
                self.models("m", {"data": 1})
            assert Word.tries == tries + 1
            self._failed()
        else:
            assert self.models("m", {"data": 1})["result"] == self.text
            assert Word.tries == tries + 1
            self._built()

    @rule()
    def load(self):
        if Word.broken and not self.ready:
            with pytest.raises(SetupError):
                self.models.load("m")
            self._failed()
        else:
            self.models.load("m")
            self._built()

    @rule(wrong=st.booleans())
    def update(self, wrong):
        if wrong or Word.broken:
            with pytest.raises((ConfigError, SetupError)):
                self.models.update("m", {"backend": "Wordz(1)"} if wrong else self._new())
            return
        assert self.models.update("m", self._new()) == str(self.newest + 1)
        self.previous.append((self.number, self.text))
        self.newest += 1
        self.number, self.text = self.newest, f"w{self.made}"
        self._built()

    @rule()
    def rollback(self):
        if not self.previous or Word.broken:
            with pytest.raises((ConfigError, SetupError)):
                self.models.rollback("m")
            return
        self.number, self.text = self.previous.pop()
        assert self.models.rollback("m") == str(self.number)
        self._built()

    @rule()
    def unload(self):
        self.models.unload("m")
        self.ready = self.on_demand = False
        self.retry_at, self.failures = None, 0

    @precondition(lambda self: self.ready)
    @rule()
    def lease_through_a_change(self):
        with self.models.lease("m") as pipe:
            assert pipe({"data": 1})["result"] == self.text

    @invariant()
    def status_is_true(self):
        status = self.models.status()["m"]
        state = "ready" if self.ready else "failed" if self.retry_at is not None else "unloaded"
        assert (status["state"], status["version"]) == (state, str(self.number))
        assert {int(one) for one in status["versions"]} == {
            self.number,
            *(number for number, _ in self.previous[-16:]),
        }
        assert Word.living == int(self.ready)

    def teardown(self):
        self.models.close()
        assert Word.living == 0


AnyOrder.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
test_any_order_of_operations_and_failures = AnyOrder.TestCase
