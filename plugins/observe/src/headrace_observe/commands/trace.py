"""``headrace trace``: run inputs through a pipeline and write what happens as a timeline."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.errors import HeadraceError, InputError, code_of
from headrace.hookspecs import attached
from headrace_cli.for_plugins import (
    CLOSE_S,
    FAILED,
    INTERRUPTED,
    OK,
    Config,
    Json,
    NoImport,
    Settings,
    WrongArgument,
    check_arguments,
    counted,
    expand,
    hinting_at_a_file,
    is_file,
    print_message,
    printing_warnings,
    showing_progress,
    source_of,
)
from headrace_observe.codes import text_of
from headrace_observe.commands.arguments import writable
from headrace_observe.commands.layered import layered
from headrace_observe.commands.printing import print_document, print_failures
from headrace_observe.probes.trace import Trace, UnhurriedTrace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

__all__ = ["trace"]


def trace(  # noqa: PLR0913, PLR0917 - one per option
    config: Config,
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Files, as `headrace run` takes them.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The trace.")
    ] = "trace.json",
    clients: Annotated[
        int,
        typer.Option("--clients", min=1, help="The number of requests that are open at a time."),
    ] = 8,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="How often the inputs are sent.")
    ] = 1,
    sample: Annotated[
        float, typer.Option("--sample", help="The share of requests, above 0 and up to 1.")
    ] = 1.0,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            metavar="BYTES",
            min=100_000,
            help="The largest size of the file; beyond it the oldest events are dropped.",
            show_default="256000000",
        ),
    ] = None,
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
) -> int:
    """Trace a pipeline: requests, queues, batches, elements, threads, and device work.

    The file is in the Trace Event Format: open it at https://ui.perfetto.dev, in Chromium at
    chrome://tracing, or in TensorBoard with the plugin torch-tb-profiler (as NAME.pt.trace.json in the
    log folder). It holds times, sizes and names, but no data of the requests. After Ctrl-C it holds the trace until
    then, and the exit status is 130.

    \b
    Examples:
      headrace trace line.toml photos/ -o trace.json
      headrace trace line.toml photos/ --repeat 100 --clients 40 --sample 0.1
      headrace trace line.toml photos/ --set max=8 --max-bytes 20000000
    """  # noqa: D301 - typer keeps the lines after a backspace character
    check_arguments(inputs)
    writable(output, "--output", [config, *inputs])
    if not 0 < sample <= 1:
        raise WrongArgument(f"--sample: expected a share above 0 and up to 1, got {sample}")
    path = Path(output).absolute()
    limit = {} if max_bytes is None else {"max_bytes": max_bytes}
    allow_import = not no_import
    with printing_warnings():
        with showing_progress() as bars, hinting_at_a_file(config):
            source = _with_probe(config, settings or (), allow_import=allow_import)
            pipeline = headrace.pipe(source, progress=bars)
        outcomes = _Outcomes()
        status = INTERRUPTED
        unwritten: OSError | None = None
        try:
            probe = UnhurriedTrace(Trace.Options(path=path, sample=sample, **limit))
            try:
                with attached(pipeline, probe):
                    try:
                        _send(pipeline, inputs, repeat, clients, outcomes)
                        status = FAILED if outcomes.failed else OK
                    finally:  # the batches that run are in the trace, too
                        pipeline.close(drain=status != INTERRUPTED, timeout=CLOSE_S)
            finally:
                try:
                    probe.write()
                except OSError as error:
                    unwritten = error
        except KeyboardInterrupt:
            status = INTERRUPTED
        finally:
            pipeline.close(drain=False, timeout=CLOSE_S)
    print_failures(outcomes.failed, outcomes.errors)
    if unwritten is not None:  # a file from before, at this path, is not this trace
        raise unwritten
    return _report(path, outcomes, status, as_json=json)


class _Outcomes:
    """How many requests succeeded, how many failed with each code, and the text of an error with that code."""

    def __init__(self) -> None:
        self.ok = 0
        self.failed: Counter[str] = Counter()
        self.errors: dict[str, str] = {}

    def add(self, path: str, error: BaseException | None) -> None:
        if error is None:
            self.ok += 1
            return
        code = code_of(error)
        self.failed[code] += 1
        if code not in self.errors:
            self.errors[code] = f"{path}: {text_of(error)}"


def _with_probe(
    name: str, settings: Sequence[str], *, allow_import: bool
) -> headrace.PipelineConfig:
    """Add a Trace that writes nothing, because backends report device spans only if one exists at the build.

    The layer that adds it has to repeat the configuration's own probes. Their relative paths must start from the folder
    of the configuration's file, so that folder is the base of the whole.

    Raises:
        WrongArgument: ``--set`` is given together with a file that has probes of its own.
        ConfigError: The configuration is wrong.
    """
    source = source_of(name, settings)
    config = headrace.PipelineConfig.load(source, allow_import=allow_import)
    own = headrace.explain(config).get("probes", [])
    if own and settings and is_file(name):
        raise WrongArgument(f"--set: {name} has probes of its own; write a file")
    base = Path(name).absolute().parent if own and is_file(name) else None
    traced = layered(
        source if base is None else Path(name).absolute(),
        {"global": {"probes": [*own, "observe:Trace"]}},
    )
    return headrace.PipelineConfig.load(traced, base=base, allow_import=allow_import)


def _send(
    pipeline: headrace.Pipeline,
    inputs: Sequence[str],
    repeat: int,
    clients: int,
    outcomes: _Outcomes,
) -> None:
    """Send every input, ``clients`` of them open at a time."""
    waiting: deque[tuple[str, Future[Any]]] = deque()
    for _ in range(repeat):
        for file in expand(inputs):
            try:
                request = {"data": file.read(), "path": file.path}
            except InputError as error:
                outcomes.add(file.path, error)
                continue
            if len(waiting) >= clients:
                sent, future = waiting.popleft()
                outcomes.add(sent, future.exception())
            waiting.append((file.path, pipeline.submit(request)))
    for sent, future in waiting:
        outcomes.add(sent, future.exception())


def _report(path: Path, outcomes: _Outcomes, status: int, *, as_json: bool) -> int:
    """Print what was traced, and give the exit status."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise HeadraceError(f"the trace was not written: {path}") from error
    if as_json:
        about: dict[str, Any] = {"trace": str(path), "bytes": size, "ok": outcomes.ok}
        print_document({**about, "failed": outcomes.failed, "interrupted": status == INTERRUPTED})
    begun = "interrupted; " if status == INTERRUPTED else ""
    failed = outcomes.failed.total()
    print_message(
        f"{begun}{counted(outcomes.ok + failed, 'request')}: {outcomes.ok} ok, {failed} failed; {path}, {size} bytes: "
        "open it at https://ui.perfetto.dev"
    )
    return status
