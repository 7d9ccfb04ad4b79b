"""`VideoRunner`: any number of sources through one pipeline, the frames of each in their order."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import headrace
from headrace_vision.clock import Clock
from headrace_vision.options import SourceOptions, check_name, options_of
from headrace_vision.pipelines.lanes import VideoModel, lanes_of, open_lanes
from headrace_vision.reading.stills import DECODE, StillDecoder
from headrace_vision.running.delivery import Delivery
from headrace_vision.running.group import Group, Handle, check_input
from headrace_vision.running.loop import Loop
from headrace_vision.sinks.threads import SinkThreads, named_sinks

if TYPE_CHECKING:
    from headrace_vision.frames import Frame
    from headrace_vision.pipelines.crop_models import CropModel, SubmitsRequests

__all__ = ["VideoRunner"]

_LOG = logging.getLogger("headrace.vision")

CLOSE_S = 5.0
"""Most seconds for which the end of a loop, or `VideoRunner.close`, waits for threads."""


def _wait_for(groups: Iterable[Group]) -> bool:
    """Wait for the end of all groups and their threads; return whether it came within `CLOSE_S`."""
    deadline = time.monotonic() + CLOSE_S
    over = True
    for group in groups:
        over = group.join(lambda: max(deadline - time.monotonic(), 0.0)) and over
    return over


def _models(pipe: Any, ordered: Any, crops: Any) -> Mapping[str, VideoModel]:
    """Return the models by name; the only one is called ``main``."""
    models = dict(pipe) if isinstance(pipe, Mapping) else {}
    if not any(isinstance(model, VideoModel) for model in models.values()):
        return {"main": VideoModel(pipe, ordered, crops or {})}
    for name, model in models.items():
        if not isinstance(model, VideoModel):
            raise TypeError(f"the model {name!r} is a VideoModel like the others, not {model!r}")
    if ordered is not None or crops is not None:
        raise TypeError("with several models, ordered and crops are arguments of VideoModel")
    return models


class VideoRunner(Delivery):
    """Sends the frames of any number of sources through one pipeline, and delivers them in order.

    All sources share the pipeline, and so its batches. Every frame that is read has one outcome:
    it is delivered, it fails, or it is dropped. Frames of one source are delivered in their order.

    The pipeline gets ``data`` and ``image`` (``uint8 [H, W, 3]``), ``color="bgr"``, and in
    ``context``: ``source``, ``frame``, ``timestamp`` (s), ``gap``, ``damaged``, ``path``, and ``time`` and ``time_from`` of a
    `headrace_vision.Frame`.

    Args:
        pipe: A pipeline, a named model of headrace-models, or a configuration, of which a pipeline is built and closed with
            the runner, or several by name, as a mapping of `headrace_vision.VideoModel`: then each input says its ``model``.
        ordered: An expression, or a configuration, that gets the results of each source in order:
            built once per source, called by one thread at a time. A failed frame passes it by.
        crops: Second models, which get a crop of each detection behind that, by name of the key in ``data`` for what they say.
        sinks: Objects of `headrace_vision.Sink`, or functions of a `headrace_vision.Frame`, or a mapping of their names, which
            are in ``status()``, and in the option ``sinks`` of a source.
        decode: The expression that decodes stills. It gets the bytes of a file.
        network: Hosts whose addresses may be opened. Others are refused.
        most_files: Most files of one collection that are read at the same time.
        machine_clock: The seconds of the machine, which waiting and the times of arrival follow. A test has its own.
        options: Defaults of `headrace_vision.SourceOptions` by name, as ``in_flight=8``.

    Raises:
        ConfigError: ``pipe`` or ``ordered`` is wrong.
        TypeError, ValueError: An option is unknown or out of its range.
    """

    def __init__(
        self,
        pipe: headrace.Pipeline
        | SubmitsRequests
        | Mapping[str, VideoModel]
        | Mapping[str, Any]
        | str
        | os.PathLike[str],
        *,
        ordered: str | Mapping[str, Any] | None = None,
        crops: Mapping[str, CropModel] | None = None,
        sinks: Iterable[Any] | Mapping[str, Any] = (),
        decode: str = DECODE,
        network: Iterable[str] = (),
        most_files: int = 16,
        machine_clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self._options = options_of(SourceOptions(), options)
        if isinstance(network, str):
            raise TypeError(f"network is a list of hosts: write network=[{network!r}]")
        if most_files < 1:
            raise ValueError(f"most_files is at least 1, not {most_files!r}")
        self._network = tuple(network)
        self._most_files = most_files
        self._decode = StillDecoder(decode)
        clock = machine_clock or Clock()
        sink_by_name = named_sinks(sinks)
        threads = SinkThreads(sink_by_name, clock)
        models = _models(pipe, ordered, crops)
        for sink in sink_by_name.values():
            if sink.model is not None:
                check_name("model", sink.model, models)
        lanes = open_lanes(models)
        self._open_groups: list[Group] = []
        self._passed_by = 0
        self._loops: list[Loop] = []
        for sink in sink_by_name.values():
            sink.attach(self.status)
        super().__init__(lanes, threads, clock)
        threads.start()

    # What is read.

    def run(self, x: Any = (), **options: Any) -> Iterator[Frame]:
        """Return an iterator over the frames of ``x``, and of what `add` brings meanwhile.

        It ends when all of them have ended. Leaving the loop stops what it reads: frames that nobody began
        are cancelled, and those that nobody has seen are dropped.

        Args:
            x: A path (image, video, animation. Folder. Pattern. ``.txt`` with an input per line),
                ``"camera:0"`` or 0, an address of a host in ``network``. Bytes, an array, an image of
                Pillow, a file object, or a list, generator or mapping of names of those.
            options: See `headrace_vision.SourceOptions`. They win over those of the runner.

        Raises:
            InputError: ``x`` is no input, or an address is not allowed.
            ClosedError: The runner is closed.
        """
        return self._run([self._checked(x, options)])

    def run_sources(self, sources: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> Iterator[Frame]:
        """Return an iterator over the frames of several inputs, each with options of its own.

        Args:
            sources: An input and its options by the name of its source. See `run`.

        Raises:
            InputError, ClosedError: As `run` does.
        """
        return self._run([self._checked({n: x}, dict(o)) for n, (x, o) in sources.items()])

    def _checked(self, x: Any, options: dict[str, Any]) -> tuple[Any, SourceOptions]:
        """Return what is to be read, and how."""
        if self._closed:
            raise headrace.errors.ClosedError("the VideoRunner is closed")
        chosen = options_of(self._options, options)
        lanes_of(self.lanes, chosen)
        self._sinks.check(chosen)
        return check_input(x, self._network), chosen

    def _run(self, parts: list[tuple[Any, SourceOptions]]) -> Iterator[Frame]:
        loop = self._open_loop(parts)
        try:
            while (taken := loop.take()) is not None:
                source, frame = taken
                self._released(source, frame)
                yield frame
        finally:
            self._close_loop(loop)

    async def run_async(self, x: Any = (), **options: Any) -> AsyncIterator[Frame]:
        """Yield the frames that `run` yields, without blocking the event loop.

        Args:
            x: See `run`.
            options: See `run`.

        Raises:
            InputError, ClosedError: As `run` does.
        """
        loop = self._open_loop([self._checked(x, options)])
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
            await asyncio.to_thread(self._close_loop, loop)

    def add(self, x: Any, **options: Any) -> Handle:
        """Begin to read something more, at once.

        Its frames go to the loop over `run` that is open. While there is none, they go to the sinks
        alone, without sinks they wait for a loop.

        Args:
            x: See `run`.
            options: See `run`.

        Returns:
            A handle that stops it and says how it goes.

        Raises:
            InputError, ClosedError: As `run` does.
        """
        x, chosen = self._checked(x, options)
        with self._lock:
            loop = self._loops[-1] if self._loops else None
            group = self._group(chosen, loop)
        group.begin(x)
        return Handle(group)

    def _group(self, options: SourceOptions, loop: Loop | None) -> Group:
        settings = (options, self._network, self._decode, self._most_files)
        added = Group(*settings, self._make_source, self._check_over, self._pass_by, loop)
        open_groups = [group for group in self._open_groups if not group.is_gone]
        self._open_groups = [*open_groups, added]
        return added

    def _pass_by(self, path: str) -> None:
        with self._lock:
            self._passed_by += 1
        if os.path.isfile(path):  # noqa: PTH113 - a text
            _LOG.info("%s is no picture, and is passed by", path)
        else:
            _LOG.warning("%s is no file that can be read, and is passed by", path)

    # Loops, and the end.

    def _open_loop(self, parts: list[tuple[Any, SourceOptions]]) -> Loop:
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
            groups = [(self._group(options, loop), x) for x, options in parts]
        for group, x in groups:
            group.begin(x)
        loop.leave()
        return loop

    def _adopt(self, group: Group, loop: Loop) -> None:
        """Let a loop have the frames of a group that has none."""
        with group.changed:
            sources = sum(owner is group for owner in self._groups.values())
            if group.loop is None and sources + group.collecting:
                loop.join(sources + group.collecting)
                group.loop = loop

    def _close_loop(self, loop: Loop) -> None:
        if sys.is_finalizing():  # no other thread runs any more, and one of them may hold a lock
            return
        with self._lock:
            if loop in self._loops:
                self._loops.remove(loop)
            mine = [group for group in self._open_groups if group.loop is loop]
        left = loop.close()
        for group in mine:
            group.stop(discard=True)
        for source, frame in left:
            source.release(frame, dropped=True)
            self._check_over(source)
        _wait_for(mine)

    def close(self) -> None:
        """Stop everything: frames that nobody began are cancelled, and files of sinks are finished.

        It returns after 5 s at the latest for the sources, and 5 more for the sinks, or what their ``close_s`` says. A sink that
        fails is tried again until then. A thread that does not
        end by then, because a library holds it, is counted in ``status()`` and ends with the process. A sink that
        still writes goes on, and the process waits for it, up to 60 s, before it ends.
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
        self._workers.shutdown(wait=over)
        for lane in self.lanes.values():
            lane.close(CLOSE_S)
        self._decode.close()

    def __enter__(self) -> VideoRunner:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What can be asked.

    def status(self) -> dict[str, Any]:
        """Return ``state``, ``sources``, ``sinks``, ``passed_by`` and ``stuck_threads`` as a dict for JSON.

        Each source has ``read``, ``delivered``, ``failed``, ``dropped``, ``thinned`` (by ``stride`` and ``max_fps``) and
        ``in_flight``, and ``read`` is the sum of the others. ``gated`` counts frames that ``gate`` kept from a model, of each of several. The last 256 sources that have ended are included. ``passed_by`` counts what
        folders hold beside pictures: labels, notes, lists, dead links.
        """
        with self._lock:
            threads = [thread for group in self._open_groups for thread in group.threads]
            stuck = sum(thread.is_alive() for thread in threads)
            closed = self._closed
            passed_by = self._passed_by
            sources = dict(self._ended)
            sources.update((name, source.status()) for name, source in self._sources.items())
        return {
            "state": "closed" if closed else "open",
            "sources": sources,
            "sinks": self._sinks.status(),
            "passed_by": passed_by,
            "stuck_threads": stuck if closed else 0,
        }
