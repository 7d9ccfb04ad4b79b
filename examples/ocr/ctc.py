"""The one backend this example adds: probabilities of a text recogniser in, text out."""

from __future__ import annotations

import headrace


@headrace.register("CtcText")
class CtcText(headrace.Backend):
    """Read a line of text out of CTC probabilities: the best class per step, repeats joined.

    Reads: ``data``: ``float32 [T, C]``, a softmax over C = 1 blank, the charset, 1 space.
    Writes: ``result``: ``{"text": str, "confidence": float}``, the mean of the kept steps, 0 to 1.
    Batch: any number of lines, each by itself.
    Raises: InputError for an item of another shape; the others go on.
    Source: Graves et al. 2006, "Connectionist Temporal Classification", section 3.2.
    """

    class Options(headrace.Options):
        """What the classes of the model mean.

        Attributes:
            charset: UTF-8 text file, one character per line
        """

        charset: headrace.FilePath

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Read the charset."""
        lines = headrace.plugins.read_lines(options.charset)
        self.characters = ["", *lines, " "]  # 0 is the blank

    def forward(self, batch: list[headrace.keys.Request]) -> list[Exception | None]:
        """Read each line by itself."""
        return [self._read(request) for request in batch]

    def _read(self, request: headrace.keys.Request) -> Exception | None:
        steps, classes = request["data"], len(self.characters)
        shape = list(getattr(steps, "shape", []))
        if len(shape) != 2 or shape[1] != classes:
            wanted, got = f"float32 [T, {classes}]", f"{type(steps).__name__} {shape}"
            what = "these are no probabilities over this charset"
            return headrace.errors.InputError(what, key="data", expected=wanted, got=got)
        best = steps.argmax(axis=1)
        kept = [t for t, c in enumerate(best) if c and (t == 0 or c != best[t - 1])]
        confidence = float(steps[kept, best[kept]].mean()) if kept else 0.0
        text = "".join(self.characters[best[t]] for t in kept)
        request["result"] = {"text": text, "confidence": round(confidence, 4)}
        return None
