"""A cluster on a virtual clock: machines that fail and come back, and the instances that live there.

`RayActor` says what each instance asks for. A file says what machines there are, and how often they fail.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

import headrace
from headrace.errors import InputError, SetupError
from headrace.plugins import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from headrace.plan import Element, Node

__all__ = ["Asked", "ClusterFile", "Machine", "SimulatedCluster", "cluster_of", "read_cluster"]

_CONTAINER = ("RayActor", "headrace-ray")
_HEARTBEATS = 3


class MachineKind(headrace.Options):
    """One table ``[[machines]]`` of the file."""

    count: int = Field(ge=1, description="How many machines of this kind.")
    num_cpus: float = Field(0, ge=0, description="Processors of each (no unit).")
    num_gpus: float = Field(0, ge=0, description="GPUs of each (no unit).")
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Other resources of each, by name."
    )
    failures_per_hour: float = Field(
        0, ge=0, description="How often each fails while it is up (per hour)."
    )
    repair_s: float | None = Field(
        None, ge=0, description="When a machine that has failed is back (seconds); none: never."
    )


class NodeOnCluster(headrace.Options):
    """One table ``[nodes.NAME]`` of the file, for a node of the configuration."""

    build_s: float = Field(0, ge=0, description="How long an instance takes to build (seconds).")
    rerun: bool = Field(False, description="Whether all backends in the actor say rerun.")


class ClusterFile(headrace.Options):
    """What the file of ``--cluster`` holds."""

    machines: list[MachineKind] = Field(min_length=1, description="The machines, a table a kind.")
    nodes: dict[str, NodeOnCluster] = Field({}, description="The nodes of the configuration.")


def read_cluster(path: str | os.PathLike[str]) -> ClusterFile:
    """Read the file of a cluster.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    try:
        found = tomllib.loads(read_text(path))
        return TypeAdapter(ClusterFile).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}") from error


@dataclass(frozen=True)
class Asked:
    """What the instances of a node ask for.

    Attributes:
        resources: What each takes of its machine, by name.
        placement: ``pack``, ``spread`` or ``strict_spread``.
        away_s: How long it takes to see that a machine has gone (seconds).
        build_s: How long an instance takes to build (seconds).
        retries: How many times an item runs once more. 0 where X does not say ``rerun``.
    """

    resources: Mapping[str, float]
    placement: str
    away_s: float
    build_s: float
    retries: int

    @classmethod
    def of(cls, node: Node, stated: NodeOnCluster) -> Asked | None:
        """Return what the instances of a node ask for; None for a node without `RayActor`."""
        found = [one for one in node.tree.walk() if _is_actor(one)]
        if not found:
            return None
        resources: dict[str, float] = {}
        for one in found:
            options = {name: value.value for name, value in one.options.items()}
            every = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
            if options["accelerator_type"]:
                every[f"accelerator_type:{options['accelerator_type']}"] = 0.001
            for name, amount in every.items():
                resources[name] = resources.get(name, 0.0) + amount
        needed = {name: amount for name, amount in resources.items() if amount}
        away_s = _HEARTBEATS * options["heartbeat_ms"] / 1000
        retries = options["retries"] if stated.rerun else 0
        return cls(needed, options["placement"], away_s, stated.build_s, retries)


def _is_actor(one: Element) -> bool:
    return (one.name.rpartition(":")[2], one.distribution) == _CONTAINER


@dataclass
class Machine:
    """A machine.

    Attributes:
        kind: What the file says of it.
        free: What is left of its resources.
        up: Whether it is there.
        held: The instances on it, as node and index.
    """

    kind: MachineKind
    free: dict[str, float]
    up: bool = True
    held: set[tuple[str, int]] = field(default_factory=set)


class SimulatedCluster:
    """The machines, and which instances are where.

    Args:
        file: What machines there are.
        asked: For each node that lives there, what its instances ask for.
        instances: For each of these, how many instances it has.

    Attributes:
        machines: The machines.
        lost: How many machines have failed so far.
        rerun: How many items ran once more.

    Raises:
        SetupError: There is no room for all instances.
    """

    def __init__(
        self, file: ClusterFile, asked: Mapping[str, Asked], instances: Mapping[str, int]
    ) -> None:
        self.asked = asked
        self.rerun = 0
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._homeless: deque[tuple[str, int]] = deque()
        self._builds: Counter[tuple[str, int]] = Counter()
        self.machines: list[Machine] = []
        for kind in file.machines:
            every = {"CPU": kind.num_cpus, "GPU": kind.num_gpus, **kind.resources}
            self.machines += [Machine(kind, dict(every)) for _ in range(kind.count)]
        self.lost = 0
        for name, count in instances.items():
            for index in range(count):
                if not self.place(name, index):
                    raise self._no_room(name, count)

    def place(self, name: str, index: int) -> bool:
        """Give an instance a machine, as its placement says; False where none has room."""
        asked = self.asked[name]

        def held(machine: Machine) -> int:
            return sum(node == name for node, _ in machine.held)

        fits = [
            one
            for one in self.machines
            if one.up
            and all(
                one.free.get(what, 0.0) >= much - 1e-9 for what, much in asked.resources.items()
            )
            and not (asked.placement == "strict_spread" and held(one))
        ]
        if not fits:
            return False
        best = max if asked.placement == "pack" else min
        chosen = best(fits, key=held)
        for what, much in asked.resources.items():
            chosen.free[what] -= much
        chosen.held.add((name, index))
        return True

    def fail(self, machine: Machine) -> list[tuple[str, int]]:
        """Let a machine fail; return the instances that were on it, which have no machine any more."""
        self.lost += 1
        machine.up = False
        gone = sorted(machine.held)
        machine.held.clear()
        return gone

    def repair(self, machine: Machine) -> None:
        """Let a machine be back, with all of its resources."""
        kind = machine.kind
        machine.free = {"CPU": kind.num_cpus, "GPU": kind.num_gpus, **kind.resources}
        machine.up = True

    @staticmethod
    def until_failure_s(machine: Machine, draw: Callable[[], float]) -> float | None:
        """Draw how long a machine stays up (seconds), from an exponential distribution; None: for ever."""
        rate = machine.kind.failures_per_hour / 3600
        return -math.log(1 - draw()) / rate if rate else None

    # What happens to machines, in a thread of its own.

    def run(
        self,
        instances: Mapping[tuple[str, int], Any],
        draw: Callable[[], float],
        now: Callable[[], float],
        let_pass: Callable[[float], None],
    ) -> None:
        """Let machines fail and come back, and instances with them.

        Args:
            instances: The instances by node and index: each has ``go_away()`` and ``come_back()``.
            draw: Gives random numbers from 0 to below 1.
            now: Gives the virtual time in seconds.
            let_pass: Lets so many seconds of it pass.
        """
        self._draw, self._instances = draw, instances
        for machine in self.machines:
            self._will_fail(machine, 0.0)
        while self._due:
            at, _, happens = heapq.heappop(self._due)
            if (left_s := at - now()) > 0:
                let_pass(left_s)
            happens(at)

    def _at(self, at: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), happens))

    def _will_fail(self, machine: Machine, now: float) -> None:
        after_s = self.until_failure_s(machine, self._draw)
        if after_s is not None:
            self._at(now + after_s, partial(self._fails, machine))

    def _fails(self, machine: Machine, now: float) -> None:
        for name, index in self.fail(machine):
            self._builds[name, index] += 1
            self._instances[name, index].go_away()
            self._at(now + self.asked[name].away_s, partial(self._seek_machine, name, index))
        if machine.kind.repair_s is not None:
            self._at(now + machine.kind.repair_s, partial(self._is_back, machine))

    def _is_back(self, machine: Machine, now: float) -> None:
        self.repair(machine)
        self._will_fail(machine, now)
        for _ in range(len(self._homeless)):
            self._seek_machine(*self._homeless.popleft(), now)

    def _seek_machine(self, name: str, index: int, now: float) -> None:
        """Build an instance anew where there is room; else it waits for a machine."""
        if not self.place(name, index):
            self._homeless.append((name, index))
            return
        self._builds[name, index] += 1
        built = partial(self._built, name, index, self._builds[name, index])
        self._at(now + self.asked[name].build_s, built)

    def _built(self, name: str, index: int, number: int, _: float) -> None:
        if self._builds[name, index] == number:  # else its machine has gone while it was built
            self._instances[name, index].come_back()

    def figures(self) -> dict[str, int]:
        """Return what the figures of a load say of the machines."""
        return {"machines": len(self.machines), "machines_lost": self.lost, "rerun": self.rerun}

    def _no_room(self, name: str, count: int) -> SetupError:
        asked = self.asked[name]
        there: dict[str, float] = {}
        for one in self.machines:
            kind = one.kind
            for what, much in {
                "CPU": kind.num_cpus,
                "GPU": kind.num_gpus,
                **kind.resources,
            }.items():
                there[what] = there.get(what, 0.0) + much
        each = ", ".join(f"{much:g} {what}" for what, much in asked.resources.items())
        total = ", ".join(f"{there.get(what, 0.0):g} {what}" for what in asked.resources)
        what = f"the simulated cluster has no room: {count} x ({each}), {asked.placement}, of {total} on {len(self.machines)} machines"
        hint = (
            "strict_spread needs a machine for each instance."
            if asked.placement == "strict_spread"
            else None
        )
        return SetupError(what, node=name, hint=hint)


def cluster_of(nodes: Mapping[str, Any], file: ClusterFile) -> SimulatedCluster:
    """Make the cluster of a configuration.

    Args:
        nodes: The nodes of its plan.
        file: What machines there are.

    Raises:
        InputError: The file names a node that there is not.
        SetupError: No node lives on a cluster, or there is no room.
    """
    unknown = sorted(file.nodes.keys() - nodes.keys())
    if unknown:
        raise InputError(f"nodes.{unknown[0]}: the configuration has the nodes {', '.join(nodes)}")
    asked = {}
    for name, node in nodes.items():
        found = Asked.of(node, file.nodes.get(name, NodeOnCluster()))
        if found is not None:
            asked[name] = found
    if not asked:
        what = "no node of the configuration lives on a cluster"
        raise SetupError(what, hint="Put RayActor[...] around what is to live there.")
    return SimulatedCluster(file, asked, {name: nodes[name].instance_num for name in asked})
