"""``headrace run``: every input is one request; results come out in the order of the inputs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.errors import ClosedError, ConfigError, InputError, RequestError
from headrace_cli.arguments import Config, Json, NoImport, Settings
from headrace_cli.building import CLOSE_S, printing_warnings, showing_progress
from headrace_cli.console import (
    BROKEN_PIPE,
    FAILED,
    OK,
    WrongArgument,
    counted,
    discard_stdout,
    exit_now,
    print_message,
)
from headrace_cli.inputs import Input, check_arguments, expand, ports_of
from headrace_cli.records import Columns, records_of
from headrace_cli.results.files import Output
from headrace_cli.results.made_of import made_of
from headrace_cli.results.out_file import OutFile
from headrace_cli.results.printer import ResultPrinter
from headrace_cli.source import hinting_at_a_file, is_file, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_cli.interrupts import Interrupts

MOST_COUNTED = 100_000
"""The most further inputs that are listed after Ctrl-C, to count those without an answer."""

LEAST_WINDOW = 16
"""How many requests are open at a time, at least."""


def run(  # noqa: PLR0913, PLR0917 - one per option
    context: typer.Context,
    config: Config,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="A file; a folder (all files in it and below, sorted by path, without hidden "
            "ones); a quoted pattern such as 'photos/**/*.jpg'; or - for standard input.",
            show_default=False,
        ),
    ],
    json: Json = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")
    ] = False,
    settings: Settings = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write a file per result into this folder, under the name of its input: bytes with "
            "the suffix of their format, an array as .npy, anything else as .json. The lines on "
            "stdout then name these files.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write all results into this file, numbers as numbers: .jsonl has what --json prints, .csv a row for each, "
            ".parquet a row for each, .npy an array with a row for each. Errors go to FILE.errors.jsonl.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        bool,
        typer.Option("--columns", help="Give each value in a result a column of the CSV of --out."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on at the end of the file of --out: inputs that it has, or that have failed, are done.",
        ),
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="With --resume: run those again that have failed.")
    ] = False,
    resume_anyway: Annotated[
        bool,
        typer.Option(
            "--resume-anyway",
            help="As --resume, also where configuration, models or records are others than before.",
        ),
    ] = False,
    records: Annotated[
        bool,
        typer.Option(
            "--records",
            help="Each INPUT that is no folder is a file of records, of which each is a request: also .csv, .txt (a line) "
            "and .npy (a row). .jsonl, .parquet, .arrow and .feather are so without it.",
        ),
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="COLUMN",
            help="The column of records that names each, in place of path: it must not be there twice.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="COLUMN",
            help="The column of records that is the data; else the one of that name, or the only one.",
            show_default=False,
        ),
    ] = None,
    no_import: NoImport = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.0,
            help="Longest time of one request, waiting in the queue included; none unless given.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run inputs through a pipeline and print the results.

    Each INPUT file is one request with `data`, its bytes, and `path`. Of a .npy file `data` is the array, and the arrays of an
    .npz file are keys, by their names or those of the model's inputs, unless the pipeline begins with bytes. A line per success goes to
    stdout, in the order of the inputs: the path, a tab, the result. A result that is a dict gives
    its values, separated by tabs. So do the classes of `TopK`: name, score, next name. An array of up to ten numbers is printed as Python prints a list.
    A larger one, and bytes, are described by type and shape. Control characters are escaped. A terminal shows a table
    in place of these lines. Errors and a summary go to stderr.

    A named file of JSON Lines, Parquet or Arrow holds records: each is a request, whose keys are its columns. With --records so is each
    line of a .csv or .txt and each row of a .npy.

    With --json every input gives one line: {"path": ..., "result": ...} or {"path": ..., "error":
    {"code": ..., "type": ..., "message": ...}}. Arrays become lists, bytes base64, NaN null,
    all else what pydantic writes for it. With --output "output", the path of the file, replaces "result".

    \b
    Examples:
      headrace run line.toml photos/
      headrace run "S[DecodeMat,ResizeMat(64,64),EncodeMat]" photos/ --output small
      headrace run line.toml photos/ --set max=8 --set instance_num=2
      headrace run line.toml photos/ --out read.jsonl --resume
      headrace run line.toml texts.jsonl --key id --data text --out vectors.parquet
      headrace run line.toml a.jpg 'scans/*.png' --json | jq .result
      curl -s https://example.org/a.jpg | headrace run line.toml -
    """  # noqa: D301 - typer keeps the lines after a backspace character
    if inputs[0].endswith(".toml") and not config.endswith(".toml") and _is_input(config):
        raise WrongArgument(f"CONFIG comes first: headrace run {inputs[0]} {config}")
    read_records = partial(records_of, Columns(records, key, data))
    try:
        check_arguments(inputs, read_records)
    except WrongArgument as wrong:
        if is_file(config) and not Path(config).exists():
            raise WrongArgument(f"{_missing(config)}; {wrong}") from None
        raise
    source = source_of(config, settings or ())
    folder = None if output is None else Output(output, inputs)
    resume = resume or resume_anyway
    _check_options(out, resume=resume, failed=failed, columns=columns)
    how: dict[str, Any] = {"resume": resume, "again": failed, "wide": columns}
    with ExitStack() as opened:
        lines = None
        if out is not None:
            lines = opened.enter_context(OutFile(out, inputs, key=key or "path", **how))
        opened.enter_context(printing_warnings())
        with showing_progress(not quiet) as bars, hinting_at_a_file(config):
            pipeline = headrace.pipe(source, allow_import=not no_import, progress=bars)
        root = context.find_root()
        shows = bool(root.params["traceback"])
        printer = ResultPrinter(json=json, traceback=shows, output=folder, out=lines)
        expanded = partial(expand, inputs, read_records)
        work = _Run(pipeline, expanded, root.obj, printer, timeout=timeout, out=lines)
        if lines is not None:
            files = [path for path in inputs if read_records(path) is not None]
            with _closing_after_error(pipeline):
                lines.begin(made_of(pipeline.config, files), anyway=resume_anyway)
        status = work.to_the_end(progress=not quiet)
        if not quiet and status != BROKEN_PIPE:
            print_message(work.summary())
            for advice in work.advice():
                print_message(advice)
        if work.hangs():
            # At a normal exit the interpreter would wait for the hanging backend, and lose the exit status.
            exit_now(status)
    return status


@contextlib.contextmanager
def _closing_after_error(pipeline: headrace.Pipeline) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pipeline.close(drain=False, timeout=CLOSE_S)
        raise


def _check_options(out: str | None, *, resume: bool, failed: bool, columns: bool) -> None:
    """Refuse options that need another one."""
    if out is None and (resume or failed or columns):
        option = "--columns" if columns else "--failed" if failed else "--resume"
        raise WrongArgument(f"{option} is about a file of results: --out FILE.jsonl")
    if failed and not resume:
        raise WrongArgument("--failed runs again what has failed before: it needs --resume")


def _is_input(config: str) -> bool:
    """Return whether CONFIG is a file, or a folder, that no plugin reads as a configuration."""
    return os.path.exists(config) and not headrace.plugins.reads(config)  # noqa: PTH110 - any text


def _missing(config: str) -> str:
    """Report that a configuration does not exist, and which file may be meant."""
    near = None
    try:
        headrace.PipelineConfig.load(config)
    except ConfigError as error:
        near = error.problems[0].suggestion
    return f"no such file: {config!r}" + (f" (did you mean {near!r}?)" if near else "")


class _Run:
    """One run over many inputs, which keeps as many requests open as all instances need."""

    def __init__(
        self,
        pipeline: headrace.Pipeline,
        expanded: Callable[[], Iterator[Input]],
        interrupts: Interrupts,
        printer: ResultPrinter,
        *,
        timeout: float | None,
        out: OutFile | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._expanded = expanded
        self.out = out
        self.interrupts = interrupts
        interrupts.on_first = self._close
        self.printer = printer
        self.timeout = timeout
        self.ok = self.failed = 0
        self.seconds = 0.0
        self.interrupted = self._late = False
        self._advance: Callable[[], None] = _nothing
        self._begun: deque[tuple[Input, InputError | None]] = deque()
        self._window = _window(pipeline)
        self._ports = ports_of(pipeline)

    def to_the_end(self, *, progress: bool) -> int:
        """Run all inputs and close the pipeline; give the exit status."""
        drain = False
        started = time.perf_counter()
        try:
            with self._bar() if progress else contextlib.nullcontext():
                self._stream(self._expanded())
            if self.out is not None:
                self.out.finish()
            failed = self.failed or (self.out is not None and self.out.failed)
            status = FAILED if failed else OK
            drain = True
        except KeyboardInterrupt:
            self.interrupted, status = True, self.interrupts.status
        except BrokenPipeError:
            discard_stdout()
            status = BROKEN_PIPE
        finally:
            self.seconds = time.perf_counter() - started
            try:
                self._close(drain=drain)
            except KeyboardInterrupt:
                exit_now(self.interrupts.status)
        return status

    def _close(self, *, drain: bool = False) -> None:
        began = time.perf_counter()
        self.pipeline.close(drain=drain, timeout=CLOSE_S)
        self._late = time.perf_counter() - began >= CLOSE_S

    def hangs(self) -> bool:
        """Return whether a backend still runs after the end, or hangs in its ``close``."""
        nodes = self.pipeline.stats()["nodes"].values()
        return self._late or any(part["busy"] for node in nodes for part in node["instances"])

    def _stream(self, inputs: Iterator[Input]) -> None:
        answers = self.pipeline.map(
            self._requests(inputs), ahead=self._window, timeout=self.timeout, on_error="give"
        )
        try:
            for answer in answers:
                if self.interrupts.came:
                    raise KeyboardInterrupt
                self._print_refused()
                self._print(self._begun.popleft()[0], answer)
                sys.stdout.flush()  # for who reads what has come while the next ones run
        except ClosedError:
            if self.interrupts.came:
                raise KeyboardInterrupt from None
            raise
        self._print_refused()
        sys.stdout.flush()

    def _requests(self, inputs: Iterator[Input]) -> Iterator[dict[str, Any]]:
        """Give the requests of the inputs. An input that is none is printed in its turn."""
        for item in inputs:
            if self.out is not None and self.out.holds(item.path):
                self._advance()
                continue
            try:
                request = item.request(self._ports)
            except InputError as error:
                self._begun.append((item, error))
                continue
            self._begun.append((item, None))
            yield request

    def _print_refused(self) -> None:
        """Print the errors of inputs that come before the next answer."""
        while self._begun and self._begun[0][1] is not None:
            self._print(*self._begun.popleft())

    def _print(self, item: Input, answer: Any) -> None:
        error = answer if isinstance(answer, Exception) else None
        if error is None:
            self.ok += 1  # before it is printed: Ctrl-C may come right after the line
            try:
                self.printer.result(item, answer.get("result"))
            except RequestError as unwritten:
                self.ok -= 1
                error = unwritten
        if error is not None:
            self.failed += 1
            self.printer.error(item, error)
        self._advance()

    @contextlib.contextmanager
    def _bar(self) -> Iterator[None]:
        """Show a progress bar if stderr is a terminal and stdout is none: its lines would break up the bar."""
        total = 0
        if sys.stderr.isatty() and (self.out is not None or not sys.stdout.isatty()):
            total = sum(1 for _ in self._expanded())
        if total < 2:
            yield
            return
        from headrace_cli.progress import progress_bar

        with progress_bar(total) as (self._advance, self.printer.print_error):
            yield

    def summary(self) -> str:
        """Return the number of requests, their rate, and the sizes of their batches."""
        answered = self.ok + self.failed
        rate = answered / self.seconds if self.seconds > 0 else 0.0
        text = f"{counted(answered, 'request')}: {self.ok} ok, {self.failed} failed"
        if self.interrupted:
            answered += 0 if self.out is None else self.out.stood
            inputs = islice(self._expanded(), answered, answered + MOST_COUNTED)
            left = sum(1 for _ in inputs)
            text += f", {'at least ' if left == MOST_COUNTED else ''}{left} not done"
            text = f"interrupted; {text}"
        if self.out is not None and self.out.stood:
            text += f"; {counted(self.out.stood, 'input')} done before, {self.out.failed} of them failed"
        text += f"; {self.seconds:.2f} s, {rate:.1f} requests per second"
        nodes = self.pipeline.stats()["nodes"].items()
        ran = {name: node["batch_size"]["mean"] for name, node in nodes if node["batches"]}
        means = [
            f"{name} {mean:.1f}" if len(ran) > 1 else f"{mean:.1f}" for name, mean in ran.items()
        ]
        return f"{text}, mean batch {', '.join(means)}" if means else text

    def advice(self) -> list[str]:
        """Return what the pipeline advises, a line for each node that callers waited for while cores were idle."""
        advised = (node["advice"] for node in self.pipeline.stats()["nodes"].values())
        return [advice for advice in advised if advice is not None]


def _nothing() -> None:
    """Show no progress."""


def _window(pipeline: headrace.Pipeline) -> int:
    """Return how many requests to keep open: full batches for all instances, and the next ones waiting.

    It is never more than a queue takes, so that no queue refuses a request.
    """
    built = pipeline.describe()["nodes"].values()
    batches: int = sum(node["instance_num"] * (node["range"][1] or LEAST_WINDOW) for node in built)
    nodes = pipeline.config.plan().nodes.values()
    room: int = min(node.keys.queue_size for node in nodes)
    return max(1, min(room, max(LEAST_WINDOW, 4 * batches)))
