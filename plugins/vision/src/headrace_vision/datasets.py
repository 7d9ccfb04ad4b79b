"""`SaveCOCO` and `SaveYOLO`: detections as data sets that tools for labelling and training read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace_formats import read_json, write_json
from headrace_vision.boxes import QUADS
from headrace_vision.records import is_detections, rle_of
from headrace_vision.saving import Names, write_image, write_whole
from headrace_vision.sinks import CLOSE_S, SPOOL_BYTES, Sink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["SaveCOCO", "SaveYOLO"]

_LOG = logging.getLogger("headrace.vision")

LEAST_PART = 1e-6
"""The least width and height of a box, in parts of those of its picture: the last digit of what `SaveYOLO` writes."""

MAX_CLASSES = 100_000
"""A number of a class is below this: ``data.yaml`` has a name for each number up to the highest."""


SAVE_S = 1.0
"""Least seconds between two times at which the file of a data set is written while frames come."""

MOST_SHARE = 0.05
"""Most of the time that goes into writing it."""

_Boxes: TypeAlias = dict[int, list[float]]
"""``[x1, y1, x2, y2]`` in pixels of what is written, by its row in the detections."""


class _DataSet(Sink):
    """Images in ``FOLDER/images``, without boxes on them; a data set that is there already is gone on with.

    Boxes end at the border of the picture. What has no pixel in it is left out, and counted.
    """

    file = ""
    needs_model = True
    has_masks = False
    """Whether masks are written, so that an empty one has no pixel."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        images: bool = True,
        spool_bytes: int = SPOOL_BYTES,
        spool: str | os.PathLike[str] | None = None,
        close_s: float = CLOSE_S,
    ) -> None:
        self._keep(spool_bytes, spool, close_s)
        self._folder = Path(folder)
        self._images = images
        self._names = Names()
        self._classes: dict[int, str] = {}
        self._is_open = False
        self._left_out = 0
        self._due_s = 0.0
        self._prepare()

    def _prepare(self) -> None:
        """Make what a kind of data set has beside this."""

    def open(self) -> None:
        """Make the folder, and read the data set that it has."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / self.file
        if path.exists():
            try:
                self.read(path.read_text(encoding="utf-8"))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise ValueError(
                    f"{path} is no data set to go on with ({error}); write to another folder"
                ) from error
        self._is_open = True

    def write(self, frame: Frame) -> None:
        """Write the image of a frame and what was found; frames that have failed are left out."""
        import supervision as sv

        found = frame.request.get("detections", frame.result)
        if frame.image is None or frame.error is not None:
            return
        if not is_detections(found):
            raise TypeError(f"the result is no supervision.Detections but {type(found).__name__}")
        numbers = self._numbers_of(found)
        name = f"{self._names.of(frame.source)}_{frame.frame:06d}"
        if self._images:
            write_image(self._folder / "images" / f"{name}.jpg", frame.image)
        height, width = frame.image.shape[:2]
        boxes = {
            row: box
            for row, box in enumerate(sv.clip_boxes(found.xyxy, (width, height)).tolist())
            if box[2] - box[0] >= LEAST_PART * width and box[3] - box[1] >= LEAST_PART * height
            if not self.has_masks or found.mask is None or found.mask[row].any()
        }
        self.add(name, frame, found, numbers, boxes)
        left_out = len(found) - len(boxes)
        if left_out and not self._left_out:
            text = "sink %s leaves out what has no pixel in its picture: %d of frame %d of %s; status() counts them"
            _LOG.warning(text, self.name, left_out, frame.frame, frame.source)
        self._left_out += left_out
        if time.monotonic() >= self._due_s:
            with suppress(OSError):  # it is written again, at the latest by `close`, which says so
                self._save()

    def _save(self) -> None:
        """Write the file, and note when it is due again."""
        begun_s = time.monotonic()
        write_whole(self._folder / self.file, self.content())
        done_s = time.monotonic()
        self._due_s = done_s + max(SAVE_S, (done_s - begun_s) / MOST_SHARE)

    def status(self) -> dict[str, Any]:
        """Return how many detections were ``left_out``, as they have no pixel."""
        return {"left_out": self._left_out}

    def close(self) -> None:
        """Write the file, unless another one is in its place that could not be read."""
        if self._is_open:
            self._save()

    def read(self, text: str) -> None:
        """Take over what the file of a data set says.

        Raises:
            ValueError: It is no such file. So are the other errors of reading what others wrote.
        """
        raise NotImplementedError

    def add(self, name: str, frame: Frame, found: Any, numbers: list[int], boxes: _Boxes) -> None:
        """Write the ``boxes`` of an image of that name; ``numbers`` are those of the classes."""
        raise NotImplementedError

    def content(self) -> bytes:
        """Return the content of the file."""
        raise NotImplementedError

    def _numbers_of(self, found: Any) -> list[int]:
        """Return the number of the class of each row, and note the names.

        Raises:
            ValueError: A class has no number that can be written, or two names.
        """
        names = found.data.get("class_name")
        if found.class_id is None:
            if names is not None and len(found):
                raise ValueError("the detections have names of classes, but no class_id")
            numbers = [0] * len(found)
        else:
            numbers = [int(one) for one in found.class_id]
        for row, number in enumerate(numbers):
            self.note(number, str(number if names is None else names[row]))
        return numbers

    def note(self, number: int, name: str) -> None:
        """Note the name of a class. Its number as a text is no name.

        Raises:
            ValueError: The number cannot be written, or the class has another name already.
        """
        if not 0 <= number < MAX_CLASSES:
            raise ValueError(f"class_id {number} is not from 0 to {MAX_CLASSES - 1}")
        known = self._classes.get(number, str(number))
        if str(number) not in (known, name) and known != name:
            raise ValueError(
                f"class {number} is {name!r} here, and {known!r} in {self._folder / self.file}; "
                "write to another folder, or use the same labels"
            )
        self._classes[number] = name if known == str(number) else known


class SaveCOCO(_DataSet):
    """Writes ``FOLDER/annotations.json`` in the format of COCO, and the images beside it.

    ``category_id`` is the ``class_id`` of the detections. Boxes are ``[x, y, width, height]`` in pixels. Annotations also have
    ``score`` and ``track_id``. Boxes end at the border of the picture. Detections without a pixel in it, by their box or mask, are left
    out and counted in ``status()``, and such keypoints are not labelled. The annotations are kept in memory. The file is written each second, or less often where it
    is so large that this would take more than 5 % of the time, and when the sink is closed. A file that is there already is gone on with: images of the same name are replaced, and a class keeps its name.

    Args:
        folder: Where it goes. It is made.
        images: Whether the images are written too.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.

    Source:
        The data format at cocodataset.org.
    """

    file = "annotations.json"
    has_masks = True

    def _prepare(self) -> None:
        self._others: dict[str, Any] = {}
        self._pictures: dict[str, dict[str, Any]] = {}
        self._annotations: dict[int, list[dict[str, Any]]] = {}
        self._next_id = 1
        self._unsaved = 0

    def _save(self) -> None:
        super()._save()
        self._unsaved = 0

    def give_up(self) -> int:
        """Return how many frames have no annotations in the file."""
        return self._unsaved

    def read(self, text: str) -> None:
        """Take over images, annotations and categories."""
        whole = dict(read_json(text))
        for category in whole.pop("categories"):
            self.note(category["id"], category["name"])
        self._pictures = {one["file_name"]: one for one in whole.pop("images")}
        self._annotations = {one["id"]: [] for one in self._pictures.values()}
        for one in whole.pop("annotations"):
            self._annotations[one["image_id"]].append(one)
            self._next_id = max(self._next_id, one["id"] + 1)
        self._others = whole

    def add(self, name: str, frame: Frame, found: Any, numbers: list[int], boxes: _Boxes) -> None:
        """Keep the annotations of an image."""
        path = f"images/{name}.jpg"
        known = self._pictures.get(path)
        number = known["id"] if known else max(self._annotations, default=0) + 1
        height, width = (int(side) for side in frame.image.shape[:2])  # type: ignore[union-attr]
        self._pictures[path] = {
            "id": number,
            "file_name": path,
            "height": height,
            "width": width,
            "source": frame.source,
            "frame": frame.frame,
            "timestamp": frame.timestamp,
        }
        self._annotations[number] = []
        for row, (x1, y1, x2, y2) in boxes.items():
            annotation = {
                "id": self._next_id,
                "image_id": number,
                "category_id": numbers[row],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            if found.mask is not None:
                mask = annotation["segmentation"] = rle_of(found.mask, row)
                annotation["area"] = sum(mask["counts"][1::2])
            elif QUADS in found.data:
                quad = found.data[QUADS][row]
                annotation["segmentation"] = [quad.reshape(-1).tolist()]
                annotation["area"] = float(found[row].area[0])
            if "keypoints" in found.data:
                points = found.data["keypoints"][row].tolist()
                seen = [
                    2 if all(score) and 0 <= x <= width and 0 <= y <= height else 0
                    for x, y, *score in points
                ]
                flat = [
                    (x, y, v) if v else (0, 0, 0)
                    for (x, y, *_), v in zip(points, seen, strict=True)
                ]
                annotation["keypoints"] = [number for point in flat for number in point]
                annotation["num_keypoints"] = sum(map(bool, seen))
            if found.confidence is not None:
                annotation["score"] = float(found.confidence[row])
            if found.tracker_id is not None:
                annotation["track_id"] = int(found.tracker_id[row])
            self._annotations[number].append(annotation)
            self._next_id += 1
        self._unsaved += 1

    def content(self) -> bytes:
        """Return the whole data set."""
        found = sorted(self._classes.items())
        whole = {
            **self._others,
            "images": list(self._pictures.values()),
            "annotations": [one for rows in self._annotations.values() for one in rows],
            "categories": [{"id": number, "name": name} for number, name in found],
        }
        return write_json(whole).encode()


class SaveYOLO(_DataSet):
    """Writes ``FOLDER/labels/NAME.txt`` with a line per box, the images beside them, and ``data.yaml``.

    A line is ``class x y width height``: the ``class_id`` of the detections, the centre, and sizes, in parts of the image (0 to
    1). Of oriented boxes it is ``class x1 y1 x2 y2 x3 y3 x4 y4``. Boxes end at the border of the picture. Those without a pixel in it are left out and counted in ``status()``. ``data.yaml`` has a name for each number up to the highest, which is the number itself where no name is known. A file that
    is there already is gone on with: a class keeps its name.

    Args:
        folder: Where it goes. It is made.
        images: Whether the images are written too.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.

    Source:
        The format of labels that the documentation of Ultralytics describes.
    """

    file = "data.yaml"

    def _prepare(self) -> None:
        self._others: dict[str, Any] = {"path": ".", "train": "images", "val": "images"}

    def read(self, text: str) -> None:
        """Take over the names of the classes, by number or as a list."""
        import yaml

        try:
            whole = dict(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
        names = whole.pop("names")
        pairs = names.items() if isinstance(names, Mapping) else enumerate(names)
        for number, name in pairs:
            self.note(int(number), str(name))
        whole.pop("nc", None)  # how many there are, which may change
        self._others = whole

    def add(self, name: str, frame: Frame, found: Any, numbers: list[int], boxes: _Boxes) -> None:
        """Write the labels of an image."""
        height, width = frame.image.shape[:2]  # type: ignore[union-attr]
        lines = []
        for row, (x1, y1, x2, y2) in boxes.items():
            place = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height)
            size = ((x2 - x1) / width, (y2 - y1) / height)
            numbers_of = [*place, *size]
            if QUADS in found.data:
                corners = found.data[QUADS][row] / [width, height]
                numbers_of = corners.clip(0, 1).reshape(-1).tolist()
            texts = " ".join(f"{one:.6f}" for one in numbers_of)
            lines.append(f"{numbers[row]} {texts}\n")
        write_whole(self._folder / "labels" / f"{name}.txt", "".join(lines).encode())

    def content(self) -> bytes:
        """Return the names of the classes, without a gap: readers count them."""
        import yaml

        count = max(self._classes, default=-1) + 1
        names = {number: self._classes.get(number, str(number)) for number in range(count)}
        whole = {**self._others, "names": names}
        text: str = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)
        return text.encode()
