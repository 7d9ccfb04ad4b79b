"""What the results of a run depend on, as digests: the configuration, the files that it names, the files of records."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import headrace


def made_of(config: headrace.PipelineConfig, records: Iterable[str]) -> dict[str, str]:
    """Return a digest of each thing that the results depend on, by its name.

    How many instances there are, and how large batches are, is left out. So is the code of what is installed.

    Args:
        config: The configuration.
        records: The files of records.

    Raises:
        OSError: A file cannot be read.
    """
    nodes = config.plan().nodes
    words = [
        [name, node.expression, node.to_dict()["links"], [_options(tree) for tree in node.trees]]
        for name, node in nodes.items()
    ]
    text = json.dumps(words, sort_keys=True, default=str)
    files = [file for file in config.files if file.suffix == ".py"]
    files += [file for node in nodes.values() for tree in node.trees for file in _files(tree)]
    digests = {f"file {file.name}": _digest(file) for file in sorted(set(files))}
    inputs = {f"input {path}": _digest(Path(path)) for path in records}
    return {"configuration": hashlib.sha256(text.encode()).hexdigest(), **digests, **inputs}


def _options(tree: Any) -> list[Any]:
    return [
        [part.name, {key: one.value for key, one in part.values.items()}] for part in tree.walk()
    ]


def _files(tree: Any) -> Iterator[Path]:
    """Give the files that options name, however deep in them."""
    left = [one.value for part in tree.walk() for one in part.values.values()]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
        elif isinstance(value, (str, Path)) and _is_file(Path(value)):
            yield Path(value)


def _is_file(path: Path) -> bool:
    try:
        return path.is_absolute() and path.is_file()
    except (OSError, ValueError):  # a text that is no path
        return False


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
