"""The arguments and options that several commands take, and how they are read."""

from __future__ import annotations

import contextlib
import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import InputError
from headrace_cli.for_plugins import (
    WrongArgument,
    check_arguments,
    expand,
    printing_warnings,
)
from headrace_observe.bench.arrivals import poisson, read_arrivals
from headrace_observe.bench.benchmark import LoadSpec
from headrace_observe.bench.load import MOST_CLIENTS
from headrace_observe.bench.samples import random_array
from headrace_observe.files import check_writable
from headrace_observe.simulate.service_times import read_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_observe.simulate.service_times import ServiceTimes

__all__ = [
    "Arrivals",
    "Inputs",
    "PlotOfLoads",
    "RandomArrays",
    "Rates",
    "check_outputs",
    "loads_of",
    "percent",
    "positive_numbers",
    "samples_of",
    "seconds_option",
    "times_in",
    "writable",
]

_LONGEST = 1e9
"""The greatest number of seconds that an option takes."""

KeyFile = Annotated[
    str | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="A file with a key, for a server with keys; it needs the right describe, for all models.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[INPUT]...", help="Files, as `headrace run` takes them."),
]
"""The argument of a command that measures files."""

RandomArrays = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="DTYPE:SHAPE", help="Random arrays, as float32:3x224x224."),
]
"""The option for random arrays instead of files."""

Rates = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="N,...",
        help="Open loop: requests per second on average, at random times (Poisson).",
    ),
]
"""The option for loads whose requests come at random times."""

Arrivals = Annotated[
    str | None,
    typer.Option(
        "--arrivals", metavar="FILE", help="Open loop: a time in seconds per line of a file."
    ),
]
"""The option for a load whose requests come at given times."""

PlotOfLoads = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw throughput and latency over the load: .png, .svg, .pdf or .html.",
    ),
]
"""The option for a picture, see `plot_loads`."""


def samples_of(
    inputs: Sequence[str], data: Sequence[str], ports: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the requests: one for each file, as ``headrace run`` reads them, or for each random array.

    Args:
        inputs: The files.
        data: The random arrays.
        ports: The inputs of the pipeline, see `headrace_cli.for_plugins.ports_of`. None: each file is bytes.

    Raises:
        WrongArgument: There are neither files nor random arrays, or both.
        InputError: A file cannot be read, or an array cannot be made.
    """
    if bool(inputs) == bool(data):
        raise WrongArgument(
            "give INPUT files or --data, not both" if inputs else "give INPUT files, or --data"
        )
    if data:
        return [{"data": random_array(text, k)} for k, text in enumerate(data)]
    check_arguments(inputs)
    samples = []
    for file in expand(inputs):
        try:
            samples.append(file.request(ports))
        except InputError as error:
            raise InputError(f"{file.path}: {error}") from error
    return samples


def seconds_option(name: str, help_text: str, least: float, shown: str | None = None) -> Any:
    """Return an option for seconds, of which a help shows no upper limit.

    Args:
        name: The option, as ``--seconds``.
        help_text: Its help.
        least: The least time that it takes.
        shown: The default that help shows. None: that of the parameter.
    """
    about: dict[str, Any] = {} if shown is None else {"show_default": shown}
    return typer.Option(
        name, metavar="SECONDS", callback=_limited, min=least, help=help_text, **about
    )


def _limited(seconds: float | None) -> float | None:
    if seconds is not None and not seconds <= _LONGEST:
        raise typer.BadParameter(f"expected at most {_LONGEST:.0f}, got {seconds}")
    return seconds


def positive_numbers(text: str, option: str, *, whole: bool) -> list[float]:
    """Read ``1,10,40``.

    Raises:
        WrongArgument: A part is no number above 0.
    """
    numbers = []
    for part in text.split(","):
        try:
            number = float(int(part)) if whole else float(part)
        except (ValueError, OverflowError):  # a whole number of 400 digits is no float
            number = math.nan
        if not 0 < number < math.inf:
            kind = "whole numbers" if whole else "numbers"
            raise WrongArgument(f"{option}: expected {kind} above 0, as 1,10,40; got {part!r}")
        numbers.append(number)
    return numbers


def percent(text: str, option: str) -> float:
    """Read ``5%`` as 0.05.

    Raises:
        WrongArgument: The text is no percentage above 0 and up to 100.
    """
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise WrongArgument(f"{option}: expected a percentage, as 5%; got {text!r}")
    return value


def loads_of(
    clients: str | None,
    rate: str | None,
    arrivals: str | None,
    default: str | None,
    *,
    seed: int = 0,
    threads: bool = True,
) -> list[LoadSpec]:
    """Return the loads that the options name: clients first, then rates, then the file.

    Args:
        clients: The option ``--clients``. None: it is not given, as with the next two.
        rate: The option ``--rate``.
        arrivals: The option ``--arrivals``.
        default: What ``clients`` is where there is no load. None: a load must be given.
        seed: The seed of times at random.
        threads: Whether each client is a thread, so that there are at most `MOST_CLIENTS`.

    Raises:
        WrongArgument: An option cannot be read, or none is given and there is no default, or clients are too many.
        InputError: The file cannot be read.
    """
    if clients is None and rate is None and arrivals is None:
        if default is None:
            raise WrongArgument("give a load: --clients, --rate or --arrivals")
        clients = default
    loads = []
    if clients is not None:
        numbers = positive_numbers(clients, "--clients", whole=True)
        if threads and max(numbers) > MOST_CLIENTS:
            raise WrongArgument(
                f"--clients {clients}: each is a thread, at most {MOST_CLIENTS}; --rate sends without threads"
            )
        loads += [LoadSpec(clients=int(n)) for n in numbers]
    for number in positive_numbers(rate, "--rate", whole=False) if rate is not None else ():
        about = {"kind": "open", "rate": number}
        loads.append(LoadSpec(about=about, arrivals=partial(poisson, number, seed)))
    if arrivals is not None:
        with printing_warnings():
            times = read_arrivals(arrivals)
        loads.append(LoadSpec(about={"kind": "arrivals", "file": arrivals}, arrivals=lambda: times))
    return loads


def times_in(path: str, warned: str | None) -> dict[str, ServiceTimes]:
    """Read times of batches, and print what is cut off; of the file ``warned``, that of the arrivals, `loads_of` has done so."""
    with contextlib.nullcontext() if path == warned else printing_warnings():
        return read_times(path)


def writable(path: str | None, option: str, read: Sequence[str] = ()) -> None:
    """Refuse an output file that cannot be written, before anything is measured.

    Args:
        path: The file. None: the command writes no such file.
        option: The option that names the file.
        read: The files that the command reads, and arguments that may be such files.

    Raises:
        WrongArgument: The folder of the file does not exist or takes no file, ``path`` is a folder, or the command also
            reads the file.
    """
    if path is None:
        return
    if not Path(path).absolute().parent.is_dir():
        raise WrongArgument(f"{option} {path}: its folder does not exist")
    try:
        check_writable(path)
    except OSError as error:
        raise WrongArgument(f"{option} {path}: it cannot be written: {error.strerror}") from error
    if os.path.exists(path):  # noqa: PTH110 - false for a long text
        for file in expand(read):
            if os.path.exists(file.path) and Path(path).samefile(file.path):  # noqa: PTH110
                raise WrongArgument(
                    f"{option} {path}: it would overwrite {file.path}, which is read"
                )


def check_outputs(outputs: Mapping[str, str | None], read: Sequence[str]) -> None:
    """Refuse output files that cannot be written, and one file for two of them, before anything is measured.

    Args:
        outputs: The file of each option. None: the command writes no such file.
        read: The files that the command reads, and arguments that may be such files.

    Raises:
        WrongArgument: A file cannot be written, is read, or is the file of another option, too.
    """
    options: dict[str, str] = {}
    for option, path in outputs.items():
        writable(path, option, read)
        if path is not None:
            other = options.setdefault(os.path.realpath(path), option)
            if other != option:
                raise WrongArgument(f"{option} {path}: {other} writes this file, too; name another")
