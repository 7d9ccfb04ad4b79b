"""``headrace top``: a live view of a pipeline with the probe Prometheus, in the terminal."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.errors import HeadraceError
from headrace.plugins import read_text
from headrace_cli.for_plugins import INTERRUPTED, OK, WrongArgument, print_json
from headrace_formats import read_json
from headrace_observe.commands.shared import KeyFile, limited, split_columns
from headrace_observe.extras import library

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["key_in", "read_url", "rows_of", "top"]

_TIMEOUT_S = 5.0

_STATE = "headrace_state"
_WORST_FIRST = ("closed", "closing", "degraded", "ready")

_WHERE = ("worker", "model", "model_version", "node")
"""The labels that say of what a sample is; all but the last are those of a server."""

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""The value of each sample, by its name and labels."""


def top(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="Where the probe answers, as http://127.0.0.1:9464."),
    ] = "http://127.0.0.1:9464",
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", callback=limited, min=0.1, help="Seconds between looks."
        ),
    ] = 1.0,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, help="End after this many looks.", show_default="never"),
    ] = None,
    key_file: KeyFile = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line per look.")
    ] = False,
) -> int:
    """Watch any pipeline with the probe Prometheus, or all models of a server: throughput, queues, batches, instances.

    Rates, sizes and busy are those since the previous look. Times are quantiles of the pipeline's whole life: queue
    is the time from the arrival at the node to the cut of the batch, batch is its run. Ends with Ctrl-C and the exit
    status 130.

    \b
    Examples:
      headrace top http://127.0.0.1:9464
      headrace top http://127.0.0.1:9464 --every 0.5 --count 1 --json
      headrace top https://models.example:8000 --key-file operator.key
    """  # noqa: D301 - typer keeps the lines after a backspace character
    looks = _looks(url, every, count, None if key_file is None else key_in(key_file))
    try:
        if json:
            for rows, state in looks:
                print_json({"state": state, "nodes": rows})
        else:
            _show(looks, url)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def key_in(path: str) -> str:
    """Read the file of a key.

    Raises:
        WrongArgument: It cannot be read, or holds something else.
    """
    try:
        key = read_text(path).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WrongArgument(f"--key-file {path}: it cannot be read: {reason}") from None
    if not (key.isascii() and key.isprintable()) or len(key.split()) != 1:
        raise WrongArgument(f"--key-file {path}: expected one key, in one line, and nothing else")
    return key


def _looks(
    url: str, every: float, count: int | None, key: str | None = None
) -> Iterator[tuple[list[dict[str, Any]], str]]:
    # Of a server with several worker processes any may answer, with its own counters.
    last: dict[str | None, tuple[Scrape, float]] = {}
    now, at, done = scrape(url, key), time.monotonic(), 0
    never = threading.Event()
    while count is None or done < count:
        last[_worker_of(now)] = now, at
        never.wait(every)
        now, at = scrape(url, key), time.monotonic()
        before, then = last.get(_worker_of(now), (now, at))
        yield rows_of(before, now, at - then), state_of(now)
        done += 1


def _worker_of(found: Scrape) -> str | None:
    return next((dict(said)["worker"] for _, said in found if "worker" in dict(said)), None)


def scrape(url: str, key: str | None = None) -> Scrape:
    """Ask for the metrics once, with the key of a server that has keys.

    Raises:
        HeadraceError: No server answers at the address, or it answers with other metrics than Headrace's.
        MissingDependencyError: prometheus-client is not installed.
    """
    parser = library("prometheus_client.parser", "prometheus", "headrace top")
    hint = 'The pipeline that is watched needs probes = ["Prometheus"] under [global].'
    text = read_url(url, "/metrics", key, hint)
    found: Scrape = {}
    with contextlib.suppress(ValueError):  # it is not the text of a probe
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    if not any(name.startswith("headrace") for name, _ in found):
        raise HeadraceError(f"{url} has no metrics of Headrace: is its pipeline built?")
    return found


def read_url(url: str, end: str, key: str | None, hint: str, timeout_s: float = _TIMEOUT_S) -> str:
    """Ask a server for a text, with the key of one that has keys.

    Args:
        url: The address of the server.
        end: The path below it.
        key: The key, None for none.
        hint: What to do where nobody answers.
        timeout_s: How long to wait for the answer.

    Raises:
        HeadraceError: No server answers at the address, or it refuses.
    """
    address = url if "://" in url else f"http://{url}"
    if not _is_address(address):
        raise HeadraceError(f"expected an address, as http://127.0.0.1:9464, got {url!r}")
    request = urllib.request.Request(  # noqa: S310 - http and https alone
        f"{address.rstrip('/').removesuffix('/metrics')}{end}"
    )
    if key is not None:  # a server elsewhere, to which this one may redirect, does not get it
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:  # the error is also the answer, and holds its connection
            raise HeadraceError(f"{url} answers {error.code} {_said_by(error)}") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "reason", error) or type(error).__name__
        if isinstance(reason, ssl.SSLCertVerificationError):
            hint = "The environment variable SSL_CERT_FILE names a file with the certificates to trust."
        raise HeadraceError(f"{url} does not answer: {reason}\n  {hint}") from error
    return text


def _said_by(error: urllib.error.HTTPError) -> str:
    """Return the text of an answer that is an error: headrace-serve's own, else the reason; what to do about a key."""
    said = str(error.reason)
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        said = f"{said}: {read_json(error.read(10_000))['error']}"
    if error.code == http.client.UNAUTHORIZED:
        said += "\n  Give a file with a key of the server: --key-file FILE."
    return said


def _is_address(text: str) -> bool:
    """Return whether a text is an address that can be asked over HTTP."""
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def state_of(found: Scrape) -> str:
    """Return the state of the pipeline; of several pipelines, those of a server's models, the state of the worst."""
    states = {dict(said)["state"] for (name, said), on in found.items() if on and name == _STATE}
    return next((one for one in _WORST_FIRST if one in states), "unknown")


def rows_of(before: Scrape, now: Scrape, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each node, of each model at a server: rates per second since ``before``, times in milliseconds."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = defaultdict(
        lambda: {"ok_per_s": 0.0, "failed_per_s": 0.0, "busy": 0.0, "instances": 0, "up": 0}
    )
    for (name, labels), value in now.items():
        said: Mapping[str, str] = dict(labels)
        if "node" not in said:
            continue
        row = rows[tuple((key, said[key]) for key in _WHERE if key in said)]
        rate = max(0.0, value - before.get((name, labels), 0.0)) / max(seconds, 1e-9)
        if name == "headrace_requests_total":
            row["ok_per_s" if said["outcome"] == "ok" else "failed_per_s"] += rate
        elif name == "headrace_requests_waiting":
            row["waiting"] = int(value)
        elif name == "headrace_batch_size_requests_sum":
            row["_sum"] = rate
        elif name == "headrace_batch_size_requests_count":
            row["_count"] = rate
        elif name == "headrace_instance_busy_seconds_total":
            row["busy"] += rate
        elif name == "headrace_instance_up":
            row["instances"] += 1
            row["up"] += int(value)
        elif said.get("quantile") in ("0.5", "0.99"):
            which = "p50" if said["quantile"] == "0.5" else "p99"
            kind = "queue" if name == "headrace_queue_wait_seconds" else "batch"
            row[f"{kind}_{which}_ms"] = round(value * 1000, 3)
    return [{**dict(where), **_rounded(row)} for where, row in rows.items()]


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    total, batches = row.pop("_sum", 0.0), row.pop("_count", 0.0)
    row["mean_batch"] = round(total / batches, 2) if batches else 0.0
    row["utilisation"] = round(min(1.0, row.pop("busy") / max(row["instances"], 1)), 3)
    return {key: round(one, 1) if key.endswith("_per_s") else one for key, one in row.items()}


_COLUMNS = {
    "node": "node",
    "ok_per_s": "ok/s",
    "failed_per_s": "failed/s",
    "waiting": "waiting",
    "queue_p50_ms": "queue\np50",
    "queue_p99_ms": "p99",
    "mean_batch": "size",
    "batch_p50_ms": "batch\np50",
    "batch_p99_ms": "p99",
    "utilisation": "busy",
    "up": "up",
    "instances": "of",
}


_FIGURES = [key for key in _COLUMNS if key != "node"]

_CLOCK = "queue: from arrival at the node to the cut of the batch; batch: its run; both of the pipeline's whole life"


def _show(looks: Iterator[tuple[list[dict[str, Any]], str]], url: str) -> None:
    from rich import box
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 400)
    headings = [*_COLUMNS.values()]
    with Live(console=console, auto_refresh=False) as live:
        for rows, state in looks:
            shown = [
                [_name(row), *(_cell(key, row.get(key, "")) for key in _FIGURES)] for row in rows
            ]
            cells_of = zip(headings, *shown, strict=True)
            widths = [max(map(len, "\n".join(cells).split("\n"))) for cells in cells_of]
            tables = []
            for columns in split_columns(widths, (0,), console.width, gap=1):
                # Twelve columns fit into eighty characters only without lines between them.
                table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
                for number in columns:
                    justify: Literal["left", "right"] = "right" if number else "left"
                    # Half a figure would be another one.
                    table.add_column(
                        headings[number], justify=justify, overflow="fold", no_wrap=bool(number)
                    )
                for cells in shown:
                    table.add_row(*(cells[number] for number in columns))
                tables.append(table)
            title = Text(f"{url}: {state} (times in ms)")
            live.update(Group(title, *tables, Text(_CLOCK, "dim")), refresh=True)


def _name(row: dict[str, Any]) -> str:
    """Return the name of a node; at a server after the worker that has answered, and the model as its command line has it."""
    worker = f"worker {row['worker']}, " if "worker" in row else ""
    model = f"{row['model']}:{row['model_version']} " if "model" in row else ""
    return f"{worker}{model}{row['node']}"


def _cell(key: str, value: Any) -> str:
    if key == "utilisation":
        return f"{value:.0%}"
    # Five digits are enough to read; --json prints all of them.
    return f"{value:.5g}" if isinstance(value, float) else str(value)
