"""``headrace certify``: whether a row has one result, whatever runs beside it, and that of a reference."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
import headrace_observe
from headrace_cli.for_plugins import (
    FAILED,
    OK,
    Config,
    Json,
    NoImport,
    Settings,
    WrongArgument,
    counted,
    hinting_at_a_file,
    print_data,
    print_message,
    printing_warnings,
    showing_progress,
    source_of,
)
from headrace_observe.certify.comparison import (
    Output,
    RowFailed,
    compare,
    compare_reference,
    runner_of,
)
from headrace_observe.certify.identity import Held, identity
from headrace_observe.certify.require import without_certificates
from headrace_observe.codes import text_of
from headrace_observe.commands.arguments import Inputs, RandomArrays, check_outputs, samples_of
from headrace_observe.commands.printing import print_document, print_table
from headrace_observe.environment import environment
from headrace_observe.extras import library
from headrace_observe.files import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["certify"]

_ARRAYS = 4
"""How many arrays are made for each ``--data``: rows must differ from each other."""


def certify(  # noqa: PLR0913, PLR0917 - one per option
    config: Config,
    inputs: Inputs = None,
    data: RandomArrays = None,
    ulp: Annotated[
        float,
        typer.Option(
            "--ulp",
            metavar="K",
            min=0,
            help="How far floats of a row may be apart, in units of the last place.",
        ),
    ] = 0,
    repeat: Annotated[
        int, typer.Option("--repeat", min=0, help="How often the first row runs alone.")
    ] = 1000,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="CONFIG",
            help='The configuration with the right results, such as "Call(module:function)".',
            show_default=False,
        ),
    ] = None,
    rtol: Annotated[
        float, typer.Option("--rtol", min=0, help="How far from the reference, relative to it.")
    ] = 1e-3,
    atol: Annotated[
        float, typer.Option("--atol", min=0, help="How far from the reference besides.")
    ] = 1e-5,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the JSON to this file."),
    ] = None,
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
) -> int:
    """Compare the results of each row alone, beside others and beside other instances.

    Each INPUT is a row, or each of four arrays for a --data. It runs alone, then while all instances run in a batch of each
    size that the node allows (up to 32, above in doublings), with eight rows at each place. Sizes that disagree run again on
    one instance. Several nodes get lists of these sizes, and form batches of them. The first row runs --repeat times. An
    output is equal, within K units of the last place, dependent on its batch, or random. With --reference the rows alone
    are compared with its results too.

    A node with require = "FILE" is built only if the configuration, files, weights outside of ONNX models, modules of
    backends, versions and GPU are those of the JSON. With invariant = true it forms only batches of sizes that agree. The
    exit status is 1 if an output is dependent or random, or differs from the reference.

    \b
    Examples:
      headrace certify "S[DecodeMat,ResizeMat(64,64)]" photos/ --set max=8
      headrace certify OnnxTensor --set model=light.onnx --set max=8 --data float32:3x224x224 --ulp 64 -o light.json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    library("numpy", None, "headrace certify")
    check_outputs({"--output": output}, [config, *(inputs or ()), reference or config])
    arrays = [text for text in data or () for _ in range(_ARRAYS)]
    rows = samples_of(inputs or (), arrays)
    if len(rows) == 1:
        raise WrongArgument("one row has no other one beside it: give at least two INPUT files")
    names = [f"{text} #{k}" for k, text in enumerate(arrays)] or [row["path"] for row in rows]
    document: dict[str, Any] = {
        "kind": "certify",
        "headrace_observe": headrace_observe.__version__,
        "environment": environment(),
        "config": config,
        "rows": names,
    }
    running = config
    try:
        with contextlib.ExitStack() as opened:
            opened.enter_context(printing_warnings())
            opened.enter_context(without_certificates())
            bars = opened.enter_context(showing_progress())
            loaded = _loaded(config, settings, no_import)
            ref = None if reference is None else _loaded(reference, None, no_import)
            hashes = opened.enter_context(contextlib.closing(Held()))
            before = identity(loaded, in_use=False, hashes=hashes)
            runner = opened.enter_context(runner_of(loaded, progress=bars))

            def began(total: int) -> Any:
                return opened.enter_context(bars(total, "batches"))

            alone, outputs = compare(runner, rows, ulp=ulp, repeat=repeat, began=began)
            document |= _unchanged(loaded, before, hashes)
            if reference is not None and ref is not None:
                running = reference
                other = opened.enter_context(runner_of(ref, progress=bars))
                if not compare_reference(other, rows, alone, outputs, rtol=rtol, atol=atol):
                    raise WrongArgument(
                        f"--reference {reference}: it has none of the outputs {', '.join(outputs)}"
                    )
                document["reference"] = {
                    "config": reference,
                    "rtol": rtol,
                    "atol": atol,
                    **identity(ref),
                }
    except RowFailed as failed:
        print_message(
            f"{running}: {names[failed.args[0]]} fails alone: {text_of(failed.__cause__ or failed)}"
        )
        return FAILED
    agrees = all(output.agrees for output in outputs.values())
    document |= {
        "instances": runner.instances,
        "compared": runner.compared,
        "sizes": runner.sizes,
        "repeat": repeat,
        "ulp": ulp,
        "outputs": {name: output.to_dict() for name, output in outputs.items()},
        "agrees": agrees,
    }
    if output is not None:
        write_json(output, document)
    if json:
        print_document(document)
    else:
        _print(document, outputs)
    return OK if agrees else FAILED


def _unchanged(
    loaded: headrace.PipelineConfig, before: Mapping[str, Any], hashes: Held
) -> dict[str, Any]:
    """Return the identity of what was built.

    Raises:
        SetupError: A file or a module is not what it was before the build.
    """
    now = identity(loaded, hashes=hashes)
    tables = [(before[key], now[key]) for key in ("files", "modules")]
    changed = [name for then, now in tables for name in then if then[name] != now.get(name)]
    if changed := hashes.changed() or changed:
        raise headrace.errors.SetupError(
            f"{', '.join(changed)} was replaced while it ran", hint="Certify it again."
        )
    return now


def _loaded(text: str, settings: list[str] | None, no_import: bool) -> headrace.PipelineConfig:
    with hinting_at_a_file(text):
        source = source_of(text, settings or ())
        return headrace.PipelineConfig.load(source, allow_import=not no_import)


def _print(document: Mapping[str, Any], outputs: Mapping[str, Output]) -> None:
    rows = []
    for name, output in outputs.items():
        verdict = (
            f"within {document['ulp']:g} ulp" if output.verdict == "within" else output.verdict
        )
        reference = output.reference
        agreed = "-" if reference is None else "agrees" if reference["agrees"] else "DIFFERS"
        sizes = [_numbers(numbers) for numbers in (output.sizes, output.beside)]
        cells = [verdict, f"{output.ulps:.3g}", *sizes, str(output.repeats), agreed]
        rows.append([name, *cells])
    headings = ("output", "verdict", "ulp", "sizes apart", "beside instances", "repeats apart")
    print_table((*headings, "reference"), rows)
    batches = document["compared"] == "batches"
    print_data(
        f"{counted(len(document['rows']), 'row')} in {document['compared']} of {_numbers(document['sizes'])}, "
        f"{counted(document['instances'], 'instance' if batches else 'caller')}, {document['repeat']} repeats."
    )
    for name, output in outputs.items():
        if output.example is not None and not output.agrees:
            row, size, place = (output.example[key] for key in ("row", "size", "place"))
            print_data(
                f"{name} of {document['rows'][row]}, at place {place} of {size}, is the furthest apart."
            )
        if output.reference is not None and output.reference["rows"]:
            wrong = [document["rows"][row] for row in output.reference["rows"][:3]]
            most = output.reference["max_abs"]
            far = "" if most is None else f" by up to {most:.3g}"
            print_data(f"{name} of {', '.join(wrong)} differs from the reference{far}.")
    if document["external_data"] is False:
        print_message("weights outside of ONNX models have no digest: pip install onnx")


def _numbers(numbers: Iterable[int]) -> str:
    """Write ``1-4,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs) or "-"
