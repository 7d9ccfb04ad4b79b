"""Iterate keeps every rule of the contract, also where requests take several steps, and different numbers of them."""

from __future__ import annotations

import headrace
from headrace.errors import InputError
from headrace_testing import BackendConformance


class Halves(headrace.Backend):
    """Halve a number until it is odd.

    Reads:
        data: An int above 0.
    Writes:
        result: An int above 0.
        odd: True, once the result is odd.
    Batch:
        1 to 8; a bad item fails alone.
    Raises:
        InputError: ``data`` is missing or no int.
    Source:
        own
    """

    writes = ("result", "odd")
    max = 8

    def forward(self, batch):
        outcomes = [None] * len(batch)
        for place, request in enumerate(batch):
            number = request.get("data")
            if type(number) is not int:
                outcomes[place] = InputError(key="data", expected="an int", got=repr(number))
                continue
            request["result"] = number if number % 2 else number // 2
            if request["result"] % 2:
                request["odd"] = True
        return outcomes


headrace.register("Halves", Halves, replace=True)


class StepsConformance(BackendConformance):
    """`Iterate`, with requests of one step to seven."""

    expression = "Iterate(until=odd)[Halves]"

    def make_item(self, k):
        """Return a request that takes a number of steps of its own."""
        return {"data": (2 * k + 1) * 2 ** (k % 8)}
