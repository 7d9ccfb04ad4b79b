"""What one ``run`` or ``add`` reads: its sources, as a collection gives them, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_vision.reading.inputs import Input, read_all, recognise
from headrace_vision.reading.thread import Stills, failed_shot, read_source, still_shot

if TYPE_CHECKING:
    from headrace_vision.frames import Shot
    from headrace_vision.options import SourceOptions
    from headrace_vision.reading.source import Source
    from headrace_vision.reading.stills import StillDecoder
    from headrace_vision.running.loop import Loop

__all__ = ["KEPT", "Group", "Handle", "check_input"]

KEPT = 256
"""So many sources that have ended stay in ``status()``."""


def check_input(x: Any, network: Iterable[str]) -> Any:
    """Refuse what is no input before anything is opened. Generators are not begun.

    Returns:
        What is to be read: ``x``, or the content of a file object, which can be read only once.

    Raises:
        InputError: See `headrace_vision.reading.inputs.recognise`.
    """
    if callable(getattr(x, "read", None)):
        return read_all(x)
    media = recognise(x, network)
    values = media.target.values() if isinstance(media.target, Mapping) else media.target
    is_known = isinstance(values, (list, tuple, type({}.values())))
    if media.kind == "collection" and media.found_in is None and is_known:
        for value in values:
            if not callable(getattr(value, "read", None)):
                check_input(value, network)
    return x


@dataclass(eq=False)
class Group:
    """The sources of one call.

    Attributes:
        options: How each of them is read.
        network: Hosts whose addresses may be opened.
        decode: Decodes stills.
        most_files: Most files of one collection that are read at the same time.
        make: Makes a source of a name, for an input.
        over: Called when a source has ended.
        pass_by: Called with each file in a folder that is no picture.
        loop: Gets the frames. None: the runner decides.
    """

    options: SourceOptions
    network: tuple[str, ...]
    decode: StillDecoder
    most_files: int
    make: Callable[[Group, str, bool], Source]
    over: Callable[[Source], None]
    pass_by: Callable[[str], None]
    loop: Loop | None

    def __post_init__(self) -> None:
        self.sources: list[Source] = []
        self.threads: list[threading.Thread] = []
        self.stopping = threading.Event()
        self.error: str | None = None
        self.changed = threading.Condition()
        self.ended: dict[str, dict[str, Any]] = {}
        self.collecting = self._files = self._in_memory = 0

    def begin(self, x: Any, name: str | None = None) -> None:
        """Start to read an input: a source of its own, or the thread of a collection.

        Raises:
            InputError: It is no input.
        """
        self._begin(recognise(x, self.network), name)

    def _begin(self, media: Input, name: str | None) -> None:
        if media.kind != "collection":
            self._start_source(media, name)
            return
        with self.changed:
            self.collecting += 1
            if self.loop is not None:
                self.loop.join()
        self._start_thread(lambda: self._collect_all(media, name))

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="headrace-vision-reader", daemon=True)
        with self.changed:
            self.threads = [old for old in self.threads if old.is_alive() or old.ident is None]
            self.threads.append(thread)
        thread.start()

    def _source(self, media: Input, name: str | None) -> Source:
        label = name or media.last_part
        if label is None:
            with self.changed:
                label = "input" if not self._in_memory else f"input-{self._in_memory + 1}"
                self._in_memory += 1
        source = self.make(self, label, media.live)
        with self.changed:
            self.sources.append(source)
        return source

    def _start_source(self, media: Input, name: str | None, *, is_counted: bool = False) -> None:
        source = self._source(media, name)

        def read() -> None:
            try:
                read_source(source, media, self.decode)
            finally:
                if is_counted:
                    with self.changed:
                        self._files -= 1
                        self.changed.notify_all()
                self.over(source)

        self._start_thread(read)

    def _collect_all(self, collection: Input, name: str | None) -> None:
        own: list[Stills] = []
        try:
            self._collect(collection, name, own)
            # An iterator is gone after one round; what else it holds has begun, and repeats itself.
            is_kept = collection.target is not iter(collection.target)
            while is_kept and own and own[0].begins_again():
                self._collect(collection, name, own, stills_only=True)
        except Exception as error:  # noqa: BLE001 - a generator of the user's may raise anything
            self.error = f"{type(error).__name__}: {error}"
            for stills in own or [self._own(collection, name, own)]:
                stills.source.push(failed_shot(error, collection.name))
                stills.source.finish(error)
                self.over(stills.source)
        for stills in own:
            source = stills.source
            if not source.reader_done:
                if self.stopping.is_set():
                    source.stopping.set()
                source.finish()
                self.over(source)
        with self.changed:
            self.collecting -= 1
            loop = self.loop
            self.changed.notify_all()
        if loop is not None:
            loop.leave()

    def _collect(
        self, collection: Input, name: str | None, own: list[Stills], *, stills_only: bool = False
    ) -> None:
        target = collection.target
        pairs = target.items() if isinstance(target, Mapping) else ((None, item) for item in target)
        is_over = False
        for key, item in pairs:
            if self.stopping.is_set():
                return
            try:
                member = recognise(item, self.network, found_in=collection.found_in)
            except Exception as error:  # noqa: BLE001 - one wrong item leaves the others alone
                if not self._own(collection, name, own).push(failed_shot(error, None)):
                    return
                continue
            is_named = collection.found_in is None and member.name is not None
            is_own = member.kind == "still" and not is_named
            if key is None and is_own:
                # At `stop` no more stills are taken. Other inputs may follow, if what holds them has an end.
                if not is_over:
                    is_over = not self._own(collection, name, own).push(self._still(member))
                if is_over and not isinstance(target, Sized):
                    return
            elif not stills_only:
                self._begin_other(member, None if key is None else str(key))

    def _begin_other(self, member: Input, name: str | None) -> None:
        """Begin what a collection holds beside its own stills, once there is room for it."""
        if member.kind == "beside":
            self.pass_by(str(member.name))
        elif member.kind == "collection":
            self._begin(member, name)
        elif self._has_room(member):
            self._start_source(member, name, is_counted=not member.live)

    def _still(self, still: Input) -> Shot:
        return still_shot(still, self.decode, self.options.max_pixels)

    def _own(self, collection: Input, name: str | None, own: list[Stills]) -> Stills:
        if not own:
            own.append(Stills(self._source(Input("still", collection.name, None), name)))
        return own[0]

    def _has_room(self, media: Input) -> bool:
        """Wait until another file may be read; False once the group is to stop."""
        with self.changed:
            while not media.live and self._files >= self.most_files:
                if self.stopping.is_set():
                    return False
                self.changed.wait()
            self._files += not media.live
            return not self.stopping.is_set()

    def stop(self, *, discard: bool = False) -> None:
        """Stop every source; see `headrace_vision.reading.source.Source.stop`."""
        self.stopping.set()
        with self.changed:
            self.changed.notify_all()
            sources = list(self.sources)
        for source in sources:
            source.stop(discard=discard)

    def forget(self, source: Source) -> None:
        """Keep no more of a source that has ended."""
        with self.changed:
            if source in self.sources:
                self.sources.remove(source)
            self.ended[source.name] = source.status()
            while len(self.ended) > KEPT:
                del self.ended[next(iter(self.ended))]
            self.changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether everything was read and delivered."""
        with self.changed:
            return not self.collecting and not self.sources

    @property
    def is_gone(self) -> bool:
        """Whether it is over, and its threads have ended."""
        with self.changed:
            return self.is_over and not any(thread.is_alive() for thread in self.threads)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything was read and delivered; return whether it was, within seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.collecting and not self.sources, timeout)

    def join(self, left_s: Callable[[], float]) -> bool:
        """Wait for the end of all sources and threads. Return whether it came in time.

        Args:
            left_s: Returns the seconds that are left.
        """
        over = self.wait(left_s())
        for thread in list(self.threads):
            if thread is not threading.current_thread():
                thread.join(left_s())
                over = over and not thread.is_alive()
        return over

    def statuses(self) -> dict[str, Any]:
        """Return the status of each source by its name."""
        with self.changed:
            return {**self.ended, **{source.name: source.status() for source in self.sources}}


class Handle:
    """What ``VideoRunner.add`` returns: the sources that it began."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def stop(self) -> None:
        """Read no more; frames that nobody began are cancelled, the others are delivered."""
        self._group.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything was read and delivered.

        Args:
            timeout: Seconds. None for any time.

        Returns:
            Whether it was.
        """
        return self._group.wait(timeout)

    def status(self) -> dict[str, Any]:
        """Return ``state`` (``"open"`` or ``"ended"``), ``error`` and ``sources``, for JSON."""
        state = "ended" if self._group.is_over else "open"
        return {"state": state, "error": self._group.error, "sources": self._group.statuses()}
