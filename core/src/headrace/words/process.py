"""Process: a backend in a process of its own."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headrace._build.channel import UnreadableError, pickled
from headrace._build.parcels import (
    Changes,
    apart,
    apply,
    packed,
    source_of,
    together,
    without_copies,
)
from headrace._build.word import Word
from headrace._options import Options as _Options
from headrace._plan.word import keys_named, planned_word
from headrace._portable import error_text
from headrace._presence import Presence
from headrace._scheduling.entry import claimed
from headrace._scheduling.threads import entries_running_here
from headrace.errors import BackendError, ContractError, InputError, InstanceLostError, SetupError
from headrace.words._supervisor import Restarts, Supervisor, how_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace._backend import Backend, InitContext
    from headrace._build.channel import Content
    from headrace._build.word import At, Building
    from headrace._checked import Outcomes
    from headrace._plan.element import Element
    from headrace._plan.word import Needs, Use
    from headrace._scheduling.entry import Entry
    from headrace.keys import Request
    from headrace.words._supervisor import Child

__all__ = ["Process"]

_ENDING_S = 1.0
"""How long a process has that has closed its end, before it is killed."""

_EVERYWHERE = "Put it into a module, or into a file that the configuration names under `import`."


class Process(Word):
    """Let X live in a process of its own: ``Process[X]``.

    As `BackgroundThread`, but X has an interpreter, an interpreter lock and a memory of its own: for
    Python code that computes and holds the lock, for a library that several instances cannot share in
    one process, for one that may crash or hang. ``init``, every ``forward`` and ``close`` of X happen
    in the main thread there.

    A copy of the keys that X reads goes there, and what X wrote comes back; large arrays and ``bytes``
    through shared memory. What X changes in place without writing it to a key, changes in its copy alone.
    What X names must be inside: queues, nodes and registered instances of the
    pipeline are not there. A class or function that X uses must be importable: part of an installed
    module, or of a file that the configuration imports. Log records and warnings of X arrive here.

    When the process dies, its batch fails with InstanceLostError, or, if all that stands inside says
    ``rerun``, each of its items runs once more, alone. The process is started again, after growing
    pauses; when it has died more than ``restart_limit`` times within a minute, the instance is lost.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; ContractError when one that
        it wrote cannot; InstanceLostError when the process has died.
    Source:
        own
    Example:
        ``{"data": "fish &amp; chips"}`` gives ``"FISH & CHIPS"``::

            backend = "S[Process[Call(html:unescape)],Upper]"
    """

    class Options(_Options):
        """Options of Process."""

        restart_limit: int = Field(
            5, ge=0, description="How many times a minute the process is started again."
        )
        kill_after_ms: float | None = Field(
            None,
            ge=0,
            description="Kill the process when a batch runs for so long (ms) after the last deadline "
            "of its requests; none: never. A batch with a request without deadline is not killed.",
        )

    takes = 1
    _threaded = True
    _own_process = True

    @classmethod
    def _check(cls, use: Use) -> bool:
        """Check that all that stands inside is there; report what is not."""
        children = use.element.children
        inside = list(children[0].walk()) if children else []
        own = {id(one) for one in inside}
        for one in inside:
            named, hint = one.named, None
            if (
                named is not None and (named.registered or id(named.element) not in own)
            ) or planned_word(one.cls)._reaches_out:
                why = (
                    "it reaches for something of the pipeline, which another process does not have"
                )
            elif getattr(source_of(one.cls), "__module__", None) == "__main__":
                why = "it is registered by the program itself, which another process does not run"
                hint = "Put it into a file, and name that under `import`."
            else:
                continue
            message = f"{one.name} cannot stand in {use.element.name}: {why}"
            use.planning.add("process", message, one.call, use.scope, hint=hint)
            return False
        return True

    @classmethod
    def _needs(
        cls, element: Element, inner: Callable[[Element], Needs], built: Backend | None
    ) -> Needs:
        """Give what is needed inside, which the other process has told once it is built."""
        if built is None:
            return inner(element.children[0])
        return dict.fromkeys(keys_named(built, None, "reads"), element.name)

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build it in a thread that talks with the process."""
        return building.in_thread(
            element, element, lambda one, inside: building.backend(one, (), inside), at
        )

    def _prepare(self, building: Building, element: Element, at: At) -> None:
        """Take note of what is to live there."""
        self._inside = element.children[0]
        self._keys = building.node.keys if building.node is not None else None
        self._files = [path for path, _ in building.plan.files]
        self._threads = building.threads

    def init(self, options: Options, context: InitContext) -> None:
        """Start the process, build X there, and take over its range.

        Raises:
            SetupError: It could not be built, or the process ended.
        """
        about = {
            "node": context.node_name,
            "keys": self._keys,
            "index": context.instance_index,
            "element": self._inside,
            "threads": self._threads,
            "allow_import": context.allow_import,
        }
        try:
            plan = packed(about)
        except Exception as error:
            raise SetupError(
                f"what stands in Process cannot be sent to another process: {error_text(error)}",
                hint="Let its classes and functions be importable: put them into a module, or into a "
                "file that the configuration names under `import`.",
            ) from error
        first = {"files": self._files, "plan": plan, "levels": _levels()}
        self._kill_after_s = None if options.kill_after_ms is None else options.kill_after_ms / 1000
        presence = self._lost or Presence()
        self._supervisor = Supervisor(
            f"headrace-{context.node_name}-{context.instance_index}-process",
            pickled(first),
            Restarts(options.restart_limit),
            presence,
        )
        presence.ends.append(self._supervisor.kill)
        self._child = self._supervisor.start(context.cancelled)
        built = self._child.about
        self.min, self.max, self.rerun = built["min"], built["max"], built["rerun"]  # type: ignore[misc]
        self.reads = built["reads"]
        self._read_there, self._may_go = set(built["read_there"]), tuple(built["may_go"])
        self._all_rerun = built["all_rerun"]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its process; where that dies, each item once more if it may.

        Raises:
            InstanceLostError: The process has died.
        """
        try:
            return self._run(batch)
        except InstanceLostError as error:
            if not self._all_rerun or self.min > 1:
                raise
            lost = error
        outcomes: list[Exception | None] = []
        entries = self._entries()
        for request in batch:
            if not _taken_back(entries.get(id(request))):
                outcomes.append(lost)
                continue
            try:
                outcomes += self._run([request]) or [None]
            except InstanceLostError as error:
                lost = error
                outcomes.append(lost)
        return outcomes

    def describe(self) -> dict[str, Any]:
        """Give the number of the process, and what was built there."""
        return {"process": self._child.about["process"], "tree": self._child.about["tree"]}

    def close(self) -> None:
        """Close X and end the process; one that does not end is killed."""
        self._supervisor.close()
        self._child.close()

    # One batch.

    def _run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run a batch there.

        Raises:
            InstanceLostError: The process has died.
        """
        child = self._living()
        try:
            outcomes = self._asked(child, batch)
        except EOFError:
            raise self._death(child) from None
        for outcome in outcomes or ():
            if isinstance(outcome, InstanceLostError):
                outcome.node = None  # raised anew here, so that the instance is known to be lost
        return outcomes

    def _living(self) -> Child:
        """Give the process that lives, and the descriptors of one that does not back."""
        try:
            child = self._supervisor.child()
        except InstanceLostError as error:
            error.node = self._node  # by whom the instance is lost is known
            raise
        if child is not self._child:
            self._child.close()
            self._child = child
        return child

    def _death(self, child: Child, hung: bool = False) -> InstanceLostError:
        """Make the error of a batch whose process has died, once that is noted everywhere."""
        if not child.ended.wait(_ENDING_S):
            child.kill()  # it has only closed its end
            child.ended.wait()
        hint = "X is slower than the deadlines, or hangs." if hung else None
        if not hung and child.status == -9:
            hint = "The system kills so what takes more memory than there is."
        killed = ", killed for running on after the deadlines" if hung else ""
        return InstanceLostError(
            f"its process has died {how_ended(child.status)}{killed}", hint=hint, node=self._node
        )

    def _asked(self, child: Child, batch: list[Request]) -> list[Exception | None] | None:
        """Send a batch, wait for the answers, and do what they say to the requests."""
        wanted = [{key: one[key] for key in self._may_go if key in one} for one in batch]
        errors: list[Exception | None] = [None] * len(batch)
        answers: Iterable[tuple[Changes, Exception | None]] | None = None
        try:
            content = pickled(("batch", [without_copies(one) for one in wanted]))
        except Exception:  # noqa: BLE001 - whatever the values raise; which of them, is found out below
            content = None
        if content is not None:
            answers = self._answers(child, content, batch)
        if answers is None:
            parcels = [self._parcel(one, place, errors) for place, one in enumerate(wanted)]
            alive = [parcel for parcel in parcels if parcel is not None]
            answers = self._answers(child, pickled(("apart", alive)), batch) if alive else ()
        given = iter(answers or ())
        entries = self._entries()
        for place, request in enumerate(batch):
            if errors[place] is None:
                found, errors[place] = next(given)
                if _taken_back(entries.get(id(request))):
                    apply(found, request)
        return errors if any(errors) else None

    def _entries(self) -> dict[int, Entry]:
        """Give the entries whose requests nobody touches but this, by the identity of the request."""
        entries = entries_running_here() if self._whole else ()
        return {id(entry.request): entry for entry in entries}

    def _answers(
        self, child: Child, content: Content, batch: list[Request]
    ) -> Iterable[tuple[Changes, Exception | None]] | None:
        """Send a batch and wait for what has become of it; None when it could not be read there."""
        child.channel.send(content)
        entries = self._entries()
        for request in batch:
            entry = entries.get(id(request))
            if entry is not None and entry.lent is None:
                entry.lent = [None]  # its owner may go away with it from now on: there is a copy
        try:
            kind, heard, answers = child.channel.receive(self._patience_s())
        except TimeoutError:
            child.kill()
            raise self._death(child, hung=True) from None
        except UnreadableError:
            child.channel.send(pickled(("again", None)))
            kind, heard, answers = child.channel.receive()
        child.wait_heard(heard)
        if kind == "apart":
            return map(_remade, answers)
        return None if kind == "unread" else answers

    def _patience_s(self) -> float | None:
        """Give how long to wait for an answer before the process is killed; None for ever."""
        if self._kill_after_s is None:
            return None
        deadlines = [entry.deadline for entry in entries_running_here()]
        ends = [at for at in deadlines if at is not None]
        if not ends or len(ends) < len(deadlines):
            return None
        return max(max(ends) + self._kill_after_s - time.monotonic(), 0.001)

    def _parcel(
        self, values: dict[str, Any], place: int, errors: list[Exception | None]
    ) -> dict[str, bytes] | None:
        """Give each value by itself, without those that cannot be copied and that nobody reads there."""
        good, bad = apart(values)
        for key, error in bad.items():
            if key in self._read_there:
                failure = errors[place] = InputError(
                    f"it cannot be sent to another process: {error_text(error)}",
                    key=key,
                    expected="something that pickle takes",
                    got=type(values[key]).__name__,
                )
                failure.__cause__ = error
                return None
        return good


def _taken_back(entry: Entry | None) -> bool:
    """Take a request back that was lent to its owner; False when that has gone away with it."""
    if entry is not None and entry.lent is not None:
        if not claimed(entry.lent):
            return False
        entry.lent = None
    return True


def _remade(answer: tuple[dict[str, str], dict[str, bytes], list[str], bytes]) -> Any:
    """Give what has become of a request, of which each value was sent by itself."""
    same, parts, gone, outcome = answer
    good, bad = together(parts)
    if bad:
        key, error = next(iter(bad.items()))
        failure = ContractError(
            f"what it wrote to {key!r} is unknown outside of its process: {error_text(error)}",
            hint=_EVERYWHERE,
        )
        return Changes({}, {}, []), failure
    found, unknown = together({"outcome": outcome})
    for error in unknown.values():
        found["outcome"] = BackendError(f"its error is unknown here: {error_text(error)}")
    return Changes(same, good, gone), found["outcome"]


def _levels() -> dict[str, int]:
    """Give the levels of all loggers that have one of their own."""
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    return {
        name: one.level
        for name, one in loggers.items()
        if isinstance(one, logging.Logger) and one.level
    }
