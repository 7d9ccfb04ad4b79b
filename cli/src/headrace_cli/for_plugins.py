"""What commands of plugins may use of the command line: the public names beside `headrace_cli.main`.

A command that a plugin brings (hook ``headrace_commands``) takes its arguments, reads its inputs and writes its
answers with these, and so looks and ends like the others. Everything else in this package may change.
"""

from __future__ import annotations

from headrace_cli.arguments import Config, Json, NoImport, Settings
from headrace_cli.building import CLOSE_S, printing_warnings, showing_progress
from headrace_cli.console import (
    FAILED,
    INTERRUPTED,
    OK,
    WrongArgument,
    counted,
    print_data,
    print_message,
)
from headrace_cli.graph import FORMATS
from headrace_cli.inputs import check_arguments, expand
from headrace_cli.source import hinting_at_a_file, is_file, source_of

__all__ = [
    "CLOSE_S",
    "FAILED",
    "FORMATS",
    "INTERRUPTED",
    "OK",
    "Config",
    "Json",
    "NoImport",
    "Settings",
    "WrongArgument",
    "check_arguments",
    "counted",
    "expand",
    "hinting_at_a_file",
    "is_file",
    "print_data",
    "print_message",
    "printing_warnings",
    "showing_progress",
    "source_of",
]
