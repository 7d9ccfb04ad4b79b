"""Ways to run an expression on several processors, each written in a few characters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.load import first_cores, on_cores, usable_cpus

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["WAYS", "Way"]

WAYS = "[p]INSTANCES[xMAX][@CPUS[s]]"
"""How a way is written."""

_TEXT = re.compile(r"(p?)(auto|\d+)(?:x(\d+))?(?:@(\d+)(s?))?")


@dataclass(frozen=True)
class Way:
    """One way, written as ``[p]INSTANCES[xMAX][@CPUS[s]]``: ``40``, ``autox8``, ``p16x8``, ``p16x8@4``.

    Attributes:
        text: How it was written.
        instances: Instances of the node, with ``auto`` those of one thread each.
        auto: Whether the node has as many as the machine carries.
        most: Requests that one instance takes at a time (``xMAX``).
        processes: Whether each instance is a process of its own (``p``).
        front_cpus: How many processors the threads of this process use meanwhile; None for all (``@CPUS``).
        separate: Whether the processes use the other processors alone (``s``).
    """

    text: str
    instances: int
    most: int = 1
    processes: bool = False
    front_cpus: int | None = None
    separate: bool = False
    auto: bool = False

    @classmethod
    def read(cls, text: str) -> Way:
        """Read how it is written.

        Raises:
            ValueError: It is written otherwise.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not {WAYS}")
        process, instances, most, cpus, separate = found.groups()
        front = int(cpus) if cpus else None
        auto = instances == "auto"
        number = usable_cpus() if auto else int(instances)
        return cls(text, number, int(most or 1), bool(process), front, bool(separate), auto)

    @classmethod
    def usual(cls) -> Way:
        """Return an instance per processor, in threads."""
        return cls.read(str(usable_cpus()))

    def node(self, expression: str) -> dict[str, Any]:
        """Return the keys of a node that runs an expression in this way; its pipeline is called under `front`."""
        options = f"(cpus={self.front_cpus}-{usable_cpus() - 1})" if self.separate else ""
        backend = f"Process{options}[{expression}]" if self.processes else expression
        number = "auto" if self.auto else self.instances
        return {"backend": backend, "instance_num": number, "max": self.most}

    def front(self) -> AbstractContextManager[None]:
        """Keep all threads of this process to the processors of the front, if it has some of its own."""
        return on_cores(first_cores(self.front_cpus), all_threads=True)
