"""Where the instances of one container are: resources reserved together, and an actor for each start."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from headrace.errors import SetupError
from headrace_process.apart import Siblings
from headrace_ray.cluster import Reservation, reserve, room
from headrace_ray.greeting import SECRET_BYTES
from headrace_ray.holding import Holding
from headrace_ray.machine import Machine

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from headrace_process.places import Link
    from headrace_process.supervisor import Supervisor

__all__ = ["ActorPlace", "Group", "Wanted"]

_LOOK_S = 0.25
_UNPLACED_S = 10.0
"""An actor that runs nowhere after this time (seconds) has no room: no batch waits for it."""

_STARTED_S = 120.0
"""At setup, with resources reserved, an actor has this time to start (seconds): its node may be busy."""


@dataclass(frozen=True)
class Wanted:
    """What each instance asks of the cluster.

    Attributes:
        num_cpus, num_gpus: Processors and GPUs.
        resources: All other resources, by name.
        placement: ``pack``, ``spread`` or ``strict_spread``.
        timeout_s: How long to wait for room at setup (seconds).
    """

    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float]
    placement: str
    timeout_s: float

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one instance, as Ray names them."""
        every = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in every.items() if amount}


@dataclass
class Seat:
    """The resources of one instance.

    Attributes:
        reservation: The reservation that they are part of.
        index: The index of the part.
        unplaced: Whether there is no room for its actor now.
    """

    reservation: Reservation
    index: int
    unplaced: bool = False


class Group(Siblings):
    """The instances of one `RayActor` of a node: reserved together, each with its seat.

    Args:
        wanted: What each of them asks for.
    """

    members: list[Any]

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self.wanted = wanted
        self.seats: dict[int, Seat] = {}
        self._supervisors: dict[int, Supervisor] = {}
        self._left: set[int] = set()
        self._changing = threading.Lock()
        self._reserving = threading.Lock()

    def take_seats(self, indices: Iterable[int], cancelled: Callable[[], bool]) -> None:
        """Reserve resources for those instances that have none: for all of them, or for none.

        Raises:
            SetupError: There is no room.
        """
        with self._reserving:
            new = [index for index in indices if index not in self.seats]
            if not new:
                return
            needs = self.wanted
            apart_from: set[str] = set()
            if needs.placement == "strict_spread":
                before = {id(seat.reservation): seat.reservation for seat in self.seats.values()}
                apart_from.update(*(reservation.nodes() for reservation in before.values()))
            reserved = reserve(
                needs.bundle, len(new), needs.placement, needs.timeout_s, cancelled, apart_from
            )
            self.seats |= {index: Seat(reserved, part) for part, index in enumerate(new)}

    def give_seat_back(self, index: int) -> None:
        """Give the resources of one instance back, unless that has been done."""
        with self._changing:
            if index in self._left or index not in self.seats:
                return
            self._left.add(index)
        self.seats[index].reservation.give_back()

    def supervisor(self, index: int, alike: int, make: Callable[[int], Supervisor]) -> Supervisor:
        """Return the supervisor of one instance. See `Siblings.supervisor`."""

        def noted(sibling: int) -> Supervisor:
            self._supervisors[sibling] = supervisor = make(sibling)
            return supervisor

        return super().supervisor(index, alike, noted)

    def over(self, index: int) -> bool:
        """Tell whether an instance needs no actor any more."""
        return self._supervisors[index].over

    def close(self) -> None:
        """End what was started for instances that have not been built, and give their resources back."""
        super().close()
        for index in self.seats:
            self.give_seat_back(index)


class ActorPlace:
    """One start: an actor of Ray, in which a worker waits for its container.

    Args:
        group: The instances of the container.
        index: Which of them it is for.
        versions: The versions that must be installed there, by distribution.
        heartbeat_s: How often the worker says that it is there (seconds).
        first: Whether it is the first start, which fails where the actor does not start.
    """

    def __init__(
        self,
        group: Group,
        index: int,
        versions: Mapping[str, str],
        heartbeat_s: float,
        *,
        first: bool,
    ) -> None:
        self._group, self._index, self._first = group, index, first
        self._versions, self._heartbeat_s = versions, heartbeat_s
        self.node = ""

    def start(self) -> tuple[Link, socket.socket]:
        """Let Ray start the actor, and connect to it.

        Raises:
            SetupError: Ray cannot start it, it is not reached, or it has other versions.
        """
        if not ray.is_initialized():  # a call of Ray would start a cluster
            problem = "this program is not connected to Ray any more"
            raise SetupError(problem, hint="Close the pipeline before ray.shutdown().")
        needs, seat = self._group.wanted, self._group.seats[self._index]
        actor = ray.remote(Holding).options(
            num_cpus=needs.num_cpus,
            num_gpus=needs.num_gpus,
            resources=dict(needs.resources) or None,
            scheduling_strategy=seat.reservation.strategy(seat.index),
            max_restarts=0,
        )
        secret = secrets.token_bytes(SECRET_BYTES)
        self._actor = actor.remote(secret, dict(self._versions), self._heartbeat_s)
        try:
            host, port, self.node, _ = self._placed(seat)
            self._machine = Machine(host, port, secret, self._heartbeat_s)
            opened = self._machine.start()
        except BaseException:
            self._end_actor()
            raise
        return opened

    def _placed(self, seat: Seat) -> tuple[str, int, str, list[str]]:
        """Wait until the actor runs; return what `Holding.where` does."""
        answer = self._actor.where.remote()
        begun = time.monotonic()
        try:
            while True:
                if ray.wait([answer], timeout=_LOOK_S)[0]:
                    place: tuple[str, int, str, list[str]] = ray.get(answer)
                    self._let_know(seat, unplaced=False)
                    if place[3]:
                        problem = f"node {place[2]} has other versions: {'; '.join(place[3])}"
                        raise SetupError(problem)
                    return place
                if self._group.over(self._index):
                    raise SetupError("it is needed no more")
                late_s = time.monotonic() - begun
                if self._first and late_s > _STARTED_S:
                    problem = f"Ray has started no actor within {late_s:.0f} s, though it has reserved the resources"
                    raise SetupError(problem, hint=room(self._group.wanted.bundle))
                if not self._first and (late_s > _UNPLACED_S or not seat.reservation.exists()):
                    self._let_know(seat, unplaced=True)
        except ray.exceptions.RayError as error:
            text = " ".join(str(error).split())
            hint = "Has its node headrace-ray and all plugins in X, in the same versions as here?"
            raise SetupError(f"Ray cannot start the actor: {text}", hint=hint) from error

    def _let_know(self, seat: Seat, *, unplaced: bool) -> None:
        if seat.unplaced != unplaced:
            seat.unplaced = unplaced
            self._group.look()

    def _end_actor(self) -> None:
        with contextlib.suppress(Exception):  # Ray may have ended it, or be away
            if ray.is_initialized():
                ray.kill(self._actor)

    def wait(self) -> None:
        """Wait until the process of X has ended, or is away; then its actor makes room for the next one."""
        self._machine.wait()
        self._end_actor()

    def kill(self) -> None:
        """End the process of X at once; its worker sees the end of the connection."""
        self._machine.kill()

    def how_ended(self) -> tuple[str, str | None]:
        """Say how the process of X has ended, and on which node."""
        how, hint = self._machine.how_ended()
        return f"{how}, node {self.node}", hint

    def close(self) -> None:
        """Close the connection."""
        self._machine.close()

    def about(self) -> dict[str, Any]:
        """Return where the actor is."""
        return {"node": self.node, "address": self._machine.address}
