"""The public names of this package, beside `headrace_cli.main`: what commands of plugins may use.

A command of a plugin (hook ``headrace_commands``) takes its arguments, reads its inputs and writes its
answers by these functions, so that it looks and ends like the other commands. All other names of this
package may change.
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
from headrace_cli.inputs import check_arguments, expand, ports_of
from headrace_cli.printing import print_json
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
    "ports_of",
    "print_data",
    "print_json",
    "print_message",
    "printing_warnings",
    "showing_progress",
    "source_of",
]
