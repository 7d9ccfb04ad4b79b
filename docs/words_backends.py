"""Small backends on text, for the examples of the reference of words."""

from __future__ import annotations

import headrace


@headrace.register("Upper")
class Upper:
    """``abc`` becomes ``ABC``."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"].upper()


@headrace.register("Reverse")
class Reverse:
    """``abc`` becomes ``cba``."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"][::-1]


@headrace.register("Short")
class Short:
    """A text of up to three characters passes; a longer one gets no result."""

    def forward(self, batch):
        for request in batch:
            if len(request["data"]) <= 3:
                request["result"] = request["data"]


@headrace.register("Quote")
class Quote:
    """Quotes around what its child gives."""

    takes = 1

    def init(self, options, context):
        (self.child,) = context.children

    def forward(self, batch):
        errors = self.child(batch)
        for request in batch:
            if "result" in request:
                request["result"] = f"'{request['result']}'"
        return errors


@headrace.register("Join")
class Join:
    """Joins all texts of the batch with blanks; each request remembers its place."""

    def forward(self, batch):
        joined = " ".join(request["data"] for request in batch)
        for place, request in enumerate(batch):
            request["place"] = place
            request["result"] = joined


@headrace.register("Pick")
class Pick:
    """Picks the word at the place of each request out of what was joined."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"].split(" ")[request["place"]]


@headrace.register("LoadOnnx")
class LoadOnnx(headrace.Backend):
    """Says that it loaded a model with the suffix .onnx."""

    def forward(self, batch):
        for request in batch:
            request["result"] = "onnx"


@headrace.register("LoadTrt")
class LoadTrt(headrace.Backend):
    """Says that it loaded a model with the suffix .trt."""

    def forward(self, batch):
        for request in batch:
            request["result"] = "trt"
