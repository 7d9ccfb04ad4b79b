"""Options that several words have: which boxes are kept, how classes are called, how the image was resized."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import headrace

__all__ = ["Activation", "KeptBoxes", "Labelled", "Labels", "Score", "SizedBoxes"]

Score = Annotated[
    float, Field(ge=0, le=1, description="Boxes of a lower score are dropped (0 to 1).")
]
Activation = Annotated[
    Literal["softmax", "sigmoid", "identity"],
    Field(description="How scores come from the logits; identity: they are scores already."),
]
"""How the outputs of a classifier become scores."""

Size = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
"""Height and width, in pixels."""

Labels = list[str] | headrace.FilePath | None
"""Names by class, or the path of a file that `headrace_formats.read_labels` reads."""


class Labelled(headrace.Options):
    """The names of the classes.

    Attributes:
        labels: Names of the classes: a list, or the path of a text file with a name per line, or of a .json file with a
            list or an object.
    """

    labels: Labels = None


class KeptBoxes(Labelled):
    """How many boxes are kept.

    Attributes:
        max_boxes: Most boxes of an image (a number).
    """

    max_boxes: int = Field(default=300, ge=1)


class SizedBoxes(KeptBoxes):
    """How the image was resized.

    Attributes:
        input_size: Height and width of the network's input in pixels, where the image was resized without a letterbox.
    """

    input_size: Size | None = None
