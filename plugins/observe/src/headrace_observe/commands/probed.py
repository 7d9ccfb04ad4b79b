"""A configuration with one more probe than it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import headrace
from headrace_cli.for_plugins import WrongArgument, is_file, source_of
from headrace_observe.layered import layered

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["with_probe"]


def with_probe(
    name: str, settings: Sequence[str], probe: str, option: str, *, allow_import: bool
) -> headrace.PipelineConfig:
    """Add a probe to those that a configuration has.

    Those it has are written again here, so their relative paths start from the folder of its file.

    Args:
        name: A file or an expression.
        settings: What ``--set`` lays over it.
        probe: The probe, as under ``probes``.
        option: What the user asked for, for the error.
        allow_import: Whether it may bring in code.

    Raises:
        WrongArgument: ``--set`` together with a file that has probes of its own.
        ConfigError: It is wrong.
    """
    source = source_of(name, settings)
    config = headrace.PipelineConfig.load(source, allow_import=allow_import)
    own = headrace.explain(config).get("probes", [])
    if own and settings and is_file(name):
        raise WrongArgument(f"{option} with --set: {name} has probes of its own; write a file")
    base = Path(name).absolute().parent if own and is_file(name) else None
    made = layered(
        source if base is None else Path(name).absolute(), {"global": {"probes": [*own, probe]}}
    )
    return headrace.PipelineConfig.load(made, base=base, allow_import=allow_import)
