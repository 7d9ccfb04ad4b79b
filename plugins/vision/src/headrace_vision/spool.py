"""What is kept for a sink that fails: how many bytes a frame takes, and frames in a folder, a file each."""

from __future__ import annotations

import math
import os
import re
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, code_of
from headrace_formats import read_json, write_json
from headrace_vision.frames import Frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SpoolFolder", "bytes_of", "read_frame", "without_image"]

LEAST_BYTES = 1024
"""What a frame counts at least."""

_NAME = re.compile(r"(\d{15})-[0-9a-f]{8}\.npz(\.part)?")


class KeptError(HeadraceError):
    """The error of a frame that was kept in a folder: its text, with its code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.__dict__["code"] = code  # that of another class


def without_image(frame: Frame) -> Frame:
    """Return a frame with what a record of it has, and without pictures."""
    request: dict[str, Any] = {
        k: frame.request[k] for k in ("detections", "counts", "events") if k in frame.request
    }
    result = None if "detections" in request else frame.result
    models = {name: without_image(one) for name, one in frame.models.items()}
    return replace(frame, image=None, result=result, request=request, models=models)


def _is_detections(value: Any) -> bool:
    return type(value).__module__.startswith("supervision")


def bytes_of(frame: Frame) -> int:
    """Return about how many bytes of memory a frame holds: each array and text once."""
    left: list[Any] = [frame]
    seen: set[int] = set()
    total = 0
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Frame):
            left += [one.image, one.result, *one.models.values()]
            left += [x for key, x in one.request.items() if key not in ("context", "color")]
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (list, tuple, set)):
            left += one
        elif _is_detections(one):
            left += vars(one).values()
        else:
            total += getattr(one, "nbytes", None) or sys.getsizeof(one)
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
        names = sorted(one.name for one in self.folder.iterdir() if _NAME.fullmatch(one.name))
        for name in names:
            if name.endswith(".part"):  # a program that was killed has left it
                (self.folder / name).unlink(missing_ok=True)
        self.found = [self.folder / name for name in names if not name.endswith(".part")]
        self.next_number = int(self.found[-1].name[:15]) + 1 if self.found else 0
        self._mark = uuid.uuid4().hex[:8]  # no two programs write the same name

    def save(self, frame: Frame, number: int) -> Path | None:
        """Write a frame at its place. Return its file, or None where it has something that no file can hold.

        Raises:
            OSError: It cannot be written.
        """
        import numpy as np

        path = self.folder / f"{number:015d}-{self._mark}.npz"
        part = path.with_name(f"{path.name}.part")
        packed = _Packed()
        write: Any = np.savez
        try:
            data = write_json(packed.of_frame(frame)).encode()
        except TypeError:
            return None
        try:
            with part.open("xb") as file:
                write(file, json=np.frombuffer(data, np.uint8), **packed.arrays)
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        return path


def read_frame(path: Path) -> Frame:
    """Return the frame that a file of a `SpoolFolder` holds.

    Raises:
        Exception: Of any kind, where the file is damaged.
    """
    import numpy as np

    with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    frame: Frame = _unpacked(read_json(arrays.pop("json").tobytes()), arrays)
    return frame


class _Packed:
    """Values as JSON, with the arrays beside them."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[int, str] = {}

    def of_frame(self, frame: Frame) -> Any:
        """Return a frame. Keys of its request that no file can hold are left out.

        Raises:
            TypeError: Its result is one that no file can hold.
        """
        request = {}
        for key, one in frame.request.items():
            with suppress(TypeError):
                self.of(one)
                request[key] = one
        values = {name: getattr(frame, name) for name in Frame.__dataclass_fields__}
        error = None if frame.error is None else [code_of(frame.error), str(frame.error)]
        return {"frame": self.of(values | {"error": error, "request": request})}

    def of(self, value: Any) -> Any:
        """Return a value as one of JSON.

        Raises:
            TypeError: It holds something else than arrays, detections and plain values.
        """
        if value is None or type(value) in (bool, int, float, str):
            odd = type(value) is float and not math.isfinite(value)
            return {"float": str(value)} if odd else value
        if type(value) is list:
            return [self.of(one) for one in value]
        if type(value) is tuple:
            return {"tuple": [self.of(one) for one in value]}
        if type(value) is dict:
            return {"dict": [[self.of(key), self.of(one)] for key, one in value.items()]}
        if isinstance(value, Frame):
            return self.of_frame(value)
        if type(value).__name__ == "Detections" and _is_detections(value):
            return {"detections": self.of(dict(vars(value)))}
        import numpy as np

        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            name = self._names.setdefault(id(value), f"array{len(self._names)}")
            self.arrays[name] = np.asarray(value)
            return {"array" if isinstance(value, np.ndarray) else "scalar": name}
        raise TypeError(f"{type(value).__name__} is in no file")


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind in ("array", "scalar"):
        return arrays[inner] if kind == "array" else arrays[inner][()]
    if kind == "dict":
        return {_unpacked(key, arrays): _unpacked(one, arrays) for key, one in inner}
    found = _unpacked(inner, arrays)
    if kind in ("tuple", "float"):
        return tuple(found) if kind == "tuple" else float(found)
    if kind == "frame":
        error = found["error"] and KeptError(*found["error"])
        return Frame(**{**found, "error": error})
    import supervision as sv

    return sv.Detections(**found)
