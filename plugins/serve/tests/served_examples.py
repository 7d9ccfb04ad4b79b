"""The models that Triton's examples ask: sums and differences, text, and one of each datatype.

python served_examples.py PORT GRPC_PORT
"""

from __future__ import annotations

import sys
import threading

import numpy as np

import headrace

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
    "FP64", "BF16", "BYTES",
)  # fmt: skip


@headrace.register("ServeAddSub")
class AddSub(headrace.Backend):
    """Sum and difference of INPUT0 and INPUT1: numbers, or text that holds numbers."""

    reads = ("INPUT0", "INPUT1")
    max = 8

    def forward(self, batch):
        for request in batch:
            first, second = request["INPUT0"], request["INPUT1"]
            if first.dtype == object:
                first, second = (one.astype("S").astype(int) for one in (first, second))
                texts = [np.vectorize(lambda n: str(n).encode(), otypes=[object])(found)
                         for found in (first + second, first - second)]  # fmt: skip
                request["result"] = {"OUTPUT0": texts[0], "OUTPUT1": texts[1]}
            else:
                request["result"] = {"OUTPUT0": first + second, "OUTPUT1": first - second}


@headrace.register("ServeRepeat")
class Repeat(headrace.Backend):
    """Gives each number of IN as a response of its own, after as many milliseconds as DELAY says."""

    reads = ("IN", "DELAY")

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        (request,) = batch
        pause = threading.Event()
        for place, (number, delay) in enumerate(zip(request["IN"], request["DELAY"], strict=True)):
            if self.context.request.unwanted(self.context.request.keep(request)):
                break
            pause.wait(delay / 1e3)
            part = {"OUT": np.array([number]), "IDX": np.array([place], np.uint32)}
            self.context.request.emit(self.context.request.keep(request), part)
        request["result"] = None


def ports(names, datatype, shape, **more):
    return {name: {"datatype": datatype, "shape": shape, **more} for name in names}


def models():
    """Return the models to serve."""
    found = {
        "simple": {
            "config": {"backend": "ServeAddSub", "max": 8},
            "inputs": ports(("INPUT0", "INPUT1"), "INT32", [-1, 16], batched=True),
            "outputs": ports(("OUTPUT0", "OUTPUT1"), "INT32", [-1, 16]),
        },
        "simple_string": {
            "config": {"backend": "ServeAddSub"},
            "inputs": ports(("INPUT0", "INPUT1"), "BYTES", [-1, 16], each=False),
            "outputs": ports(("OUTPUT0", "OUTPUT1"), "BYTES", [-1, 16]),
        },
        "simple_identity": {
            "config": {"backend": "Identity"},
            "inputs": ports(("INPUT0",), "BYTES", [-1, -1], each=False),
            "outputs": ports(("OUTPUT0",), "BYTES", [-1, -1]),
        },
    }
    found["repeat_int32"] = {
        "config": {"backend": "ServeRepeat"},
        "inputs": {
            **ports(("IN",), "INT32", [-1]),
            **ports(("DELAY",), "UINT32", [-1]),
            **ports(("WAIT",), "UINT32", [1]),
        },
        "outputs": {**ports(("OUT",), "INT32", [1]), **ports(("IDX",), "UINT32", [1])},
        "decoupled": True,
    }
    for datatype in DATATYPES:
        found[f"same_{datatype.lower()}"] = {
            "config": {"backend": "Identity"},
            "inputs": ports("x", datatype, [-1], each=False),
            "outputs": ports("y", datatype, [-1]),
        }
    return found


if __name__ == "__main__":
    from headrace_serve import Server

    with Server(models(), port=int(sys.argv[1]), grpc_port=int(sys.argv[2])) as server:
        sys.stdout.write(f"{server.port} {server.grpc_port}\n")
        sys.stdout.flush()
        threading.Event().wait()
