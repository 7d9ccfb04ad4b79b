"""`Crops`, `Classes` and `Keys`: what a second network says about each detection of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, FiniteFloat

import headrace
from headrace.errors import InputError
from headrace_vision.models._box_options import Activation, Labelled
from headrace_vision.models._each import Each, need

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["Classes", "Crops", "Keys", "Part", "check_part", "columns_of", "cut"]


def check_part(part: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Refuse a part of a box that has no pixels.

    Raises:
        ValueError: It has none.
    """
    if not (part[0] < part[2] and part[1] < part[3]):
        raise ValueError("x1 is below x2, and y1 below y2")
    return part


Part = Annotated[
    tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat], AfterValidator(check_part)
]
"""A part of a box: x1, y1, x2, y2 in parts of its width and height."""


def cut(
    image: NDArray[np.uint8], boxes: NDArray[Any], part: tuple[float, float, float, float]
) -> list[NDArray[np.uint8]]:
    """Return a copy of a part of each box, of a pixel at least, cut off at the border of the image.

    Args:
        image: ``uint8 [H, W, 3]``.
        boxes: ``[N, 4]``: x1, y1, x2, y2 in pixels.
        part: The same in parts of a box.
    """
    import numpy as np

    size = np.array([image.shape[1], image.shape[0]])
    corner = boxes[:, :2].astype(np.float64)
    sides = boxes[:, 2:] - corner
    begin = np.floor(corner + sides * part[:2] + 0.5).clip(0, size - 1).astype(int)
    end = np.floor(corner + sides * part[2:] + 0.5).clip(begin + 1, size).astype(int)
    places = zip(begin.tolist(), end.tolist(), strict=True)
    return [image[y1:y2, x1:x2].copy() for (x1, y1), (x2, y2) in places]


class Crops(Each):
    """Cut each box out of the image: a list, of which ``each`` makes requests.

    Reads:
        data: ``supervision.Detections``.
        image: The source image, ``uint8 [H, W, 3]``.

    Writes:
        result: A list with a ``uint8 [h, w, 3]`` for each detection, in their order, cut off at the border of the image. It is a copy,
            of a pixel at least.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` or ``image`` is missing or something else.

    Source:
        own
    """

    class Options(headrace.Options):
        """What is cut out.

        Attributes:
            part: x1, y1, x2, y2 in parts of the box: [0, 0, 1, 0.5] is its upper half, [-0.1, -0.1, 1.1, 1.1] goes
                beyond it.
            turned: Key of data that says by how many degrees each object is turned clockwise, a multiple of 90, as
                Classes writes it (0, 180): its crop is turned back. None: as it is.
        """

        part: Part = (0, 0, 1, 1)

        turned: str | None = None

        positional = ("part",)

    reads = ("data", "image")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        import numpy as np

        from headrace_vision.models.boxes import as_detections, as_picture

        def work(request: Request) -> None:
            detections = as_detections(need(request, "data", "supervision.Detections"))
            crops = cut(as_picture(request), detections.xyxy, options.part)
            if options.turned is not None and crops:
                turns = zip(crops, _quarters(detections.data, options.turned), strict=True)
                crops = [np.ascontiguousarray(np.rot90(crop, times)) for crop, times in turns]
            request["result"] = crops

        return work


def _quarters(data: Mapping[str, Any], key: str) -> list[int]:
    """Return by how many quarters of a circle each object is turned."""
    expected = f"data[{key!r}] with degrees, each a multiple of 90"
    if key not in data:
        raise InputError("it is unknown how objects are turned", expected=expected, got="nothing")
    try:
        quarters = [float(degrees) / 90 for degrees in data[key]]
    except (TypeError, ValueError) as error:
        raise InputError("these are no degrees", expected=expected, got=str(error)) from error
    if not all(quarter.is_integer() for quarter in quarters):
        raise InputError("a crop is turned by quarters", expected=expected, got=str(data[key]))
    return [int(quarter) for quarter in quarters]


class Keys(Each):
    """Write what was found out about each detection into its ``data``.

    Reads:
        data: ``supervision.Detections``.
        value: A list with a value for each detection, as a node with ``each`` writes it. Texts, numbers and arrays of one shape become
            ``data["value"]``. Of mappings, as ``{"text": ..., "confidence": ...}``, each value becomes ``data["value_text"]``,
            ``data["value_confidence"]``. Of detections, as of ClassDetections, the first one becomes ``data["value"]``, its class, and
            ``data["value_score"]``. The option ``name`` gives another name to the key, and to ``data``.

    Writes:
        result: ``supervision.Detections`` with more ``data``, in their order. The one that came stays as it is.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: A key is missing or something else, there is not one value for each detection, or the values differ in kind.

    Source:
        own
    """

    class Options(headrace.Options):
        """Where the values are, and how they are called.

        Attributes:
            name: Key of the list, and of data in the result.
        """

        name: str = Field("value", min_length=1)

        positional = ("name",)

    reads = ("data", "{name}")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        return self.joined(options.name, columns_of)

    def joined(
        self, name: str, columns: Callable[[str, list[Any]], dict[str, Any]]
    ) -> Callable[[Request], None]:
        """Return what puts columns into the data of detections.

        Args:
            name: Key of the list of values.
            columns: Makes arrays by name of the name and the values, of which there is at least one.
        """
        from dataclasses import replace

        from headrace_vision.models.boxes import as_detections

        def work(request: Request) -> None:
            detections = as_detections(need(request, "data", "supervision.Detections"))
            expected = f"a list of {len(detections)} values, one for each detection"
            values = need(request, name, expected)
            if not isinstance(values, list) or len(values) != len(detections):
                got = f"{len(values)}" if isinstance(values, list) else type(values).__name__
                raise InputError("these are no values", key=name, expected=expected, got=got)
            try:
                more = columns(name, values) if values else {}
            except InputError as error:
                error.key = error.key or name
                raise
            request["result"] = replace(detections, data={**detections.data, **more})

        return work


def columns_of(name: str, values: list[Any]) -> dict[str, Any]:
    """Return an array for each key of mappings, or one of other values, by name of the key in ``data``.

    Args:
        name: How the values are called.
        values: At least one.

    Raises:
        InputError: They differ in kind.
    """
    if all(_is_classified(value) for value in values):
        names = [value.data["class_name"][0] if len(value) else "" for value in values]
        scores = [value.confidence[0] if len(value) else 0.0 for value in values]
        return {name: _column(list(names)), f"{name}_score": _column(list(scores))}
    if not isinstance(values[0], Mapping):
        return {name: _column(values)}
    keys = list(values[0])
    if not all(isinstance(value, Mapping) and set(value) == set(keys) for value in values):
        raise InputError("the values differ", expected=f"each with {', '.join(map(str, keys))}")
    return {f"{name}_{key}": _column([value[key] for value in values]) for key in keys}


def _is_classified(value: Any) -> bool:
    """Return whether a value is what ClassDetections gives."""
    if type(value).__name__ != "Detections":
        return False
    return not len(value) or ("class_name" in value.data and value.confidence is not None)


def _column(values: list[Any]) -> Any:
    import numpy as np

    try:
        column = np.array(values)
    except ValueError as error:  # arrays of several shapes
        raise InputError("the values differ", expected="arrays of one shape") from error
    is_text = all(isinstance(value, str) for value in values)
    if column.dtype.kind not in "bfiu" and not is_text:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise InputError("the values differ", expected="texts, numbers or arrays", got=kinds)
    return column


class Classes(Keys):
    """Write the best class of a classifier, and its score, into the ``data`` of each detection.

    Reads:
        data: ``supervision.Detections``.
        kind: A list with the output of the classifier for each detection, ``[C]`` or ``[1, C]``. The option ``name`` gives another
            name to the key, and to ``data``.

    Writes:
        result: ``supervision.Detections`` with the names of classes in ``data["kind"]``, and the scores in ``data["kind_score"]``. The
            one that came stays as it is.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: A key is missing or something else, or there is not one output for each detection.

    Source:
        own
    """

    class Options(Keys.Options, Labelled):
        """Where the outputs are, and what they mean.

        Attributes:
            name: Key of the list, and of data in the result.
        """

        name: str = Field("kind", min_length=1)
        activation: Activation = "softmax"

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Read the labels, and return what works on one request."""
        import numpy as np

        from headrace_vision.models.boxes import class_scores, labels_of, names_of

        labels = labels_of(options.labels)

        def columns(name: str, outputs: list[Any]) -> dict[str, Any]:
            scores = [class_scores(output, options.activation) for output in outputs]
            best = np.array([row.argmax() for row in scores])
            score = np.array([row.max() for row in scores], np.float32)
            return {name: names_of(best, labels), f"{name}_score": score}

        return self.joined(options.name, columns)
