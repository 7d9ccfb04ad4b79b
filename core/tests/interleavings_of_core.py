"""Programs whose interleavings are explored, and where in core their promises are kept."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

FOLDER = Path(__file__).with_name("interleavings")

NEAR = {
    "calls": ("route", "traversal", "node_request", "runners"),
    "closing": ("engine", "closing"),
    "coroutines": ("futures", "streams"),
    "destructors": ("runners", "box", "node", "standby"),
    "futures": ("box", "futures", "route"),
    "graphs": ("route", "traversal", "node_request", "runners"),
    "inbox": ("node", "shortcut", "dispatch", "room", "entrance"),
    "instances": ("node", "instance", "probes", "events"),
    "interrupts": ("shortcut", "box", "runners", "engine"),
    "one_node": ("shortcut", "node", "runners", "dispatch"),
    "own_threads": ("standby", "shortcut", "runners", "box", "dispatch"),
    "pending": ("pending", "keeping", "node"),
    "queues": ("node", "queue", "route"),
    "standby": ("standby", "shortcut", "runners", "box", "dispatch"),
    "streams": ("streams", "parts", "keeping"),
}
"""The files of the kernel whose source lines are points, by the file of a program."""


def lines_near(program, core=Path(headrace.__file__).parent):
    """Return the files of core, or of a copy of it, in which the promise of a program is kept."""
    near = NEAR[program.partition(".")[0]]
    return [str(path) for module in near for path in (core / "_run").rglob(f"{module}.py")]


ALONE = ("futures", "graphs", "one_node", "queues", "standby")
"""The files whose programs load nothing of the language: their pipelines are made of plain objects."""


def programs():
    """Return all programs, as ``FILE.py:FUNCTION``: the public functions that take no arguments."""
    return [
        f"{path.name}:{node.name}"
        for path in sorted(FOLDER.glob("*.py"))
        if path.stem in NEAR
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.args.args and node.name[0] != "_"
    ]
