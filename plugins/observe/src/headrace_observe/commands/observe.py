"""``headrace observe``: the commands that few need, below one name."""

from __future__ import annotations

import typer

from headrace_observe.commands.gpus import gpus
from headrace_observe.commands.inspect import inspect
from headrace_observe.commands.why import why

__all__ = ["observe"]

observe = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Say why a request was slow, measure one backend alone, list the GPUs.",
)
for _command in (inspect, gpus, why):
    observe.command()(_command)
