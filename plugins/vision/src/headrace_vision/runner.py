"""`VideoRunner`: any number of sources through one pipeline, the frames of each in their order."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import headrace
from headrace_vision.clock import Clock
from headrace_vision.group import KEPT, Group, Handle, check_input
from headrace_vision.loop import Loop
from headrace_vision.options import SourceOptions, options_of
from headrace_vision.ordered import Ordered
from headrace_vision.sinks import SinkThreads, as_sink
from headrace_vision.source import Flight, Source
from headrace_vision.stills import StillDecoder

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["VideoRunner"]

CLOSE_S = 5.0
"""Most seconds for which the end of a loop, or `VideoRunner.close`, waits for threads."""


def _wait_for(groups: Iterable[Group]) -> bool:
    """Wait for the end of all groups and their threads; return whether it came within `CLOSE_S`."""
    deadline = time.monotonic() + CLOSE_S
    over = True
    for group in groups:
        over = group.join(lambda: max(deadline - time.monotonic(), 0.0)) and over
    return over


class VideoRunner:
    """Sends the frames of any number of sources through one pipeline, and delivers them in order.

    All sources share the pipeline, and so its batches. Every frame that is read has one outcome:
    it is delivered, it fails, or it is dropped. Frames of one source are delivered in their order.

    The pipeline gets ``data`` and ``image`` (``uint8 [H, W, 3]``), ``color="bgr"``, and in
    ``context``: ``source``, ``frame``, ``timestamp`` (s), ``gap`` and ``path``.

    Args:
        pipe: A pipeline, or a configuration, of which one is built and closed with the runner.
        ordered: An expression, or a configuration, that gets the results of each source in order:
            built once per source, called by one thread at a time. A failed frame passes it by.
        sinks: Objects of `headrace_vision.Sink`, or functions of a `headrace_vision.Frame`.
        decode: The expression that decodes stills; it gets the bytes of a file.
        network: Hosts whose addresses may be opened. Others are refused.
        most_files: Most files of one collection that are read at the same time.
        clock: The time that live sources follow.
        options: Defaults of `headrace_vision.SourceOptions` by name, as ``in_flight=8``.

    Raises:
        ConfigError: ``pipe`` or ``ordered`` is wrong.
        TypeError, ValueError: An option is unknown or out of its range.
    """

    def __init__(
        self,
        pipe: headrace.Pipeline | Mapping[str, Any] | str | os.PathLike[str],
        *,
        ordered: str | Mapping[str, Any] | None = None,
        sinks: Iterable[Any] = (),
        decode: str = "DecodeMat",
        network: Iterable[str] = (),
        most_files: int = 16,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self._options = options_of(SourceOptions(), options)
        if isinstance(network, str):
            raise TypeError(f"network is a list of hosts: write network=[{network!r}]")
        if most_files < 1:
            raise ValueError(f"most_files is at least 1, not {most_files!r}")
        self._network = tuple(network)
        self._most_files = most_files
        self._clock = clock or Clock()
        self._decode = StillDecoder(decode)
        self._ordered = Ordered(ordered)
        wanted = [as_sink(sink) for sink in sinks]
        self._owns_pipe = not isinstance(pipe, headrace.Pipeline)
        self._pipe: headrace.Pipeline = (
            pipe if isinstance(pipe, headrace.Pipeline) else headrace.pipe(pipe)
        )
        self._lock = threading.RLock()
        self._sources: dict[str, Source] = {}
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._groups: dict[Source, Group] = {}
        self._open_groups: list[Group] = []
        self._loops: list[Loop] = []
        self._lobby: list[tuple[Source, Frame]] = []
        self._closed = False
        self._sinks = SinkThreads(wanted)
        self._workers: ThreadPoolExecutor | None = None
        if wanted or not self._ordered.is_empty:
            count = min(8, (os.cpu_count() or 1) + 2)
            self._workers = ThreadPoolExecutor(count, "headrace-vision-ordered")

    # What is read.

    def run(self, x: Any = (), **options: Any) -> Iterator[Frame]:
        """Return an iterator over the frames of ``x``, and of what `add` brings meanwhile.

        It ends when all of them have ended. Leaving the loop stops what it reads: frames that nobody began
        are cancelled, and those that nobody has seen are dropped.

        Args:
            x: A path (image, video, animation; folder; pattern; ``.txt`` with an input per line),
                ``"camera:0"``, an address of a host in ``network``; bytes, an array, an image of
                Pillow, a file object; or a list, generator or mapping of names of those.
            options: See `headrace_vision.SourceOptions`; they win over those of the runner.

        Raises:
            InputError: ``x`` is no input, or an address is not allowed.
            ClosedError: The runner is closed.
        """
        chosen = self._checked(x, options)
        return self._run(x, chosen)

    def _checked(self, x: Any, options: dict[str, Any]) -> SourceOptions:
        if self._closed:
            raise headrace.errors.ClosedError("the VideoRunner is closed")
        chosen = options_of(self._options, options)
        check_input(x, self._network)
        return chosen

    def _run(self, x: Any, options: SourceOptions) -> Iterator[Frame]:
        loop, group = self._open_loop(x, options)
        try:
            while (taken := loop.take()) is not None:
                source, frame = taken
                self._released(source, frame)
                yield frame
        finally:
            self._close_loop(loop, group)

    async def run_async(self, x: Any = (), **options: Any) -> AsyncIterator[Frame]:
        """Yield the frames that `run` yields, without blocking the event loop.

        Args:
            x: See `run`.
            options: See `run`.

        Raises:
            InputError, ClosedError: As `run` does.
        """
        chosen = self._checked(x, options)
        loop, group = self._open_loop(x, chosen)
        taking = None
        try:
            while True:
                taking = asyncio.ensure_future(asyncio.to_thread(loop.take))
                taken = await asyncio.shield(taking)
                if taken is None:
                    return
                source, frame = taken
                self._released(source, frame)
                yield frame
        finally:
            if taking is not None and not taking.done():  # cancelled while it waited
                taking.add_done_callback(self._give_back)
            await asyncio.to_thread(self._close_loop, loop, group)

    def add(self, x: Any, **options: Any) -> Handle:
        """Begin to read something more, at once.

        Its frames go to the loop over `run` that is open. While there is none, they go to the sinks
        alone; without sinks they wait for a loop.

        Args:
            x: See `run`.
            options: See `run`.

        Returns:
            A handle that stops it and says how it goes.

        Raises:
            InputError, ClosedError: As `run` does.
        """
        chosen = self._checked(x, options)
        with self._lock:
            loop = self._loops[-1] if self._loops else None
            group = self._group(chosen, loop)
        group.begin(x)
        return Handle(group)

    def _group(self, options: SourceOptions, loop: Loop | None) -> Group:
        group = Group(
            options,
            self._network,
            self._decode,
            most_files=self._most_files,
            make=self._make_source,
            over=self._check_over,
            loop=loop,
        )
        self._open_groups = [one for one in self._open_groups if not one.is_over]
        self._open_groups.append(group)
        return group

    def _make_source(self, group: Group, name: str, live: bool) -> Source:
        with self._lock:
            unique, number = name, 2
            while unique in self._sources:
                unique, number = f"{name}#{number}", number + 1
            source = Source(unique, group.options, live=live, clock=self._clock, send=self._send)
            self._sources[unique] = source
            self._groups[source] = group
            if group.loop is not None:
                group.loop.join()
            if self._closed or group.stopping.is_set():
                source.stop(discard=True)
        return source

    # What is delivered.

    def _send(self, source: Source, flight: Flight) -> None:
        source.begin(flight)
        if flight.frame.error is not None:
            source.ended(flight, cancelled=False)
            self._advance(source)
            return
        try:
            future = self._pipe.submit(flight.request)
        except Exception as error:  # noqa: BLE001 - the outcome of this frame
            flight.frame.error = error
            source.ended(flight, cancelled=False)
            self._advance(source)
            return

        def done(future: Future[Any]) -> None:
            is_cancelled = future.cancelled()
            if not is_cancelled:
                flight.frame.error = future.exception()
                if flight.frame.error is None:
                    flight.frame.result = flight.request["result"]
                flight.frame.request = flight.request
            source.ended(flight, cancelled=is_cancelled)
            self._advance(source)

        flight.future = future
        future.add_done_callback(done)

    def _advance(self, source: Source) -> None:
        if not source.start_drain():
            self._check_over(source)
        elif self._workers is None:
            self._drain(source)
        else:
            try:
                self._workers.submit(self._drain, source)
            except RuntimeError:  # the runner is closed: nobody waits for frames
                source.discards = True
                self._drain(source)

    def _drain(self, source: Source) -> None:
        while True:
            while (flight := source.next_done()) is not None:
                self._deliver(source, flight)
            # One may have ended between the look and the end of this drain.
            if not source.start_drain():
                break
        self._check_over(source)

    def _deliver(self, source: Source, flight: Flight) -> None:
        frame = flight.frame
        if source.discards:
            source.release(frame, dropped=True)
            return
        self._ordered.run(source, flight)
        self._sinks.put(frame)
        with self._lock:
            loop = self._groups[source].loop
            if loop is None and self._sinks.is_empty:
                self._lobby.append((source, frame))
                return
        if loop is None:
            source.release(frame)
        elif not loop.put(source, frame):
            source.release(frame, dropped=True)

    def _released(self, source: Source, frame: Frame) -> None:
        source.release(frame)
        self._check_over(source)

    def _give_back(self, taking: asyncio.Future[tuple[Source, Frame] | None]) -> None:
        taken = None if taking.cancelled() else taking.result()
        if taken is not None:
            source, frame = taken
            source.release(frame, dropped=True)
            self._check_over(source)

    def _check_over(self, source: Source) -> None:
        """Finish a source, once, when all of it was delivered."""
        if not source.reader_done or not source.is_over:
            return
        with self._lock:
            if self._sources.get(source.name) is not source:
                return
            del self._sources[source.name]
            group = self._groups.pop(source)
            loop = group.loop
            self._ended[source.name] = source.status()
            while len(self._ended) > KEPT:
                self._ended.popitem(last=False)
        self._ordered.close(source)
        self._sinks.source_ended(source.name)
        group.forget(source)
        if loop is not None:
            loop.leave()

    # Loops, and the end.

    def _open_loop(self, x: Any, options: SourceOptions) -> tuple[Loop, Group]:
        with self._lock:
            if self._closed:
                raise headrace.errors.ClosedError("the VideoRunner is closed")
            loop = Loop()
            loop.join()  # until everything below has begun
            self._loops.append(loop)
            for group in self._open_groups:
                self._adopt(group, loop)
            waiting, self._lobby = self._lobby, []
            for source, frame in waiting:
                loop.put(source, frame)
            group = self._group(options, loop)
        group.begin(x)
        loop.leave()
        return loop, group

    def _adopt(self, group: Group, loop: Loop) -> None:
        """Let a loop have the frames of a group that has none."""
        with group.changed:
            sources = sum(one is group for one in self._groups.values())
            if group.loop is None and sources + group.collecting:
                loop.join(sources + group.collecting)
                group.loop = loop

    def _close_loop(self, loop: Loop, group: Group) -> None:
        with self._lock:
            if loop in self._loops:
                self._loops.remove(loop)
            mine = [one for one in self._open_groups if one.loop is loop]
        left = loop.close()
        for one in mine:
            one.stop(discard=True)
        for source, frame in left:
            source.release(frame, dropped=True)
            self._check_over(source)
        _wait_for([*mine, group])

    def close(self) -> None:
        """Stop everything: frames that nobody began are cancelled, and files of sinks are finished.

        It returns after 5 s at the latest for the sources, and 5 more for the sinks. A thread that does not
        end by then, because a library holds it, is counted in ``status()`` and ends with the process.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loops, groups = list(self._loops), list(self._open_groups)
            waiting, self._lobby = self._lobby, []
        left = [item for loop in loops for item in loop.close()]
        for group in groups:
            group.stop(discard=True)
        for source, frame in [*waiting, *left]:
            source.release(frame, dropped=True)
            self._check_over(source)
        over = _wait_for(groups)
        self._sinks.close(CLOSE_S)
        if self._workers is not None:
            self._workers.shutdown(wait=over)
        if self._owns_pipe:
            self._pipe.close(drain=False, timeout=CLOSE_S)
        self._decode.close()

    def __enter__(self) -> VideoRunner:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What can be asked.

    def status(self) -> dict[str, Any]:
        """Return ``state``, ``sources``, ``sinks`` and ``stuck_threads`` as a dict for JSON.

        Each source has ``read``, ``delivered``, ``failed``, ``dropped`` and ``in_flight``, and
        ``read`` is the sum of the others. The last 256 sources that have ended are included.
        """
        with self._lock:
            stuck = sum(thread.is_alive() for one in self._open_groups for thread in one.threads)
            closed = self._closed
            found = dict(self._ended)
            found.update((name, source.status()) for name, source in self._sources.items())
        return {
            "state": "closed" if closed else "open",
            "sources": found,
            "sinks": self._sinks.status(),
            "stuck_threads": stuck if closed else 0,
        }
