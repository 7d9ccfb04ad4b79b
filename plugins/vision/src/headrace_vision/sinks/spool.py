"""What is kept for a sink that fails: how many bytes a frame takes, and frames in a folder, a file each."""

from __future__ import annotations

import math
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, code_of
from headrace_formats import read_json, write_json, write_whole
from headrace_vision.frames import Frame
from headrace_vision.records import plain, rle_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PICTURE", "SpoolFolder", "bytes_of", "read_frame", "without_image"]

LEAST_BYTES = 1024
"""What a frame counts at least."""

PICTURE = "picture_jpeg"
"""The key of a request for a picture that is sent with an event: bytes."""

_RECORDED = ("detections", "counts", "events", "gated", PICTURE)
"""Keys of a request that are kept."""

_NAME = re.compile(r"(\d{15})-[0-9a-f]{8}\.npz(\.\w+\.part)?")


class KeptError(HeadraceError):
    """The error of a frame that was kept in a folder: its text, with its code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.__dict__["code"] = code  # that of another class


def without_image(frame: Frame) -> Frame:
    """Return a frame with what a record of it has, and without pictures."""
    request: dict[str, Any] = {k: frame.request[k] for k in _RECORDED if k in frame.request}
    result = None if "detections" in request else frame.result
    models = {name: without_image(answer) for name, answer in frame.models.items()}
    return replace(frame, image=None, result=result, request=request, models=models)


def _parts_of(value: Any) -> Iterable[Any]:
    """Return what an object of supervision holds; its masks have slots."""
    names = getattr(type(value), "__slots__", None) or vars(value)
    return [getattr(value, name, None) for name in names]


def bytes_of(frame: Frame) -> int:
    """Return about how many bytes of memory a frame holds: each array and text once."""
    left: list[Any] = [frame]
    ids: set[int] = set()
    total = 0
    while left:
        part = left.pop()
        if part is None or id(part) in ids:
            continue
        ids.add(id(part))
        if isinstance(part, Frame):
            left += [part.image, part.result, *part.models.values()]
            left += [x for key, x in part.request.items() if key not in ("context", "color")]
        elif isinstance(part, Mapping):
            left += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            left += part
        elif type(part).__module__.startswith("supervision"):
            left += _parts_of(part)
        else:
            total += getattr(part, "nbytes", None) or sys.getsizeof(part)
    return max(total, LEAST_BYTES)


class SpoolFolder:
    """Frames as files in a folder, in their order. Files of other names are left alone.

    A file has arrays and JSON, and nothing that runs when it is read. It has its name only when it is whole.

    Args:
        folder: It is made, for this user alone.

    Attributes:
        found: The files that were there, the oldest first.
        next_number: The number behind theirs.

    Raises:
        OSError: There is no such folder, and it cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = sorted(path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name))
        for name in names:
            if name.endswith(".part"):  # a program that was killed has left it
                (self.folder / name).unlink(missing_ok=True)
        self.found = [self.folder / name for name in names if not name.endswith(".part")]
        self.next_number = int(self.found[-1].name[:15]) + 1 if self.found else 0
        self._mark = uuid.uuid4().hex[:8]  # no two programs write the same name

    def save(self, frame: Frame, number: int) -> tuple[Path, bool]:
        """Write a frame at its place. Return its file, and whether it holds the result itself, and not only its record.

        Raises:
            OSError: It cannot be written.
        """
        import numpy as np

        path = self.folder / f"{number:015d}-{self._mark}.npz"
        packed = _Packed()
        data = write_json(packed.of_frame(frame)).encode()

        def fill(part: Path) -> None:
            write: Any = np.savez
            with part.open("wb") as file:
                write(file, json=np.frombuffer(data, np.uint8), **packed.arrays)

        write_whole(path, fill)
        return path, packed.is_exact


def read_frame(path: Path) -> Frame:
    """Return the frame that a file of a `SpoolFolder` holds.

    Raises:
        Exception: Of any kind, where the file is damaged.
    """
    import numpy as np

    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    frame: Frame = _unpacked(read_json(arrays.pop("json").tobytes()), arrays)
    return frame


class _Packed:
    """Values as JSON, with the arrays beside them.

    Attributes:
        is_exact: Whether nothing was replaced by what its record has.
    """

    def __init__(self) -> None:
        self.is_exact = True
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[int, str] = {}

    def of_frame(self, frame: Frame) -> Any:
        """Return a frame. Of what no file can hold it has what a record has, and no key of its request that is in no record."""
        request = []
        for key, value in frame.request.items():
            with suppress(TypeError):
                request.append([key, self._of_any(value) if key in _RECORDED else self.of(value)])
        names = [field for field in Frame.__dataclass_fields__ if field != "request"]
        values = {name: getattr(frame, name) for name in names}
        values["error"] = None
        if frame.error is not None:
            values["error"] = [code_of(frame.error), str(frame.error)]
        pairs = [[name, self._of_any(value)] for name, value in values.items()]
        return {"frame": {"dict": [*pairs, ["request", {"dict": request}]]}}

    def _of_any(self, value: Any) -> Any:
        """Return a value, or where no file can hold it, what a record has of it."""
        try:
            return self.of(value)
        except TypeError:
            self.is_exact = False
            return self.of(plain(value))

    def of(self, value: Any) -> Any:
        """Return a value as one of JSON.

        Raises:
            TypeError: It holds something else than arrays, objects of supervision and plain values.
        """
        import numpy as np

        if value is None or type(value) in (bool, int, str) or _is_finite(value):
            return value
        if type(value) is list:
            return [self.of(element) for element in value]
        if isinstance(value, Frame):
            return self.of_frame(value)
        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            name = self._names.setdefault(id(value), f"array{len(self._names)}")
            self.arrays[name] = np.asarray(value)
            return {"array" if isinstance(value, np.ndarray) else "scalar": name}
        for kind, (is_one, parts_of, _) in _KINDS.items():
            if is_one(value):
                return {kind: self.of(parts_of(value))}
        raise TypeError(f"{type(value).__name__} is in no file")


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, list):
        return [_unpacked(element, arrays) for element in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind in ("array", "scalar"):
        return arrays[inner] if kind == "array" else arrays[inner][()]
    value = _unpacked(inner, arrays)
    return _frame_of(value) if kind == "frame" else _KINDS[kind][2](value)


def _is_finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _frame_of(values: dict[str, Any]) -> Frame:
    error = values["error"] and KeptError(*values["error"])
    return Frame(**{**values, "error": error})


def _is_object_array(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.ndarray) and value.dtype.kind == "O"


def _objects_of(parts: list[Any]) -> NDArray[Any]:
    import numpy as np

    objects = np.empty(parts[0], object)
    for number, element in enumerate(parts[1]):
        objects.flat[number] = element
    return objects


def _bytes_array(value: bytes) -> NDArray[np.uint8]:
    import numpy as np

    return np.frombuffer(value, np.uint8)


def _is_supervision(kind: str) -> Callable[[Any], bool]:
    """Return what tells objects of a class of supervision, which need not be imported."""
    return lambda value: (
        type(value).__name__ == kind and type(value).__module__.startswith("supervision")
    )


def _made(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Return what makes an object of a class of supervision whose attributes are its arguments."""

    def make(values: dict[str, Any]) -> Any:
        import supervision as sv

        return getattr(sv, kind)(**values)

    return make


def _runs_of(masks: Any) -> tuple[Any, ...]:
    """Return what ``supervision.CompactMask`` is made of again: runs, boxes, and the size of the image."""
    runs = [rle_of(masks, row) for row in range(len(masks))]
    return runs, masks.bbox_xyxy, tuple(masks.shape[1:])


def _masks_of(parts: tuple[Any, ...]) -> Any:
    import supervision as sv

    return sv.CompactMask.from_coco_rle(*parts)


_KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "float": (lambda value: type(value) is float, str, float),
    "tuple": (lambda value: type(value) is tuple, list, tuple),
    "dict": (
        lambda value: isinstance(value, dict),
        lambda value: [[key, inner] for key, inner in value.items()],
        dict,
    ),
    "bytes": (lambda value: type(value) is bytes, _bytes_array, lambda array: array.tobytes()),
    "objects": (
        _is_object_array,
        lambda value: [list(value.shape), value.ravel().tolist()],
        _objects_of,
    ),
    "CompactMask": (_is_supervision("CompactMask"), _runs_of, _masks_of),
    **{
        kind: (_is_supervision(kind), lambda value: dict(vars(value)), _made(kind))
        for kind in ("Detections", "KeyPoints", "Classifications")
    },
}
"""What a file holds beside arrays and JSON, by name: what tells a value, what it is taken apart to, and what makes it again."""
