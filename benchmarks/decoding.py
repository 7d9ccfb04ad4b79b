"""Ways to decode pictures before a GPU, as the benchmarks of a pipeline of two nodes compare them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from benchmarks.load import usable_cpus

__all__ = ["Decoding"]

_TEXT = re.compile(r"(p?)(\d+)(?:x(\d+))?(?:@(\d+))?")


@dataclass(frozen=True)
class Decoding:
    """One way to decode, written as ``[p]INSTANCES[xMAX][@CPUS]``: ``40``, ``p16x8``, ``p16x8@4``.

    Attributes:
        text: How it was written.
        instances: Instances of the node that decodes.
        most: Pictures that one instance takes at a time (``xMAX``).
        processes: Whether each instance is a process of its own (``p``).
        front_cpus: How many processors the threads of this process use meanwhile; None for all (``@CPUS``).
    """

    text: str
    instances: int
    most: int = 1
    processes: bool = False
    front_cpus: int | None = None

    @classmethod
    def read(cls, text: str) -> Decoding:
        """Read how it is written.

        Raises:
            ValueError: It is written otherwise.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not [p]INSTANCES[xMAX][@CPUS]")
        process, instances, most, cpus = found.groups()
        return cls(text, int(instances), int(most or 1), bool(process), int(cpus) if cpus else None)

    @classmethod
    def usual(cls) -> Decoding:
        """Give an instance per processor, in threads."""
        return cls.read(str(usable_cpus()))

    def node(self, size: int) -> dict[str, Any]:
        """Give the keys of the node; pictures become ``uint8 [size, size, 3]``."""
        words = f"DecodeMat,ResizeMat({size},{size})"
        if self.most > 1:
            # The words take one picture at a time, so a node of them alone has batches of one. Identity
            # takes any number: with it in front, the node forms batches of up to `max`.
            words = f"Identity,{words}"
        backend = f"Process[S[{words}]]" if self.processes else f"S[{words}]"
        return {"backend": backend, "instance_num": self.instances, "max": self.most}
