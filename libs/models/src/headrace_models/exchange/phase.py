"""The phase of an update in which the new version has to prove itself."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, Problem
from headrace_models.exchange.comparison import Trial
from headrace_models.exchange.pipeline import Sampled

if TYPE_CHECKING:
    from headrace_models.exchange.options import Exchange
    from headrace_models.version import Rules, Version

    Model = Any
    """Of `headrace_models.model`, which imports this module."""

__all__ = ["Exchanging"]


class Exchanging:
    """The exchange of a version of one model for a new one: from the end of the build to the switch, or back.

    The model calls it during its operations.
    """

    def __init__(self, model: Model, rules: Rules) -> None:
        self._model, self._rules = model, rules
        self._trial: Trial | None = None
        self._last: dict[str, Any] | None = None

    def same(self, number: str | None, config: Any) -> str:
        """Return the number of the version of this configuration and these files that serves, or is compared; ``""`` if none.

        If it is the one that serves, an exchange of it ends.

        Args:
            number: The version that would be replaced. None: the one that the name means.
            config: The configuration. None: the same one, read again.
        """
        old, trial = self._model.chosen(number), self._trial
        for version in [old] if trial is None or trial.old is not old else [trial.new, old]:
            source = version.source if config is None else replace(old.source, config=config)
            read = source.load(allow_import=self._rules.allow_import)[0]
            if version.pipe and read == version.written and not version.changed():
                if version is old:
                    with self._model._operation():  # which ends an exchange for the old one
                        pass
                return version.number
        return ""

    def start(self, exchange: Exchange, old: Version, new: Version, *, keep: bool) -> None:
        """Let a new version run requests beside the old one, until one of them leaves."""
        model = self._model
        with model._guard:
            model._check_open()
            self._trial = trial = Trial(
                exchange, old, new, self._rules, keep=keep, over=self._end_by_itself
            )
            model.coming, old.pipe, old.reason = new, Sampled(trial), ""
            new.state, new.reason = "loading", f"compared with version {old.number}"
            old.holding.prepared = new.holding.prepared = True
        model._tell(old, "ready", pipeline=old.pipe)
        trial.start()

    def _end_by_itself(self, trial: Trial) -> None:
        with contextlib.suppress(HeadraceError), self._model._operation(changes=False):
            if self._trial is trial:
                self._end(trial)

    def end_by_hand(self, *, take: bool) -> None:
        """End the exchange that goes on: for the new version, or for the old one.

        Raises:
            ConfigError: None goes on.
        """
        with self._model._operation(changes=False):
            if not self.stop("taken" if take else "stopped", "by hand"):
                text = f"no exchange of model {self._model.name!r} goes on"
                raise ConfigError(Problem("exchange", text))

    def stop(self, outcome: str, reason: str) -> bool:
        """End the exchange that goes on, unless it has its outcome already; return whether there was one."""
        trial = self._trial
        if trial is not None:
            trial.end(outcome, reason)
            self._end(trial)
        return trial is not None

    def _end(self, trial: Trial) -> None:
        """Let the version leave that the outcome is against."""
        old, new, model = trial.old, trial.new, self._model
        self._restore(trial)
        if trial.outcome in ("passed", "taken"):
            new.reason = ""
            model._switch(old, new, keep=trial.keep)
        else:
            old.reason = f"not updated: exchange {trial.outcome}: {trial.reason}"
            old.seen = {**old.seen, **new.seen}
            model._tell(old, old.state, pipeline=old.pipe)
            model._drained_aside(new, old.reason)
        if self._rules.memory is not None:
            self._rules.memory.wake()

    def _restore(self, trial: Trial) -> None:
        """Send requests to the old version alone."""
        old, new = trial.old, trial.new
        with self._model._guard:
            self._trial, self._last, self._model.coming = None, trial.status(), None
            old.pipe = trial.original
            old.holding.prepared = new.holding.prepared = False

    def abandon(self, reason: str) -> list[Version]:
        """End the exchange that goes on, as the model leaves; return its new version, which is to be closed."""
        trial = self._trial
        if trial is None:
            return []
        trial.end("stopped", reason)
        self._restore(trial)
        return [trial.new]

    def status(self, versions: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
        """Return how the exchange goes, or how the last one has ended; and say in the status of its new version how it goes."""
        trial = self._trial
        if trial is None:
            return self._last
        versions.get(trial.new.number, {})["reason"] = trial.summary()
        return trial.status()
