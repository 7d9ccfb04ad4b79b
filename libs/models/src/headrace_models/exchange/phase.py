"""The phase of an update in which the new version has to prove itself."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, Problem
from headrace_models.exchange.comparison import Trial
from headrace_models.exchange.pipeline import Sampled

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace_models.exchange.options import Exchange
    from headrace_models.version import Rules, Version

__all__ = ["Phase", "check_exchange"]


def check_exchange(exchange: object) -> None:
    """Check that what an update was given is an `Exchange`, or None for none.

    Raises:
        ConfigError: It is something else.
    """
    if exchange is None:
        return
    from headrace_models.exchange.options import Exchange  # it needs pydantic

    if not isinstance(exchange, Exchange):
        text = f"an exchange is a headrace_models.Exchange, got {type(exchange).__name__}"
        raise ConfigError(Problem("exchange", text, hint="Write Exchange(share=0.05, ...)."))


class Phase:
    """The exchange of a version of one model for a new one: from the end of the build to the switch, or back.

    The model calls it during its operations.
    """

    def __init__(
        self,
        name: str,
        rules: Rules,
        *,
        guard: AbstractContextManager[object],
        operation: Callable[..., AbstractContextManager[None]],
        check_open: Callable[[], None],
        tell: Callable[..., None],
        switch: Callable[..., None],
        leave: Callable[[Version, str], object],
    ) -> None:
        """Begin with no exchange.

        Args:
            name: The name of the model.
            rules: What holds for all models.
            guard: Held while versions change.
            operation: Runs one operation at a time; see `headrace_models.model.Model`.
            check_open: Raises if the model serves no more.
            tell: Called as ``tell(version, state, ...)``: tells the listeners of the model.
            switch: Called as ``switch(old, new, keep=..., reason=...)``: lets the new one take the place of the old one.
            leave: Called with a version and the reason: gives no more leases of it, and closes it once they have ended.
        """
        self._name, self._rules = name, rules
        self._guard, self._operation = guard, operation
        self._check_open, self._tell = check_open, tell
        self._switch, self._leave = switch, leave
        self._trial: Trial | None = None
        self._last: dict[str, Any] | None = None

    @property
    def coming(self) -> Version | None:
        """The new version while an exchange goes on, else None."""
        trial = self._trial
        return None if trial is None else trial.new

    def same(self, old: Version, config: Any) -> str:
        """Return the number of the version of this configuration and these files that serves, or is compared; ``""`` if none.

        If it is the one that serves, an exchange of it ends.

        Args:
            old: The version that would be replaced.
            config: The configuration. None: the same one, read again.
        """
        trial = self._trial
        for version in [old] if trial is None or trial.old is not old else [trial.new, old]:
            source = version.source if config is None else replace(old.source, config=config)
            read = source.load(allow_import=self._rules.allow_import)[0]
            if version.pipe and read == version.written and not version.changed():
                if version is old:
                    with self._operation():  # which ends an exchange for the old one
                        pass
                return version.number
        return ""

    def start(
        self,
        exchange: Exchange,
        old: Version,
        new: Version,
        *,
        keep: bool,
    ) -> None:
        """Let a new version run requests beside the old one, until one of them leaves.

        Whoever is told of the pipeline of the old one, by ``tell``, has it before `status` shows the exchange.
        """
        with self._guard:
            self._check_open()
            self._trial = trial = Trial(
                exchange, old, new, self._rules, keep=keep, over=self._end_by_itself
            )
            old.pipe, old.reason = Sampled(trial), ""
            new.state, new.reason = "loading", f"compared with version {old.number}"
            for version in (old, new):
                version.holding.prepared.add(trial)
        self._tell(old, "ready", pipeline=old.pipe)
        trial.start()

    def _end_by_itself(self, trial: Trial) -> None:
        with contextlib.suppress(HeadraceError), self._operation(changes=False):
            if self._trial is trial:
                self._end(trial)

    def end_by_hand(self, *, take: bool) -> None:
        """End the exchange that goes on: for the new version, or for the old one.

        Raises:
            ConfigError: None goes on.
        """
        with self._operation(changes=False):
            if not self.stop("taken" if take else "stopped", "by hand"):
                text = f"no exchange of model {self._name!r} goes on"
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
        self._restore(trial)
        old, new = trial.old, trial.new
        if trial.is_for_new:
            new.reason = ""
            self._switch(old, new, keep=trial.keep, reason=trial.summary())
        else:
            old.reason = f"not updated: {trial.summary()}"
            old.seen = {**old.seen, **new.seen}
            self._tell(old, old.state, pipeline=old.pipe)
            self._leave(new, old.reason)
        if self._rules.memory is not None:
            self._rules.memory.wake()

    def _restore(self, trial: Trial) -> None:
        """Send requests to the old version alone."""
        old, new = trial.old, trial.new
        with self._guard:
            self._trial, self._last = None, trial.status()
            old.pipe = trial.original
            for version in (old, new):
                version.holding.prepared.discard(trial)

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
        if trial is None or not trial.has_begun:
            return self._last
        versions.get(trial.new.number, {})["reason"] = trial.summary()
        return trial.status()
