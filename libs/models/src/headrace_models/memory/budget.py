"""A budget of memory for models that do not all fit: who has room, who waits for it, and who leaves."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceededError,
    Problem,
    among,
    is_out_of_memory,
)
from headrace_models.errors import OutOfMemoryError
from headrace_models.memory.devices import used_bytes
from headrace_models.memory.holding import Holding
from headrace_models.memory.sizes import key_of, read_sizes, write_sizes
from headrace_models.sources import files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    _Called = Callable[[str], Iterable[Holding]]

__all__ = ["Memory", "read_bytes"]

_TOLD_S = 60.0
"""The least seconds between two warnings that models come and go too fast."""

_PASS_S = 60.0
"""The most seconds for which requests go before an update that has no room yet."""

_LOOK_S = 1.0
"""The most seconds between two looks for models that nobody uses."""

_BUILD_MAPPED_BYTES, _MAPPED_BYTES = 1 << 20, 32 << 20
"""The least bytes of a block that is mapped by itself, during a build and after it, as headrace-cv and serve set it."""

_SET_BY_USER = frozenset(("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"))

_log = logging.getLogger("headrace.models")
_T = TypeVar("_T")


class Memory:
    """The memory that models may take together. For them to fit, those leave that no request has used for the longest time.

    One budget is for one `Models`. It is an account: the driver is told nothing. It counts what a size says, or twice the
    files of a model until its first build has been measured, which is at least its files. If it frees more as it leaves, that
    counts from then on. A request brings a model back that has left, and waits for it. The models that a model calls count with it as one set: those that its options
    name before anything is built, others from their first call on.

    Attributes:
        budget_bytes: The bytes by device, of this process.
        called: Gives what the versions take that a name means. Those who own the models set it.

    Args:
        budget: The bytes by device, with a unit: ``{"cuda:0": "20 GiB", "host": "8 GiB"}``. What is not here has no bound.
        sizes: What a model takes on each device of the budget that it uses, by name: ``{"detect": "3 GiB"}``.
        keep: Models that never leave.
        idle_unload_s: Seconds without a request after which a model leaves, by name.
        min_stay_s: Seconds for which a model stays once it is ready.
        parts: How many processes share the budget. Each of them has one part.
        measure: Gives the bytes that this process has on a device, None if it cannot tell. By default Linux tells it of
            the host, and NVML of a device, with ``headrace-models[nvml]``.
        clock: Returns the time in seconds.

    Raises:
        ConfigError: A size is not above 0, or has no unit, or ``min_stay_s`` is below 0.
    """

    def __init__(
        self,
        budget: Mapping[str, str],
        *,
        sizes: Mapping[str, str] | None = None,
        keep: Collection[str] = (),
        idle_unload_s: Mapping[str, float] | None = None,
        min_stay_s: float = 30.0,
        parts: int = 1,
        measure: Callable[[str], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget_bytes = {key: read_bytes(text, key) // parts for key, text in budget.items()}
        self.called: _Called = lambda _: ()
        self.set_models(sizes or {}, keep, idle_unload_s or {})
        if not (isinstance(min_stay_s, (int, float)) and min_stay_s >= 0):
            text = f"min_stay_s of the memory is {min_stay_s!r}, which is no number of seconds"
            raise ConfigError(Problem("models", text))
        self._min_stay_s, self._measure, self._clock = min_stay_s, measure or used_bytes, clock
        self._changed = threading.Condition()
        self._held: list[Holding] = []
        self._line: list[Holding] = []
        self._closed = False
        self._moves = self._building = 0
        self._idler: threading.Thread | None = None
        self._looked, self._told = 0.0, -_TOLD_S

    def set_models(
        self, sizes: Mapping[str, str], keep: Collection[str], idle_unload_s: Mapping[str, float]
    ) -> None:
        """Set these, as the class has them, for models that are read from now on.

        Raises:
            ConfigError: A size is not above 0, or has no unit.
        """
        self._sizes = {name: read_bytes(text, name) for name, text in sizes.items()}
        self._keep, self._idle_unload_s = {*keep}, dict(idle_unload_s)

    def set_as(self, other: Memory) -> None:
        """Set the budget, the shortest stay, and what `set_models` sets, as another one of the same devices has them."""
        with self._changed:
            self.budget_bytes, self._min_stay_s = other.budget_bytes, other._min_stay_s
            self._sizes, self._keep = other._sizes, other._keep
            self._idle_unload_s = other._idle_unload_s
            self._changed.notify_all()

    def check(self, names: Collection[str], holdings: Iterable[Holding], called: _Called) -> None:
        """Check that sizes and ``keep`` name models, that each set fits, and all together that never leave.

        Args:
            names: All models.
            holdings: What the versions take.
            called: As the attribute, for these models.

        Raises:
            ConfigError: They do not.
        """
        problems = [
            Problem(
                "models", f"the memory names {name!r}, which is no model", hint=among(name, names)
            )
            for name in sorted({*self._sizes, *self._keep, *self._idle_unload_s} - {*names})
        ]
        holdings = [*holdings]
        sets = [(f"model {holding.title!r} takes", [holding]) for holding in holdings]
        kept = [holding for holding in holdings if holding.keep]
        for who, members in [*sets, ("the models that are kept take", kept)]:
            problems += self._excess(who, self._sets(members, called))
        if problems:
            raise ConfigError(problems)

    def _excess(self, who: str, members: Collection[Holding]) -> Iterator[Problem]:
        """Yield a problem for each device whose budget is too small for a set."""
        for device, size in _sum(members).items():
            if size > (most := self.budget_bytes[device]):
                parts = [(each.title, each.sizes_bytes.get(device)) for each in members]
                listed = ", ".join(f"{title} {part}" for title, part in parts if part)
                text = f"{who} {size} bytes on {device} ({listed}), and the budget is {most}"
                hint = "Enlarge the budget, or keep less."
                yield Problem("models", text, path=f"memory.{device}", hint=hint)

    def note_call(self, holding: Holding, name: str, timeout: float | None = None) -> None:
        """Wait for room for the models of a name that a version is about to call. They count with it from then on.

        Args:
            holding: What the version takes.
            name: The name.
            timeout: The most seconds to wait.

        Raises:
            OutOfMemoryError: Together they do not fit, or others leave only after requests that wait for room as well.
            DeadlineExceededError: The time is over.
            ClosedError: The models were closed meanwhile.
        """
        if name in holding.calls or not self.called(name):
            return
        with self._changed:
            members = self._sets([holding, *self.called(name)])
            for excess in self._excess(f"model {holding.title!r} takes", members):
                raise OutOfMemoryError(excess.message, hint="Enlarge the budget.")
        call = Holding(name, calls={name}, caller=holding)
        self._take(call, None if timeout is None else time.monotonic() + timeout)

    def _victims_over(self, holding: Holding | None = None) -> list[Holding]:
        """Return those that must leave since more is taken than there is, by a version that takes more than was known."""
        used, most = self.used_bytes(), self.budget_bytes
        over = {device: n - most[device] for device, n in used.items() if n > most[device]}
        if over and holding is not None:
            _log.warning("model %r takes more than was set aside: over by %s", holding.title, over)
        return self._marked(self._victims(over))

    def set_size(
        self, holding: Holding, name: str, device: str, nodes: Collection[Mapping[str, Any]]
    ) -> None:
        """Set what a version takes as far as it is known before its build, and whether it is kept.

        Args:
            holding: What it takes.
            name: The model.
            device: The devices of its nodes, as `headrace_models.version.Version.device` has them.
            nodes: Its nodes, as `headrace.explain` gives them.
        """
        holding.keep |= name in self._keep
        holding.idle_unload_s = self._idle_unload_s.get(name)
        devices = {"host" if part == "cpu" else part for part in device.split(", ")}
        known = devices & {*self.budget_bytes} or {"host"} & {*self.budget_bytes}
        if name in self._sizes:
            holding.origin = "given"
            holding.sizes_bytes = dict.fromkeys(known, self._sizes[name])
        elif (key := key_of(nodes)) != holding.key:
            holding.key, holding.sizes_bytes = key, read_sizes(key)
            holding.origin = "measured" if holding.sizes_bytes.keys() == known else "estimated"
            if holding.origin == "estimated":
                files = sum(path.stat().st_size for path in files_of(nodes) if path.is_file())
                twice = {each: min(2 * files, self.budget_bytes[each]) for each in known}
                holding.sizes_bytes = {each: max(files, size) for each, size in twice.items()}

    def has_room(self, holding: Holding) -> bool:
        """Return whether a version could be built now without another one leaving."""
        with self._changed:
            return not self._missing(holding)

    def build(self, holding: Holding, make: Callable[[], _T]) -> _T:
        """Wait for room, and build a version in it.

        Raises:
            OutOfMemoryError: There will be no room, whoever leaves.
            ClosedError: The models were closed meanwhile.
        """
        self._take(holding)
        with self._changed:
            self._building += 1
            self._moves += 1
            moves = self._moves
            self._set_mapping()
        try:
            unknown = holding.sizes_bytes if holding.origin == "estimated" else ()
            pipe, taken_bytes = self._weigh(unknown, lambda: self._made(holding, make))
        except BaseException:
            self.give(holding)
            raise
        finally:
            with self._changed:
                self._building -= 1
                self._set_mapping()
                alone = self._moves == moves and not self._building
                self._moves += 1
        with self._changed:
            for device, size in taken_bytes.items() if alone else ():
                # Memory that was free before the build does not show: the files are the least.
                holding.sizes_bytes[device] = max(holding.sizes_bytes[device] // 2, size)
                holding.origin = "measured"
            victims = self._victims_over(holding)
        self._send_away(victims)
        if holding.origin == "measured" and taken_bytes.keys() == holding.sizes_bytes.keys():
            write_sizes(holding.key, holding.sizes_bytes)
        return pipe

    def _set_mapping(self) -> None:
        """Let glibc map large blocks each by itself during builds: it gives these back to the system when they are freed.

        Elsewhere, and where the environment sets it, nothing changes.

        Source:
            M_MMAP_THRESHOLD, -3, in mallopt(3).
        """
        if "host" in self.budget_bytes and _SET_BY_USER.isdisjoint(os.environ):
            with contextlib.suppress(OSError, AttributeError, TypeError):  # another library of C
                least_bytes = _BUILD_MAPPED_BYTES if self._building else _MAPPED_BYTES
                ctypes.CDLL(None).mallopt(-3, least_bytes)

    def _weigh(self, devices: Iterable[str], call: Callable[[], _T]) -> tuple[_T, dict[str, int]]:
        """Return what a function gives, and the bytes that it has taken of devices, where both are told."""
        before = {device: self._measure(device) for device in devices}
        value = call()
        pairs = [(device, size, self._measure(device)) for device, size in before.items()]
        return value, {d: b - a for d, a, b in pairs if a is not None and b is not None}

    def _made(self, holding: Holding, make: Callable[[], _T]) -> _T:
        """Build a version, once more without the idle ones if the device has no memory left."""
        for last in (False, True):
            try:
                return make()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if last:
                    text = f"model {holding.title!r} could not be built: no memory is left"
                    raise OutOfMemoryError(text, hint="Set a smaller budget.") from error
            self.send_idle_away()
        raise AssertionError

    def send_idle_away(self, but: Holding | None = None) -> None:
        """Let all leave that may, and that have no requests, and wait until they have: no memory is left.

        Args:
            but: One that stays, since a batch of it had no memory.
        """
        with self._changed:
            idle = [held for held in self._by_use() if held is not but and not held.is_busy()]
            for holding in idle:
                holding.leaving = True
        self._send_away(idle)
        with self._changed:
            self._changed.wait_for(
                lambda: not any(held.leaving for held in idle if held in self._held)
            )

    def _send_away(self, victims: list[Holding]) -> None:
        for holding in victims:
            if not holding.leave():
                with self._changed:
                    holding.leaving = False
                    self._changed.notify_all()

    def _take(self, holding: Holding, until: float | None = None) -> None:
        """Wait for room, until a time of `time.monotonic`, and have it."""
        with self._changed:
            self.join(holding)
        try:
            while True:
                with self._changed:
                    victims = self.step(holding)
                    if victims is None:
                        return
                    if not victims:
                        left_s = None if until is None else until - time.monotonic()
                        if left_s is not None and left_s <= 0:
                            text = f"there was no room for model {holding.title!r} in time"
                            raise DeadlineExceededError(text)
                        pauses_s = [each for each in (self.pause_s(), left_s) if each is not None]
                        self._changed.wait(min(pauses_s, default=None))
                self._send_away(victims)
        finally:
            self.quit(holding)

    def join(self, holding: Holding) -> None:
        """Let a version wait for room, behind those that wait already; the call of a model goes before builds."""
        holding.waits_since = self._clock()
        self._line.insert(0 if holding.caller else len(self._line), holding)

    def quit(self, holding: Holding) -> None:
        """Let a version wait no more, whether it has its room or not."""
        with self._changed:
            self._line.remove(holding)
            self._changed.notify_all()

    def step(self, holding: Holding) -> list[Holding] | None:
        """Give room to a version, or to a call of one, that waits, if there is some and it has its turn.

        One that counts with its caller already waits for nobody, since requests of the caller wait for it.

        Returns:
            None: it has its room. Else those that must leave for it now.

        Raises:
            OutOfMemoryError: There will be no room, whoever leaves.
            ClosedError: The models were closed.
        """
        if self._closed:
            raise ClosedError("the models are closed")
        self._looked = self._clock()
        if not (self._has_turn(holding) or holding in self._sets(self._held)):
            return []
        missing = self._missing(holding)
        if not missing and holding.caller:
            holding.caller.calls |= holding.calls
            return None
        if not missing:
            self._held.append(holding)
            holding.since, holding.leaving = None, False
            return None
        self.check_room(holding)
        return self._marked(self._victims(missing, holding))

    @staticmethod
    def _marked(victims: list[Holding]) -> list[Holding]:
        """Note that some are told to leave."""
        for victim in victims:
            victim.leaving = True
        return victims

    def _has_turn(self, holding: Holding) -> bool:
        """Return whether all before it are updates that can have no room now, and that have waited for a short while only."""
        ahead = self._line[: self._line.index(holding)]
        if not ahead or holding.caller:
            return True
        late_s = self._clock() - _PASS_S
        if any(each.replaces is None or each.waits_since <= late_s for each in ahead):
            return False
        missing = [(each, self._missing(each)) for each in ahead]
        return all(lacks and not self._victims(lacks, each) for each, lacks in missing) and not any(
            each.leaving for each in self._held
        )

    def _victims(self, devices: Collection[str], *coming: Holding) -> list[Holding]:
        """Return those that must leave now for some devices to have room, none if they would not be enough."""
        bound, victims = self._bound(coming), []
        stay = [*coming, *(each for each in self._held if each in bound or not each.leaving)]

        def lacking() -> set[str]:
            used = _sum(self._sets(stay))
            return {device for device in devices if used[device] > self.budget_bytes[device]}

        for holding in self._by_use():
            if holding not in bound and lacking() & _sum(self._sets([holding])).keys():
                victims.append(holding)
                stay.remove(holding)
        if lacking():
            return []
        # What those call that have yet to drain leaves after them: their requests would bring it back.
        drain = [each for each in victims if each.is_busy()]
        drain += [each for each in self._held if each.leaving]
        needed = {called for each in drain for called in self._sets([each]) if called is not each}
        return [holding for holding in victims if holding not in {*self._sets(stay), *needed}]

    def _bound(self, coming: Collection[Holding]) -> list[Holding]:
        """Return those that cannot leave before others have come: what these replace, and of calls whose requests wait for room."""
        replaced = [each.replaces for each in coming if each.replaces]
        bound = [each for each in replaced if not each.leaving]
        if any(each.caller for each in coming):
            callers = {each.caller for each in self._line if each.caller}
            bound += [each for each in self._held if callers & {*self._sets([each])}]
        return bound

    def _missing(self, holding: Holding) -> dict[str, int]:
        """Return the bytes that a version lacks, by device."""
        used, then = self.used_bytes(), self.used_bytes(holding)
        lacks = {d: n - self.budget_bytes[d] for d, n in then.items() if n > used[d]}
        return {device: size for device, size in lacks.items() if size > 0}

    def _by_use(self) -> list[Holding]:
        """Return those that may leave now: idle ones first, of these the least recently used."""
        now, stay_s = self._clock(), self._min_stay_s
        built = {each.replaces for each in self._held}  # they stay until the new ones are built
        may = [each for each in self._held if not (each.stays or each.leaving or each in built)]
        may = [each for each in may if each.since is not None and each.since + stay_s <= now]
        return sorted(may, key=lambda each: (each.is_busy(), each.last_use()))

    def check_room(self, *coming: Holding) -> None:
        """Refuse versions for which there is no room side by side, beside those that stay and that they replace.

        Raises:
            OutOfMemoryError: There is none, whoever leaves. Nobody has left.
        """
        with self._changed:
            bound = self._bound(coming)
            fixed = self._sets([each for each in self._held if each.stays or each in bound])
            lasting = [each for each in self._held if each.keep or each.is_lent]
            passes = not [*self._excess("what stays", self._sets([*lasting, *coming]))]
            for holding in coming:
                used, then = _sum(fixed), self._sets([*fixed, holding])
                for device, total in _sum(then).items():
                    size, free = total - used[device], self.budget_bytes[device] - used[device]
                    if 0 < size > free:
                        text = f"model {holding.title!r} needs {size} bytes on {device}, and there are {max(0, free)}"
                        stay = ", ".join(
                            sorted(h.title for h in fixed if h.sizes_bytes.get(device))
                        )
                        hint = f"These stay: {stay}." if stay else "Enlarge the budget."
                        raise OutOfMemoryError(text, hint=hint, passes=passes)
                fixed = then

    def pause_s(self) -> float | None:
        """Return the seconds until a model may leave that could not in the last `step`. None: no time changes that."""
        ends = [held.since + self._min_stay_s for held in self._held if held.since is not None]
        end = min((each for each in ends if each > self._looked), default=None)
        return None if end is None else max(0.0, end - self._clock())

    def open(self, holding: Holding) -> None:
        """Note that a version takes requests: it may leave after its shortest stay."""
        with self._changed:
            holding.since = self._clock()
            self._changed.notify_all()
            if holding.idle_unload_s is not None and self._idler is None:
                name = "headrace-models-idle"
                self._idler = threading.Thread(target=self._unload_idle, name=name, daemon=True)
                self._idler.start()
        about = holding.title, holding.sizes_bytes, holding.origin
        _log.info("model %r has come, %s bytes, %s", *about)

    def _unload_idle(self) -> None:
        """Let those leave that nobody uses, until the models are closed."""
        while not self._closed:
            with self._changed:
                now = self._clock()
                may = [held for held in self._by_use() if held.idle_unload_s is not None]
                ends = {held: self._idle_end(held) for held in may if not held.is_busy()}
                idle = [held for held, end in ends.items() if end <= now]
                for held in idle:
                    held.leaving = True
                    held.reason = f"evicted: idle for {held.idle_unload_s:g} s"
                if not idle:
                    self._changed.wait(min([_LOOK_S, *(end - now for end in ends.values())]))
            self._send_away(idle)

    def _idle_end(self, holding: Holding) -> float:
        return max(holding.since or 0.0, holding.last_use()) + (holding.idle_unload_s or 0.0)

    def give(self, holding: Holding, close: Callable[[], object] = lambda: None) -> None:
        """Give the room of a version back, once ``close`` has closed its pipeline.

        If that frees more than its build took, it counts with that from now on: arenas grow with the batches.
        """
        sizes = {} if holding.origin == "given" or self._closed else {**holding.sizes_bytes}
        moves, (_, taken_bytes) = self._moves, self._weigh(sizes, close)
        if holding.since is not None:
            _log.info("model %r has left", holding.title)
            self._tell_thrashing(holding, holding.since)
        with self._changed:
            alone = moves == self._moves and not self._building
            for device, size in taken_bytes.items() if alone else ():
                holding.sizes_bytes[device] = max(
                    sizes[device], min(-size, self.budget_bytes[device])
                )
            self._held.remove(holding)
            self._moves += 1
            self._changed.notify_all()
        if holding.origin == "measured" and sizes not in ({}, holding.sizes_bytes):
            write_sizes(holding.key, holding.sizes_bytes)

    def _tell_thrashing(self, holding: Holding, since: float) -> None:
        now = self._clock()
        if now - since < 2 * self._min_stay_s and now >= self._told + _TOLD_S:
            self._told = now
            text = "model %r has left after %.1f s: too many models are asked for by turns"
            _log.warning(text, holding.title, now - since)

    def used_bytes(self, *coming: Holding) -> Counter[str]:
        """Return the bytes that all versions take that are built or being built, and these, each with those that it calls."""
        return _sum(self._sets([*self._held, *coming]))

    def _sets(self, holdings: Iterable[Holding], called: _Called | None = None) -> list[Holding]:
        """Return versions with all that they call, and that these call, each once."""
        called, todo = called or self.called, [*dict.fromkeys(holdings)]
        for holding in todo:
            for name in [*holding.calls]:
                todo += [each for each in dict.fromkeys(called(name)) if each not in todo]
        return todo

    def fit(self) -> None:
        """Let those leave for which there is no room any more, since sizes or the budget have changed."""
        with self._changed:
            victims = self._victims_over()
            self._changed.notify_all()
        self._send_away(victims)

    def wake(self) -> None:
        """Let those look again that wait, because a version may leave again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse all that wait for room."""
        self._closed = True
        self.wake()


def read_bytes(text: str, name: str) -> int:
    """Return the bytes of a size with a unit, such as ``"8 GiB"``.

    Args:
        text: The size.
        name: What has it, for the error.

    Raises:
        ConfigError: It is not above 0, or has no unit.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    size = 0
    if isinstance(text, str) and text[-1:].isalpha():  # a ByteSize may lack its unit
        with contextlib.suppress(ValidationError):
            size = int(TypeAdapter(ByteSize).validate_python(text))
    if size <= 0:
        wrong = f"the memory of {name!r} is {text!r}, which is no size with a unit"
        raise ConfigError(Problem("models", wrong, hint='Write it as "8 GiB" or "500 MiB".'))
    return size


def _sum(holdings: Iterable[Holding]) -> Counter[str]:
    return sum((Counter(holding.sizes_bytes) for holding in holdings), Counter[str]())
