"""A budget of memory for models that do not all fit: who has room, who waits for it, and who leaves."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from headrace.errors import ClosedError, ConfigError, Problem, among
from headrace_models.devices import device_bytes
from headrace_models.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = ["Holding", "Memory", "read_bytes"]

_TOLD_S = 60.0
"""The least seconds between two warnings that models come and go too fast."""

_LOOK_S = 1.0
"""The most seconds between two looks for models that nobody uses."""

_log = logging.getLogger("headrace.models")
_T = TypeVar("_T")


@dataclass(eq=False)
class Holding:
    """What one version of a model takes of the budget.

    Attributes:
        title: The model with its version, ``"detect:3"``.
        sizes_bytes: What it takes, by device.
        origin: Whether these are ``given``, ``measured``, or ``estimated`` from the sizes of its files.
        keep: Whether it never leaves for another one.
        idle_unload_s: Seconds without a request after which it leaves. None: it stays.
        reason: Why it leaves.
        updating: Whether an operation is about to replace it, so that it does not leave meanwhile.
        prepared: Whether it was prepared, or is to be replaced by what was prepared, so that it stays until the switch.
        replaces: What it is to replace, and what stays until then.
        since: When it was ready, by the clock of the budget. None before.
        leaving: Whether it was told to leave.
        last_use: Gives the time of its last request.
        is_busy: Says whether requests are inside it.
        leave: Lets it leave once its requests have ended. Returns False if an operation does not allow that now.
    """

    title: str
    sizes_bytes: dict[str, int] = field(default_factory=dict)
    origin: Literal["given", "measured", "estimated"] = "estimated"
    keep: bool = False
    idle_unload_s: float | None = None
    reason: str = "evicted: another model needs its memory"
    updating: bool = False
    prepared: bool = False
    replaces: Holding | None = None
    since: float | None = None
    leaving: bool = False
    last_use: Callable[[], float] = lambda: 0.0
    is_busy: Callable[[], bool] = lambda: False
    leave: Callable[[], bool] = lambda: True

    @property
    def stays(self) -> bool:
        """Whether it never leaves, or not before a switch for which the same thread builds others."""
        return self.keep or self.prepared


class Memory:
    """The memory that models may take together. For them to fit, those leave that no request has used for the longest time.

    One budget is for one `Models`. It is an account: the driver is told nothing. It counts what a size says, or twice the
    files of a model until its first build has been measured, which is at least its files. A request brings a
    model back that has left, and waits for it.

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
        self.budget_bytes = {one: read_bytes(text, one) // parts for one, text in budget.items()}
        self.set_models(sizes or {}, keep, idle_unload_s or {})
        if not (isinstance(min_stay_s, (int, float)) and min_stay_s >= 0):
            what = f"min_stay_s of the memory is {min_stay_s!r}, which is no number of seconds"
            raise ConfigError(Problem("models", what))
        self._min_stay_s, self._measure, self._clock = min_stay_s, measure or _used_bytes, clock
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

    def check(self, names: Collection[str], holdings: Iterable[Holding]) -> None:
        """Check that sizes and ``keep`` name models, that each version fits, and all together that never leave.

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
        sets = [(f"model {one.title!r} takes", [one]) for one in holdings]
        sets.append(("the models that are kept take", [one for one in holdings if one.keep]))
        for who, some in sets:
            for device, size in _sum(some).items():
                if size > (most := self.budget_bytes[device]):
                    what = f"{who} {size} bytes on {device}, and the budget is {most}"
                    hint = "Enlarge the budget, or keep less."
                    problems.append(Problem("models", what, path=f"memory.{device}", hint=hint))
        if problems:
            raise ConfigError(problems)

    def set_size(self, holding: Holding, name: str, device: str, files_bytes: int) -> None:
        """Set what a version takes as far as it is known before its build, and whether it is kept.

        Args:
            holding: What it takes.
            name: The model.
            device: The devices of its nodes, as `headrace_models.version.Version.device` has them.
            files_bytes: The size of its files.
        """
        holding.keep |= name in self._keep
        holding.idle_unload_s = self._idle_unload_s.get(name)
        if name in self._sizes or holding.origin != "measured":
            devices = {"host" if one == "cpu" else one for one in device.split(", ")}
            known = devices & {*self.budget_bytes} or {"host"} & {*self.budget_bytes}
            holding.origin = "given" if name in self._sizes else "estimated"
            holding.sizes_bytes = {
                one: self._sizes.get(name)
                or max(files_bytes, min(2 * files_bytes, self.budget_bytes[one]))
                for one in known
            }

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
        try:
            before = self._measured_bytes(holding)
            made = self._made(holding, make)
            after = self._measured_bytes(holding)
        except BaseException:
            self.give(holding)
            raise
        finally:
            with self._changed:
                self._building -= 1
                alone = self._moves == moves and not self._building
                self._moves += 1
        with self._changed:
            for device in before.keys() & after.keys() if alone else ():
                # Memory that was free before the build does not show: the files are the least.
                least = holding.sizes_bytes[device] // 2
                holding.sizes_bytes[device] = max(least, after[device] - before[device])
                holding.origin = "measured"
            over = self._missing(Holding("", dict.fromkeys(self.budget_bytes, 0)))
            victims = self._victims(over)
        if over:
            _log.warning("model %r takes more than was set aside: over by %s", holding.title, over)
        self._send_away(victims)
        return made

    def _measured_bytes(self, holding: Holding) -> dict[str, int]:
        unknown = holding.sizes_bytes if holding.origin == "estimated" else ()
        found = {one: self._measure(one) for one in unknown}
        return {one: size for one, size in found.items() if size is not None}

    def _made(self, holding: Holding, make: Callable[[], _T]) -> _T:
        """Build a version, once more without the idle ones if the device has no memory left."""
        for last in (False, True):
            try:
                return make()
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                if last:
                    what = f"model {holding.title!r} could not be built: no memory is left"
                    raise OutOfMemoryError(what, hint="Set a smaller budget.") from error
            self._send_idle_away()
        raise AssertionError

    def _send_idle_away(self) -> None:
        """Let all leave that may, and that have no requests, and wait until they have."""
        with self._changed:
            idle = [one for one in self._by_use() if not one.is_busy()]
            for one in idle:
                one.leaving = True
        self._send_away(idle)
        with self._changed:
            self._changed.wait_for(
                lambda: not any(one.leaving for one in idle if one in self._held)
            )

    def _send_away(self, victims: list[Holding]) -> None:
        for one in victims:
            if not one.leave():
                with self._changed:
                    one.leaving = False
                    self._changed.notify_all()

    def _take(self, holding: Holding) -> None:
        with self._changed:
            self.join(holding)
            self._changed.notify_all()  # what it replaces stays now, whoever waits for it
        try:
            while True:
                with self._changed:
                    victims = self.step(holding)
                    if victims is None:
                        return
                    if not victims:
                        self._changed.wait(self.pause_s())
                self._send_away(victims)
        finally:
            self.quit(holding)

    def join(self, holding: Holding) -> None:
        """Let a version wait for room, behind those that wait already."""
        self._line.append(holding)

    def quit(self, holding: Holding) -> None:
        """Let a version wait no more, whether it has its room or not."""
        with self._changed:
            self._line.remove(holding)
            self._changed.notify_all()

    def step(self, holding: Holding) -> list[Holding] | None:
        """Give room to a version that waits, if there is some and nobody has waited for longer.

        Returns:
            None: it has its room. Else those that must leave for it now.

        Raises:
            OutOfMemoryError: There will be no room, whoever leaves.
            ClosedError: The models were closed.
        """
        if self._closed:
            raise ClosedError("the models are closed")
        self._looked = self._clock()
        if self._line[0] is not holding:
            return []
        missing = self._missing(holding)
        if not missing:
            self._held.append(holding)
            holding.since, holding.leaving = None, False
            return None
        self._check_possible(holding)
        return self._victims(missing)

    def _victims(self, missing: Mapping[str, int]) -> list[Holding]:
        """Return those that must leave now for so many bytes by device, none if they would not be enough."""
        gone = _sum(one for one in self._held if one.leaving)
        victims = []
        for one in self._by_use():
            if all(gone[device] >= size for device, size in missing.items()):
                break
            if any(gone[d] < size and one.sizes_bytes.get(d) for d, size in missing.items()):
                victims.append(one)
                gone.update(one.sizes_bytes)
        if any(gone[device] < size for device, size in missing.items()):
            return []
        for one in victims:
            one.leaving = True
        return victims

    def _missing(self, holding: Holding) -> dict[str, int]:
        """Return the bytes that a version lacks, by device."""
        used = self.used_bytes()
        lacks = {d: used[d] + n - self.budget_bytes[d] for d, n in holding.sizes_bytes.items()}
        return {device: size for device, size in lacks.items() if size > 0}

    def _by_use(self) -> list[Holding]:
        """Return those that may leave now: idle ones first, of these the least recently used."""
        now = self._clock()
        may = [one for one in self._held if not (one.stays or one.updating or one.leaving)]
        may = [one for one in may if one.since is not None and one.since + self._min_stay_s <= now]
        return sorted(may, key=lambda one: (one.is_busy(), one.last_use()))

    def _check_possible(self, holding: Holding) -> None:
        """Refuse a version for which there is no room beside those that stay, and that wait to be replaced."""
        stay = {one.replaces for one in self._line}
        for device, size in holding.sizes_bytes.items():
            fixed = [one for one in self._held if one.stays or one in stay]
            most = self.budget_bytes[device] - _sum(fixed)[device]
            if size > most:
                what = f"model {holding.title!r} needs {size} bytes on {device}, and there are {max(0, most)}"
                others = ", ".join(
                    sorted(one.title for one in fixed if one.sizes_bytes.get(device))
                )
                hint = f"These stay: {others}." if others else "Enlarge the budget."
                raise OutOfMemoryError(what, hint=hint)

    def pause_s(self) -> float | None:
        """Return the seconds until a model may leave that could not in the last `step`. None: no time changes that."""
        ends = [one.since + self._min_stay_s for one in self._held if one.since is not None]
        end = min((one for one in ends if one > self._looked), default=None)
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
                now, idle = self._clock(), []
                may = [one for one in self._by_use() if one.idle_unload_s is not None]
                ends = {one: self._idle_end(one) for one in may if not one.is_busy()}
                for one in [one for one, end in ends.items() if end <= now]:
                    one.leaving, one.reason = True, f"evicted: idle for {one.idle_unload_s:g} s"
                    idle.append(one)
                if not idle:
                    self._changed.wait(min([_LOOK_S, *(end - now for end in ends.values())]))
            self._send_away(idle)

    def _idle_end(self, holding: Holding) -> float:
        return max(holding.since or 0.0, holding.last_use()) + (holding.idle_unload_s or 0.0)

    def give(self, holding: Holding) -> None:
        """Give the room of a version back, whose pipeline is closed."""
        if "host" in holding.sizes_bytes:
            _trim()
        if holding.since is not None:
            _log.info("model %r has left", holding.title)
            self._tell_thrashing(holding, holding.since)
        with self._changed:
            self._held.remove(holding)
            self._moves += 1
            self._changed.notify_all()

    def _tell_thrashing(self, holding: Holding, since: float) -> None:
        now = self._clock()
        if now - since < 2 * self._min_stay_s and now >= self._told + _TOLD_S:
            self._told = now
            what = "model %r has left after %.1f s: too many models are asked for by turns"
            _log.warning(what, holding.title, now - since)

    def used_bytes(self) -> Counter[str]:
        """Return the bytes that all versions take that are built or being built, by device."""
        return _sum(self._held)

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
        what = f"the memory of {name!r} is {text!r}, which is no size with a unit"
        raise ConfigError(Problem("models", what, hint='Write it as "8 GiB" or "500 MiB".'))
    return size


def _sum(holdings: Iterable[Holding]) -> Counter[str]:
    found = Counter[str]()
    for one in holdings:
        found.update(one.sizes_bytes)
    return found


def _used_bytes(device: str) -> int | None:
    """Return the bytes that this process and all its children have on a device. None if nothing tells.

    On the host they are the resident bytes, which Linux tells.

    Source:
        ``/proc/[pid]/stat`` in proc(5).
    """
    pages: dict[int, int] = {}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], pages[pid] = int(found[1]), int(found[21])
    ours, before = {os.getpid()} & {*pages}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    if device != "host":
        return device_bytes(device, ours or {os.getpid()})
    return sum(pages[pid] for pid in ours) * os.sysconf("SC_PAGE_SIZE") if ours else None


def _trim() -> None:
    """Give freed pages back to the system: glibc keeps those of large blocks after the first block was freed.

    Source:
        malloc_trim(3), and M_MMAP_THRESHOLD in mallopt(3).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other libraries of C have none
        ctypes.CDLL(None).malloc_trim(0)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, says that there is no memory: the built-in one, or that of torch."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        error = error.__cause__
    return False
