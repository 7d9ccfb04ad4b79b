"""An exchange that goes on: its pairs, their comparison, its outcome."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from headrace import keys
from headrace_models.calling import outputs_of, ports_of
from headrace_models.exchange.evidence import ANSWERED, Evidence, kind_of
from headrace_models.exchange.judge import distances, row_of, shown
from headrace_models.exchange.pair import ON_DEVICE, Pair, is_on_device
from headrace_models.exchange.sample import Sample, client_of
from headrace_models.version import first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import Pipeline
    from headrace_models.exchange.options import Exchange
    from headrace_models.version import Rules, Version

__all__ = ["Trial"]

_log = logging.getLogger("headrace.models")


class Trial:
    """An exchange that goes on.

    Attributes:
        exchange: How it goes on.
        old, new: The versions.
        original: The pipeline of the old one.
        outcome: ``passed``, ``failed``, ``not judged``, ``stopped`` or ``taken``. ``""`` while it goes on.
        reason: Why.
        has_begun: Whether it compares, or has compared.

    Args:
        over: Called with it, in a thread of its own, once it has an outcome by itself.
    """

    def __init__(
        self,
        exchange: Exchange,
        old: Version,
        new: Version,
        rules: Rules,
        *,
        keep: bool,
        over: Callable[[Trial], None],
    ) -> None:
        self.exchange, self.old, self.new, self.keep = exchange, old, new, keep
        self.original: Pipeline = old.pipe
        self._pipe: Pipeline = new.pipe
        self._clock, self._over = rules.clock, over
        self._judge = exchange.judge(allow_import=rules.allow_import)
        self._outputs = ports_of(old.pipe)[1]
        plan = self.original.config.plan()
        trees = [tree for node in plan.nodes.values() for tree in node.trees]
        is_stateful = any(element.stateful for tree in trees for element in tree.walk())
        self._sample = Sample(
            exchange, rules.draw, queue_size=new.queue_size, is_stateful=is_stateful
        )
        self._until = rules.clock() + exchange.at_most_s
        self._lock = threading.Lock()
        self._pairs: set[Pair] = set()
        self._ended: SimpleQueue[Pair | None] = SimpleQueue()
        self._evidence = Evidence()
        self.outcome, self.reason, self.has_begun = "", "", False

    @property
    def is_for_new(self) -> bool:
        """Whether the outcome is for the new version."""
        return self.outcome in ("passed", "taken")

    def start(self) -> None:
        """Compare in a thread of its own until there is an outcome."""
        self.has_begun = True
        share, kind = f"{self.exchange.share:.1%}", self.exchange.compare
        _log.info("an exchange of model %r begins: %s, %s", self.new.title, kind, share)
        name = f"headrace-models-{self.new.title}-exchange"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def end(self, outcome: str, reason: str) -> None:
        """Set the outcome, and sample no more."""
        with self._lock:
            if self.outcome:
                return
            self.outcome, self.reason = outcome, reason
            pairs, self._pairs = self._pairs, set()
        self._ended.put(None)
        for pair in pairs:
            pair.end()
        level = logging.INFO if self.is_for_new else logging.WARNING
        _log.log(level, "model %r: %s", self.new.title, self.summary())

    def _run(self) -> None:
        while not self.outcome:
            left_s = min(max(0.0, self._until - self._clock()), threading.TIMEOUT_MAX)
            try:
                pair = self._ended.get(timeout=left_s)
            except Empty:  # all pairs are compared that have ended in time
                if self._clock() >= self._until:
                    self.end("not judged", f"{self.exchange.at_most_s:g} s are over")
                continue
            if pair is not None:
                self._sample.give_back(pair.sender, counts=self._compare(pair))
                outcome, reason = self._evidence.verdict(self.exchange)
                if outcome:
                    self.end(outcome, reason)
        self._over(self)

    def _compare(self, pair: Pair) -> bool:
        """Count a pair that both have ended, and return whether it counts for the verdict."""
        kind, evidence = kind_of(pair.errors), self._evidence
        if kind == ANSWERED:
            if pair.kind:
                self._sample.refuse(pair.kind)
                return False
            self._compare_answers(pair)
        return evidence.note(kind, pair.sender)

    def _compare_answers(self, pair: Pair) -> None:
        """Compare the rows of both answers. What a judge raises, or an answer that is looked at, fails the new model."""
        exchange = self.exchange
        old, new = (outputs_of(self._outputs, answer) for answer in pair.answers)
        rows = pair.twin.get(keys.REQUEST_SIZE) or None  # none of 0: it is compared as a whole

        def about(row: int) -> dict[str, Any]:
            both = {"old": old, "new": new, "inputs": pair.inputs}
            values = {
                name: shown({key: row_of(each, row, rows) for key, each in both_values.items()})
                for name, both_values in both.items()
                if both_values
            }
            return {"row": row, "request_id": shown(pair.twin.get(keys.REQUEST_ID)), **values}

        try:
            row_distances = (
                distances(old, new, rows, exchange.rtol_of, exchange.atol)
                if self._judge is None
                else [_as_distance(self._judge(*pair.answers))]
            )
            self._evidence.note_rows(pair.ms, row_distances, about)
        except Exception as error:  # noqa: BLE001 - the code of a user
            who = "the comparison" if self._judge is None else "the judge"
            self.end("failed", f"{who} raised {first_line(error)}")

    def take(self, request: Any, how: Mapping[str, Any]) -> Pair | None:
        """Begin a request with the new model as well, if it is drawn and can be. It never waits.

        Args:
            request: The request.
            how: Timeout and priority.
        """
        if type(request) is not dict or not self._is_drawn():
            return None
        sender, reason = client_of(request), "not copied"
        if not self._sample.take(sender):
            return None
        try:
            if is_on_device(request):
                pair, reason = None, ON_DEVICE
            else:
                pair = Pair(request, sender, self.exchange, self._put)
        except Exception:  # noqa: BLE001 - a request is the user's
            pair = None
        if pair is None:
            self._sample.give_back(sender, counts=False)
            self._sample.refuse(reason)
            return None
        pair.start(self._pipe, how)
        with self._lock:
            if not self.outcome:
                self._pairs.add(pair)
        if self.outcome:
            pair.end()
        return pair

    def refuse_stream(self) -> None:
        """Count a request whose answer comes in parts, if it is drawn."""
        if self._is_drawn():
            self._sample.refuse("streams")

    def _is_drawn(self) -> bool:
        if self.outcome or not self._sample.is_drawn():
            return False
        if self._clock() >= self._until:
            self._ended.put(None)
            return False
        return True

    def _put(self, pair: Pair) -> None:
        """Have a request compared that both have ended."""
        with self._lock:
            self._pairs.discard(pair)
        self._ended.put(pair)

    def summary(self) -> str:
        """Return how it goes, or has ended, in a few words."""
        evidence = self._evidence
        shown_pairs = evidence.summary(self.exchange.requests)
        if self.outcome:
            why = f": {self.reason}" if self.reason else ""
            return f"exchange {self.outcome}{why} ({shown_pairs})"
        rows = f"{evidence.differing} of {evidence.rows} rows differ"
        return f"exchange: {shown_pairs}, {rows}"

    def status(self) -> dict[str, Any]:
        """Return how it goes, or has ended, as plain data."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "summary": self.summary(),
            "versions": [self.old.number, self.new.number],
            "compare": self.exchange.compare,
            "share": self.exchange.share,
            "requests": self.exchange.requests,
            "per_client": self.exchange.per_client,
            "not_sampled": {**self._sample.not_sampled},
            **self._evidence.to_dict(),
        }


def _as_distance(answer: Any) -> float:
    """Return what a function says of two answers as a distance; a bool, also one of numpy, says whether they agree."""
    if isinstance(answer, bool) or getattr(getattr(answer, "dtype", None), "kind", "") == "b":
        return 0.0 if answer else math.inf
    far = float(answer)
    return math.inf if math.isnan(far) else far
