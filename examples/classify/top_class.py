"""The one backend this example adds: probabilities in, name of the most probable class out."""

from __future__ import annotations

from pydantic import Field

import headrace


@headrace.register("TopClass")
class TopClass(headrace.Backend):
    """Name the most probable class.

    Reads: ``data``: ``float32 [C]``, the probabilities of the C classes.
    Writes: ``result``: ``{"class": str, "probability": float}``.
    Batch: any number of items, each by itself.
    Raises: InputError for an item of another shape; the others go on.
    Source: own
    """

    class Options(headrace.Options):
        """What the classes are called."""

        classes: headrace.FilePath = Field(description="UTF-8 text file, one name per line")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Read the names."""
        self.names = headrace.plugins.read_lines(options.classes)

    def forward(self, batch: list[headrace.keys.Request]) -> list[Exception | None]:
        """Name each item's class."""
        return [self._read(request) for request in batch]

    def _read(self, request: headrace.keys.Request) -> Exception | None:
        probabilities, wanted = request["data"], [len(self.names)]
        shape = list(getattr(probabilities, "shape", []))
        if shape != wanted:
            what = "these are no probabilities of the classes in the file"
            expected, got = f"float32 {wanted}", f"{type(probabilities).__name__} {shape}"
            return headrace.errors.InputError(what, key="data", expected=expected, got=got)
        best = int(probabilities.argmax())
        probability = round(float(probabilities[best]), 4)
        request["result"] = {"class": self.names[best], "probability": probability}
        return None
