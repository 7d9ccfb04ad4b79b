"""Detections as records that JSON can write, and back, without loss."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, code_of
from headrace_vision.frames import SAID

if TYPE_CHECKING:
    import supervision as sv

    from headrace_vision.frames import Frame

__all__ = ["frame_record", "from_records", "is_detections", "plain", "rle_of", "to_records"]

_FIELDS = {"score": "confidence", "class_id": "class_id", "track_id": "tracker_id"}


def is_detections(value: Any) -> bool:
    """Return whether a value is ``supervision.Detections``. Where nobody has imported them it is not."""
    sv = sys.modules.get("supervision")
    return sv is not None and isinstance(value, sv.Detections)


def to_records(detections: sv.Detections) -> list[dict[str, Any]]:
    """Return a dict per detection: ``box``, ``score``, ``class_id``, ``track_id``, ``mask``, and what ``data`` has.

    ``box`` is ``[x1, y1, x2, y2]`` in pixels of the source image. ``mask`` is the run-length encoding of COCO, ``{"size": [H, W],
    "counts": [...]}``. What the detections do not have is left out.

    Raises:
        InputError: ``data`` has a key of that name, or something that JSON cannot write.
    """
    columns: dict[str, list[Any]] = {"box": detections.xyxy.tolist()}
    for name, field in _FIELDS.items():
        values = getattr(detections, field)
        if values is not None:
            columns[name] = values.tolist()
    if detections.mask is not None:
        columns["mask"] = [rle_of(detections.mask, row) for row in range(len(detections))]
    for name, values in detections.data.items():
        if name in columns or name in _FIELDS or name == "mask":
            raise InputError(f"data has {name!r}, which is a field of a record", key=name)
        columns[name] = plain(values.tolist() if hasattr(values, "tolist") else list(values))
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def rle_of(masks: Any, row: int) -> dict[str, Any]:
    """Return one of ``masks`` (``bool [N, H, W]``) in the run-length encoding of COCO: runs along the columns, from what is outside.

    Of a ``CompactMask`` only the columns of the object are looked at.
    """
    import numpy as np
    import supervision as sv

    _, height, width = masks.shape
    left = 0
    if isinstance(masks, sv.CompactMask):
        crop, (left, top) = masks.crop(row), masks.offsets[row].tolist()
        columns = np.zeros((height, crop.shape[1]), bool)
        columns[top : top + crop.shape[0]] = crop
    else:
        columns = np.asarray(masks[row], bool)
    counts = [int(run) for run in sv.mask_to_rle(columns)]
    counts[0] += left * height
    after = (width - left - columns.shape[1]) * height
    if len(counts) % 2:
        counts[-1] += after
    elif after:
        counts.append(after)
    return {"size": [height, width], "counts": counts}


def _mask_of(value: Any) -> Any:
    import numpy as np
    import supervision as sv

    if not isinstance(value, Mapping):
        return np.asarray(value, bool)
    height, width = value["size"]
    return sv.rle_to_mask(value["counts"], (width, height))


def from_records(records: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> sv.Detections:
    """Return the detections whose records these are.

    Floating numbers become ``float32`` where that loses nothing, else ``float64``. A null in the fields of detections is NaN.

    Args:
        records: What `to_records` returned, and ``headrace run --json`` writes as the result, or an object with the fields of
            detections.

    Raises:
        InputError: A record has no ``box``, or the records have different keys.
    """
    import numpy as np
    import supervision as sv

    rows = _rows(records) if isinstance(records, Mapping) else list(records)
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
        if name in _FIELDS and values.dtype == object:
            values = values.astype(np.float64)
        narrow = values.astype(np.float32) if values.dtype == np.float64 else values
        return narrow if np.array_equal(narrow, values) else values

    fields = {field: column(name) for name, field in _FIELDS.items() if name in keys}
    others = {"box", "mask", *_FIELDS}
    data = {name: column(name) for name in keys if name not in others}
    if "mask" in keys:
        fields["mask"] = np.array([_mask_of(row["mask"]) for row in rows])
    return sv.Detections(xyxy=column("box").reshape(-1, 4), data=data, **fields)


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of detections that were written field by field."""
    if "xyxy" not in columns:
        got = ", ".join(map(str, columns))
        raise InputError("these are no detections", expected="an object with xyxy", got=got)
    fields = {"box": columns["xyxy"]}
    fields |= {name: columns.get(field) for name, field in _FIELDS.items()}
    fields["mask"] = columns.get("mask")
    fields |= columns.get("data") or {}
    shown = {name: values for name, values in fields.items() if values is not None}
    return [dict(zip(shown, row, strict=True)) for row in zip(*shown.values(), strict=True)]


def frame_record(frame: Frame) -> dict[str, Any]:
    """Return a frame with its outcome as a dict for JSON.

    It has ``source``, ``frame``, ``timestamp``, ``time``, ``time_from``, ``gap``, ``damaged``, ``path``, then ``error`` (code and message) or
    ``detections`` (records), or ``result`` for any other result (of an array with three axes or more, only its shape and
    type), with ``gated`` where it is that of an earlier frame, and ``counts`` and ``events``, where words wrote them. Of several models the outcomes are below ``models``, by name.
    """
    record: dict[str, Any] = {name: getattr(frame, name) for name in SAID}
    if frame.models:
        record["models"] = {name: _outcome_of(own) for name, own in frame.models.items()}
    if not frame.models or frame.error is not None:
        record |= _outcome_of(frame)
    if frame.error is None or frame.models:
        extra = {key: frame.request[key] for key in ("counts", "events") if key in frame.request}
        record |= plain(extra)
    return record


def _outcome_of(frame: Frame) -> dict[str, Any]:
    if frame.error is not None:
        return {"error": {"code": code_of(frame.error), "message": str(frame.error)}}
    result = frame.request.get("detections", frame.result)
    is_records = is_detections(result)
    outcome = {"detections": to_records(result)} if is_records else {"result": plain(result)}
    return outcome | ({"gated": True} if frame.request.get("gated") else {})


def plain(value: Any) -> Any:
    """Return a value as JSON can write it. Of an array with three axes or more, only its shape and type."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if getattr(value, "ndim", 0) >= 3:  # a picture, a stack of masks
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if is_detections(value):
        return to_records(value)
    if is_dataclass(value) and not isinstance(value, type):  # supervision.KeyPoints is one
        return plain({field.name: getattr(value, field.name) for field in fields(value)})
    if not hasattr(value, "tolist"):
        return str(value)
    items = value.tolist()
    return plain(items) if getattr(value, "dtype", None) == "object" else items
