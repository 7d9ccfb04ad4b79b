"""`SaveCOCO` and `SaveYOLO`: detections as data sets that tools for labelling and training read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_vision.saving import Names, write_image
from headrace_vision.sinks import Sink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["SaveCOCO", "SaveYOLO"]


class _DataSet(Sink):
    """Images in ``FOLDER/images``, without boxes on them."""

    def __init__(self, folder: str | os.PathLike[str], *, images: bool = True) -> None:
        self._folder = Path(folder)
        self._images = images
        self._names = Names()
        self._classes: dict[str, int] = {}

    def open(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, frame: Frame) -> None:
        """Write the image of a frame and what was found; frames that have failed are left out."""
        found = frame.request.get("detections", frame.result)
        if frame.image is None or frame.error is not None:
            return
        if not type(found).__module__.startswith("supervision"):
            raise TypeError(f"the result is no supervision.Detections but {type(found).__name__}")
        name = f"{self._names.of(frame.source)}_{frame.frame:06d}"
        if self._images:
            write_image(self._folder / "images" / f"{name}.jpg", frame.image)
        self.add(name, frame, found)

    def add(self, name: str, frame: Frame, found: Any) -> None:
        """Write what was found in an image of that name."""
        raise NotImplementedError

    def class_of(self, found: Any, row: int) -> int:
        """Return the number of the class of a row, by the order in which classes were seen."""
        names = found.data.get("class_name")
        if names is not None:
            name = str(names[row])
        else:
            name = "object" if found.class_id is None else str(found.class_id[row])
        return self._classes.setdefault(name, len(self._classes))


class SaveCOCO(_DataSet):
    """Writes ``FOLDER/annotations.json`` in the format of COCO, and the images beside it.

    Boxes are ``[x, y, width, height]`` in pixels; annotations also have ``score`` and ``track_id``. The annotations are kept in
    memory, and the file is written when the sink is closed.

    Args:
        folder: Where it goes; it is made.
        images: Whether the images are written too.

    Source:
        The data format at cocodataset.org.
    """

    def __init__(self, folder: str | os.PathLike[str], *, images: bool = True) -> None:
        super().__init__(folder, images=images)
        self._pictures: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(self, name: str, frame: Frame, found: Any) -> None:
        """Keep the annotations of an image."""
        number = len(self._pictures) + 1
        height, width = (int(side) for side in frame.image.shape[:2])  # type: ignore[union-attr]
        self._pictures.append(
            {
                "id": number,
                "file_name": f"images/{name}.jpg",
                "height": height,
                "width": width,
                "source": frame.source,
                "frame": frame.frame,
                "timestamp": frame.timestamp,
            }
        )
        for row, (x1, y1, x2, y2) in enumerate(found.xyxy.tolist()):
            annotation = {
                "id": len(self._annotations) + 1,
                "image_id": number,
                "category_id": self.class_of(found, row) + 1,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            if found.confidence is not None:
                annotation["score"] = float(found.confidence[row])
            if found.tracker_id is not None:
                annotation["track_id"] = int(found.tracker_id[row])
            self._annotations.append(annotation)

    def close(self) -> None:
        """Write the file."""
        categories = [{"id": number + 1, "name": name} for name, number in self._classes.items()]
        whole = {
            "images": self._pictures,
            "annotations": self._annotations,
            "categories": categories,
        }
        part = self._folder / "annotations.json.part"
        part.write_text(json.dumps(whole), encoding="utf-8")
        part.replace(self._folder / "annotations.json")


class SaveYOLO(_DataSet):
    """Writes ``FOLDER/labels/NAME.txt`` with a line per box, the images beside them, and ``data.yaml``.

    A line is ``class x y width height``: the centre, and sizes, in parts of the image (0 to 1).

    Args:
        folder: Where it goes; it is made.
        images: Whether the images are written too.

    Source:
        The format of labels that the documentation of Ultralytics describes.
    """

    def add(self, name: str, frame: Frame, found: Any) -> None:
        """Write the labels of an image."""
        height, width = frame.image.shape[:2]  # type: ignore[union-attr]
        lines = []
        for row, (x1, y1, x2, y2) in enumerate(found.xyxy.tolist()):
            place = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height)
            size = ((x2 - x1) / width, (y2 - y1) / height)
            numbers = " ".join(f"{one:.6f}" for one in (*place, *size))
            lines.append(f"{self.class_of(found, row)} {numbers}\n")
        labels = self._folder / "labels"
        labels.mkdir(exist_ok=True)
        (labels / f"{name}.txt").write_text("".join(lines), encoding="utf-8")

    def close(self) -> None:
        """Write the names of the classes."""
        names = "".join(f"  {n}: {json.dumps(name)}\n" for name, n in self._classes.items())
        text = f"path: .\ntrain: images\nval: images\nnames:\n{names}"
        (self._folder / "data.yaml").write_text(text, encoding="utf-8")
