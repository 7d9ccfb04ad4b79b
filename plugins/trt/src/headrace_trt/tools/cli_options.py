"""The options of a build on the command line: the same names and descriptions as in a configuration."""

from __future__ import annotations

import inspect
import json
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Optional

import pydantic
import typer

from headrace.errors import SetupError
from headrace_trt.options import BuildOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Device", "File", "Json", "kept_where", "settings_from", "with_build_options"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Device = Annotated[str | None, typer.Option(help="The device; default: cuda:0.")]
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The file.")]

_OWN: Final = ("model", "profiles", "engine")
"""Fields for which a command has an argument of its own, or options of another form."""

_LISTS: Final = ("keep_fp32", "tactic_sources", "plugins", "mark_outputs")
_NUMBERS: Final = ("mean", "std")

_SHAPES: Final = {
    "min_shapes": "Smallest shapes, as x:1x3x224x224,m:1x10; once per optimization profile.",
    "opt_shapes": "Shapes to be fastest at; once per optimization profile.",
    "max_shapes": "Largest shapes; once per optimization profile.",
}
_PROFILES: Final = 'All optimization profiles, as JSON: [{"min": "x:1x3", "max": "x:8x3"}]; in place of the shapes.'
_ROWS: Final = {
    "min": "Fewest rows per batch, where no shapes are given.",
    "max": "Most rows per batch, where no shapes are given.",
}


def with_build_options(
    command: Callable[..., Any], *, without: Sequence[str] = ()
) -> Callable[..., Any]:
    """Add the options of a build to a command, which gets the given ones as one dict, ``build``.

    Args:
        command: The command. Its last parameter must be ``build``.
        without: Options that mean nothing to the command.
    """
    own = inspect.signature(command, eval_str=True)
    first = [p for name, p in own.parameters.items() if name != "build"]
    made = [_parameter(name) for name in BuildOptions.model_fields if name not in (*_OWN, *without)]
    made += [_listed(name, text) for name, text in _SHAPES.items()]
    made.append(_option("profiles", Optional[str], _PROFILES))  # noqa: UP045
    made += [_option(name, Optional[int], text, min=1) for name, text in _ROWS.items()]  # noqa: UP045
    names = {parameter.name for parameter in made}

    def run(**given: Any) -> Any:
        build = {name: given.pop(name) for name in list(given) if name in names}
        return command(**given, build={k: v for k, v in build.items() if v not in (None, [])})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*first, *made)]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in keywords}
    return run


def _parameter(name: str) -> inspect.Parameter:
    field = BuildOptions.model_fields[name]
    text = field.description or ""
    if name in _LISTS:
        return _listed(name, f"{text} May be given several times.")
    if name in _NUMBERS:
        return _option(name, Optional[str], f"{text} Several with commas.")  # noqa: UP045
    kinds = typing.get_args(field.annotation) or (field.annotation,)
    literals = (field.annotation, *kinds)
    choices = [typing.get_args(kind) for kind in literals if typing.get_origin(kind) is Literal]
    if bool in kinds:
        return _option(name, Optional[bool], text)  # noqa: UP045
    if int in kinds:
        return _option(name, Optional[int], text)  # noqa: UP045
    shown = {"metavar": "|".join(choices[0])} if choices else {}
    return _option(name, Optional[str], text, **shown)  # noqa: UP045


def _option(name: str, kind: Any, text: str, **more: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(help=text, show_default=False, **more)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _listed(name: str, text: str) -> inspect.Parameter:
    return _option(name, Optional[list[str]], text)  # noqa: UP045


def settings_from(
    model: str | None, build: Mapping[str, Any]
) -> tuple[BuildOptions, dict[str, Any]]:
    """Return the options of a build, and the rows per batch, from the command line.

    Raises:
        SetupError: Values are wrong. The error names all of them.
    """
    given = dict(build)
    shapes = {key[:3]: given.pop(key, []) for key in _SHAPES}
    rows = {key: given.pop(key, None) for key in _ROWS}
    least, most = rows["min"] or 1, rows["max"]
    if least > (most or 1):
        raise SetupError(
            f"--min {least} is more than --max{f' {most}' if most else ', which is 1'}"
        )
    for name in _NUMBERS:
        if name in given:
            given[name] = _numbers(name, given[name])
    if any(shapes.values()) and "profiles" in given:
        raise SetupError("--profiles and the shapes both say the profiles: leave one out")
    if any(shapes.values()) or "profiles" in given:
        beside = [f"--{key}" for key, number in rows.items() if number is not None]
        if beside:
            raise SetupError(
                f"{' and '.join(beside)} and the shapes both say the rows of a batch: leave one out"
            )
        written = given.get("profiles")
        given["profiles"] = _profiles(shapes) if written is None else _read_profiles(written)
    if model is not None:
        given["model"] = model
    try:
        return BuildOptions.model_validate(given), rows
    except pydantic.ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise SetupError(problems, hint="`headrace trt build --help` lists the options.") from error


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SetupError(
            f"--{name} {text!r} is no number, nor several with commas between them",
            hint="Write 127.5, or 123.7,116.3,103.5.",
        ) from None


def kept_where(options: BuildOptions) -> dict[str, Any]:
    """Return the options of a build that say where the engine is kept and how it is loaded, as `engine_of_settings` takes them."""
    names = ("cache_dir", "cache_size_bytes", "weight_streaming_bytes")
    return {name: getattr(options, name) for name in names}


def _profiles(shapes: Mapping[str, list[str]]) -> list[dict[str, str]]:
    count = len(shapes["max"])
    if not count or any(len(found) not in (0, count) for found in shapes.values()):
        raise SetupError(
            "--max-shapes must be given once per profile, --min-shapes and --opt-shapes as often or"
            " not at all"
        )
    return [{key: found[i] for key, found in shapes.items() if found} for i in range(count)]


def _read_profiles(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SetupError(
            f"--profiles {text!r} is no JSON: {error}",
            hint="""Write '[{"min": "x:1x3", "opt": "x:4x3", "max": "x:8x3"}]'.""",
        ) from None
