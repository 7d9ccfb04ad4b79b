"""``headrace video``: what a ``vision.toml`` describes, run to its end."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from headrace.errors import ConfigError, code_of
from headrace_cli.for_plugins import (
    FAILED,
    OK,
    Json,
    print_data,
    print_json,
    print_message,
    printing_warnings,
)

if TYPE_CHECKING:
    from headrace_vision.file.tables import VisionConfig
    from headrace_vision.file.vision import Vision

__all__ = ["progress", "video"]

_OVER = ("ended", "stopped", "failed")

EVERY_S = 5.0
"""Seconds between two lines of progress."""


def video(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A vision.toml. Or the first INPUT, where --model is a file.",
            show_default=False,
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Read these, not the sources in CONFIG."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME|FILE",
            help="Which of several models gets the frames. Or the file of a detector: then no vision.toml is needed, and a page shows"
            " its boxes.",
        ),
    ] = "",
    save: Annotated[
        str, typer.Option("--save", metavar="DIR", help="Write a video per source, with boxes.")
    ] = "",
    jsonl: Annotated[
        str, typer.Option("--jsonl", metavar="FILE", help="Write a line of JSON per frame.")
    ] = "",
    view: Annotated[
        bool, typer.Option("--view", help="Serve a page that shows every source live.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check CONFIG as a whole, and build and read nothing.")
    ] = False,
    json: Json = False,
) -> int:
    """Run videos, cameras and pictures through the pipeline of a vision.toml, or a detector.

    A line on stderr says when a camera or a sink is lost, and when it is back. On a terminal a line every 5 s says how it goes. At the end there is a line per source: its name, and how many frames were delivered, failed and dropped. Ctrl-C
    finishes the files that are being written.

    \b
    Examples:
      headrace video 0 --model yolo.onnx
      headrace video vision.toml --check
      headrace video vision.toml
      headrace video vision.toml street.mp4 --save out --jsonl out/all.jsonl
    """  # noqa: D301 - typer keeps the lines after a backspace character
    import headrace_vision
    from headrace_vision.file.vision import load
    from headrace_vision.running.detecting import NETWORKS
    from headrace_vision.running.group import check_input

    options: dict[str, Any] = {}
    is_alone = Path(model).suffix.lower() in NETWORKS
    names = [config, *(inputs or [])][not is_alone :]
    inputs = [f"camera:{text}" if _is_number(text) else text for text in names]
    if is_alone:
        view = view or not (save or jsonl)
        # A clip is to be watched, and not only read.
        loaded, options = _of_detector(model, inputs), {"realtime": not (save or jsonl)}
    else:
        loaded, options = load(config, check_inputs=not inputs), {"model": model} if model else {}
        _check_names(loaded, config, model, inputs)
    check_input(inputs, loaded.network)
    if check:
        print_data(f"{model if is_alone else config}: ok")
        return OK
    if not (inputs or loaded.sources):
        raise ConfigError(f"{config}: there is nothing to read: write [sources.NAME], or INPUT")
    _bound_arenas()
    sinks: list[Any] = []
    if save:
        sinks.append(headrace_vision.SaveVideo(save))
    if jsonl:
        sinks.append(headrace_vision.SaveJSONL(jsonl))
    if view:
        sinks.append(headrace_vision.View())
    with printing_warnings(), headrace_vision.Vision(loaded, more_sinks=tuple(sinks)) as vision:
        failed = _run(vision, inputs or None, options)
    status = vision.status()
    _report(status, json=json)
    broken = [sink for sink in status["sinks"].values() if sink["error"] or sink["lost"]]
    return FAILED if failed or broken else OK


def _bound_arenas() -> None:
    """Let the allocator of glibc have two arenas, unless the environment says how many.

    Else each of the threads gets its own, up to eight times the cores, and what is freed there stays with the process.

    Source:
        mallopt(3): ``M_ARENA_MAX`` is -8.
    """
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError):  # another library of C
            ctypes.CDLL(None).mallopt(-8, 2)


def _of_detector(model: str, inputs: list[str]) -> VisionConfig:
    """Return the configuration that runs the file of a detector; addresses that were typed may be opened."""
    from headrace_vision.file.tables import VisionConfig
    from headrace_vision.network import is_address

    if not Path(model).is_file():
        raise ConfigError(f"--model FILE: there is no file {model!r}")
    hosts = [urlsplit(address).hostname or "" for address in inputs if is_address(address)]
    return VisionConfig(model=model, network=hosts)


def _check_names(loaded: VisionConfig, config: str, model: str, inputs: list[str]) -> None:
    """Refuse a name that no model has."""
    from headrace_vision.pipelines.lanes import check_model

    if inputs or model:
        try:
            check_model(model or None, loaded.all_models)
        except ValueError as error:
            raise ConfigError(f"{config}: --model NAME: {error}") from error


def _is_number(text: str) -> bool:
    return text.isdecimal() and not Path(text).exists()


def _run(vision: Vision, inputs: list[str] | None, options: dict[str, Any]) -> int:
    """Run everything to its end; return how many frames have failed."""
    for sink in vision.status()["sinks"].values():
        if "url" in sink:
            print_message(f"live at {sink['url']}")
    failed = 0
    with progress(vision.status, print_message if sys.stderr.isatty() else None):
        for frame in vision.run(inputs, **options):
            if frame.error is not None:
                failed += 1
                code = code_of(frame.error)
                print_message(f"{frame.source}: frame {frame.frame}: error: {code}: {frame.error}")
    return failed


def _report(status: dict[str, Any], *, json: bool) -> None:
    for name, sink in status["sinks"].items():
        if sink["error"]:
            print_message(f"{name}: error: {sink['error']}")
        if sink["lost"]:
            print_message(f"{name}: {sink['lost']} frames are lost")
    if status["passed_by"]:
        print_message(f"{status['passed_by']} files are no pictures, and were passed by")
    if json:
        print_json({name: status[name] for name in ("sources", "sinks", "passed_by")})
        return
    for name, source in sorted(status["sources"].items()):
        counts = "\t".join(f"{source[key]} {key}" for key in ("delivered", "failed", "dropped"))
        print_data(f"{name}\t{counts}")


@contextmanager
def progress(
    status: Callable[[], dict[str, Any]], say: Callable[[str], object] | None, clock: Any = None
) -> Iterator[None]:
    """Say now and then how many frames a second each source gives, what was dropped, and which one is lost.

    Args:
        status: Returns the status of a runner.
        say: Gets each line. None says nothing.
        clock: A `headrace_vision.Clock`.
    """
    from headrace_vision.clock import Clock

    clock, over = clock or Clock(), threading.Event()

    def run() -> None:
        before, then = status()["sources"], clock.now()
        while not clock.wait(over, EVERY_S):
            sources, now = status()["sources"], clock.now()
            names = sorted(name for name in sources if sources[name]["state"] not in _OVER)
            parts = [_progress_of(n, sources[n], before.get(n, {}), now - then) for n in names]
            if say is not None and parts:
                say(", ".join(parts))
            before, then = sources, now

    thread = threading.Thread(target=run, name="headrace-vision-progress", daemon=True)
    if say is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if say is not None:
            thread.join()


def _progress_of(name: str, source: dict[str, Any], before: dict[str, Any], seconds: float) -> str:
    done = sum(source[key] - before.get(key, 0) for key in ("delivered", "failed"))
    text = f"{name}: {done / seconds:.1f} frames/s"
    if source["dropped"]:
        text += f" ({source['dropped']} dropped)"
    return f"{name}: lost ({source['error']})" if source["state"] == "lost" else text
