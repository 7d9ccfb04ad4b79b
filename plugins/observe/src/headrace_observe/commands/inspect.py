"""``headrace observe inspect``: one backend by itself."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

import headrace
from headrace.errors import InputError
from headrace_cli.for_plugins import (
    FAILED,
    OK,
    Json,
    NoImport,
    Settings,
    hinting_at_a_file,
    print_data,
    print_message,
    printing_warnings,
    source_of,
)
from headrace_observe.bench.one_backend import inspect as inspected
from headrace_observe.commands.arguments import Inputs, RandomArrays, positive_numbers, samples_of
from headrace_observe.commands.layered import layered
from headrace_observe.commands.printing import (
    print_document,
    print_failures,
    print_missing_gpus,
    print_table,
)

__all__ = ["inspect"]


def inspect(  # noqa: PLR0913, PLR0917 - one per option
    expression: Annotated[
        str, typer.Argument(metavar="EXPRESSION", help="An expression, or a TOML file of one node.")
    ],
    inputs: Inputs = None,
    data: RandomArrays = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Timed runs per batch size.")
    ] = 100,
    warm_up: Annotated[int, typer.Option("--warm-up", min=0, help="Runs before them.")] = 10,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="N,...",
            help="Batch sizes.",
            show_default="powers of two within the range, up to 32",
        ),
    ] = None,
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
) -> int:
    """Run one backend, or one expression, alone: time per batch size, shapes, memory.

    The clock covers the call of the built instance with a batch. There is no queue and no other load.

    \b
    Examples:
      headrace observe inspect "ResizeMat(64,64)" --data uint8:480x640x3
      headrace observe inspect "S[DecodeMat,ResizeMat(64,64)]" photos/ --sizes 1,8 --json
      headrace observe inspect OnnxTensor --set model=light.onnx --data float32:3x224x224
    """  # noqa: D301 - typer keeps the lines after a backspace character
    samples = samples_of(inputs or (), data or ())
    counts = None
    if sizes is not None:
        counts = [int(size) for size in positive_numbers(sizes, "--sizes", whole=True)]
    source = source_of(expression, settings or ())
    with printing_warnings(), hinting_at_a_file(expression):
        # Problems are reported, and imports refused, before anything is built.
        headrace.PipelineConfig.load(source, allow_import=not no_import)
        try:
            inspection = inspected(layered(source), samples, repeat, warm_up, sizes=counts)
        except ValueError as error:
            raise InputError(str(error)) from error
    if json:
        print_document(inspection)
    else:
        _print(inspection)
    failed: Counter[str] = Counter()
    for batch in inspection["batches"]:
        failed.update(batch["failed"])
    print_failures(failed, inspection["errors"])
    return FAILED if failed else OK


def _print(inspection: dict[str, Any]) -> None:
    for way in ("reads", "writes"):
        for key, text in inspection[way].items():
            print_data(f"{way} {key}: {text}")
    left = [inspection["tree"]] if inspection["tree"] else []
    while left:
        part = left.pop()
        left += reversed(part["children"])
        for key, value in part["built"].items():
            print_data(f"built {part['name']}, {key}: {value}")
    rows = []
    for batch in inspection["batches"]:
        latency = batch["latency_ms"]
        failed = ", ".join(f"{code} {count}" for code, count in batch["failed"].items())
        cells = [f"{latency[name]:.3f}" for name in ("mean", "p50", "p99", "max")]
        rows.append([str(batch["size"]), *cells, f"{batch['per_item_ms']:.4f}", failed or "0"])
    print_table(("batch", "mean ms", "p50 ms", "p99 ms", "max ms", "ms per item", "failed"), rows)
    print_data(f"The clock: {inspection['clock']}.")
    for kind, called in (("host_bytes", "host memory"), ("gpu_bytes", "GPU memory")):
        values = inspection["memory"][kind]
        if values["before"] is not None:
            shown = [f"{values[when] / 2**20:.0f} MiB" for when in ("before", "built", "run")]
            print_data(f"{called}: {shown[0]} before, {shown[1]} built, {shown[2]} after the runs")
    if inspection["memory"]["host_bytes"]["before"] is None:
        print_message(
            'host memory is not known without psutil: pip install "headrace-observe[gpu]"'
        )
    print_missing_gpus()
