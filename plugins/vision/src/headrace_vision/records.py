"""Detections as records that JSON can write, and back, without loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    import supervision as sv

__all__ = ["from_records", "to_records"]

_FIELDS = {"score": "confidence", "class_id": "class_id", "track_id": "tracker_id"}


def to_records(detections: sv.Detections) -> list[dict[str, Any]]:
    """Return a dict per detection: ``box``, ``score``, ``class_id``, ``track_id``, and what ``data`` has.

    ``box`` is ``[x1, y1, x2, y2]`` in pixels of the source image. What the detections do not have is left out.

    Raises:
        InputError: They have masks, or ``data`` has a key of that name, or something that JSON cannot write.
    """
    if detections.mask is not None:
        raise InputError("masks are no records", expected="detections of boxes")
    columns: dict[str, list[Any]] = {"box": detections.xyxy.tolist()}
    for name, field in _FIELDS.items():
        values = getattr(detections, field)
        if values is not None:
            columns[name] = values.tolist()
    for name, values in detections.data.items():
        if name in columns or name in _FIELDS:
            raise InputError(f"data has {name!r}, which is a field of a record", key=name)
        columns[name] = values.tolist() if hasattr(values, "tolist") else list(values)
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def from_records(records: Iterable[Mapping[str, Any]]) -> sv.Detections:
    """Return the detections whose records these are.

    Floating numbers become ``float32`` where that loses nothing, else ``float64``.

    Raises:
        InputError: A record has no ``box``, or the records have different keys.
    """
    import numpy as np
    import supervision as sv

    rows = list(records)
    if not rows:
        return sv.Detections.empty()
    keys = list(rows[0])
    for number, row in enumerate(rows):
        if "box" not in row or set(row) != set(keys):
            got = f"record {number}: {', '.join(map(str, row))}"
            raise InputError(
                "these records differ", expected=f"each with {', '.join(keys)}", got=got
            )

    def column(name: str) -> Any:
        values = np.array([row[name] for row in rows])
        narrow = values.astype(np.float32) if values.dtype == np.float64 else values
        return narrow if np.array_equal(narrow, values) else values

    fields = {field: column(name) for name, field in _FIELDS.items() if name in keys}
    data = {name: column(name) for name in keys if name != "box" and name not in _FIELDS}
    return sv.Detections(xyxy=column("box").reshape(-1, 4), data=data, **fields)
