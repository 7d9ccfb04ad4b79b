"""What a ``model.py`` asks of ``triton_python_backend_utils`` that is not here, found in its text before it runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NOT_HERE", "Found", "missing_names"]

NOT_HERE: Final = {
    "load_model": "Clients load models with --allow repository. A model may ask is_model_ready.",
    "unload_model": "Clients unload models with --allow repository.",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": "Answer the request, or write the loop into `execute`.",
}
"""Names of Triton's module without a counterpart, with what to do."""

_MODULE: Final = "triton_python_backend_utils"


class Found(NamedTuple):
    """A name of `NOT_HERE`, and where it stands: the line and the column, counted from 1."""

    name: str
    line: int
    column: int


def missing_names(code: bytes) -> Iterator[Found]:
    """Yield the uses of names of `NOT_HERE` in the code of a model.

    Raises:
        SyntaxError: It is no Python of this version. ValueError: it has a zero byte.
    """
    nodes = [*ast.walk(ast.parse(code))]
    imports = (alias for node in nodes if isinstance(node, ast.Import) for alias in node.names)
    modules = {alias.asname or alias.name for alias in imports if alias.name == _MODULE}
    for node in nodes:
        if not isinstance(node, (ast.ImportFrom, ast.Attribute)):
            continue
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names] if node.module == _MODULE else []
        elif isinstance(node.value, ast.Name) and node.value.id in modules:
            names = [node.attr]
        for name in names:
            if name in NOT_HERE:
                yield Found(name, node.lineno, node.col_offset + 1)
