"""RayActor: a backend in an actor of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

import headrace_process
from headrace import Options as _Options
from headrace.errors import InstanceLostError
from headrace_process.apart import Apart
from headrace_process.parts import elements_of, versions_of
from headrace_process.places import Restarts

if TYPE_CHECKING:
    from typing_extensions import Self

    from headrace import InitContext
    from headrace.isolation import ChildConfig
    from headrace_process.parts import Part
    from headrace_ray.placing import ActorPlace

__all__ = ["RayActor"]

_LONGEST_PAUSE_S = 10.0
_LEAST_ACCELERATOR = 0.001
"""What an actor asks of the resource by which Ray names the accelerators of a node."""


class RayActor(Apart):
    """Let X live in an actor of a Ray cluster: ``RayActor(num_gpus=1)[X]``.

    Ray places, starts and ends the actors, one per instance of the node. Batches go through a connection of their own
    and never through Ray. The cluster is the one your program is connected to, else ``address`` or ``RAY_ADDRESS``.
    Headrace starts none. The machines of the cluster need the same versions of Python, Ray, core and all plugins in X.
    They need the files of the configuration at the same paths, unless ``files="ship"`` sends them there.

    X gets its inputs as copies, and its outputs come back. Each request has its own outcome. Log records and warnings
    arrive. The resources of all instances are reserved together, all or nothing. A dead instance is started again with
    its own resources, or, when its machine has gone, where Ray finds room.

    An actor without a sign of life for three heartbeats is away, long before Ray notices. Its batch fails with
    InstanceLostError. If all backends in X say ``rerun``, each item runs once more instead, alone, on another instance,
    at most ``retries`` times. The batch fails too if no actor is alive and a new one finds no room within about ten
    seconds.

    **Everybody with access to the cluster, or to its network traffic, can run code on it.** Ray carries
    the secret of each connection. Neither is encrypted unless Ray uses TLS (``RAY_USE_TLS``). Its certificates serve both.

    Probes see nothing of the backends in X, since its clock is another one.

    Reads:
        The inputs of X.
    Writes:
        The outputs of X.
    Batch:
        The range of X.

    Raises:
        The errors of X. InputError when an input of X cannot be copied. ContractError when an output of X cannot be
        copied. InstanceLostError when the actor has died, or its node is away.
    Source:
        own
    Example:
        Three actors on three nodes::

            [decode]
            backend = "RayActor(num_cpus=2)[S[DecodeMat,ResizeMat(64,64)]]"
            address = "head:6379"
            placement = "strict_spread"
            instance_num = 3
    """

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return 1: for how many the cluster has room is not known here."""
        return 1

    class Options(_Options):
        """Options of RayActor.

        Attributes:
            address: The head of the cluster, HOST:PORT; none: RAY_ADDRESS. A program that is connected to Ray needs
                neither.
            num_cpus: Processors of each instance (no unit).
            num_gpus: GPUs of each instance, or a part of one (no unit).
            resources: Other resources of each instance, by name, as the nodes offer them.
            accelerator_type: The kind of accelerator that a node must have, as Ray names it: A100.
            placement: On few nodes, on many, or each instance on a node of its own.
            placement_timeout_s: How long setup waits for room for all instances (seconds).
            retries: How many times an item runs once more when its actor has died, where X says rerun.
            restart_limit: After more ends of an instance within a minute the liveness of headrace serve fails; none:
                never. X is started again in any case.
            heartbeat_ms: An actor that says nothing three times is away (ms).
            kill_after_ms: Kill the process when a batch of its instance runs for so long (ms) after the last deadline
                of its requests; none: never.
            files: How the actors get the files that the configuration imports and that options of X name: they read
                them at the same path there (path), or the files are sent to that path (ship).
        """

        address: str | None = None
        num_cpus: float = Field(1, ge=0)
        num_gpus: float = Field(0, ge=0)
        resources: dict[str, float] = Field({})
        accelerator_type: str | None = None
        placement: Literal["pack", "spread", "strict_spread"] = "pack"
        placement_timeout_s: float = Field(60, gt=0)
        retries: int = Field(1, ge=0)
        restart_limit: int | None = Field(None, ge=0)
        heartbeat_ms: float = Field(1000, ge=10, le=60000)
        kill_after_ms: float | None = Field(None, ge=0)

        files: Literal["path", "ship"] = "path"

        @model_validator(mode="after")
        def _judge_resources(self) -> Self:
            wrong = [name for name, amount in self.resources.items() if amount <= 0]
            if wrong:
                raise ValueError(f"resources: {wrong[0]} must be more than 0")
            for name, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
                if name in self.resources:
                    raise ValueError(f"resources: {name} is the option {option}")
            if not (self.num_cpus or self.num_gpus or self.resources or self.accelerator_type):
                problem = "an instance asks for nothing: num_cpus, num_gpus or a resource must be more than 0"
                raise ValueError(problem)
            return self

    same_clock = False

    def init(self, options: Options, context: InitContext) -> None:
        """Reserve the resources of all instances, let Ray start the actor, build X there, and take over its range.

        Raises:
            SetupError: There is no cluster or no room, versions differ, or X could not be built.
        """
        from headrace_ray import __version__
        from headrace_ray.cluster import connect
        from headrace_ray.placing import Group, Wanted

        inside: Any = context.children[0]
        self.options, self.retries = options, options.retries
        if options.kill_after_ms is not None:
            self.kill_after_s = options.kill_after_ms / 1000
        connect(options.address)
        resources = dict(options.resources)
        if options.accelerator_type is not None:
            resources[f"accelerator_type:{options.accelerator_type}"] = _LEAST_ACCELERATOR
        resource = (options.num_cpus, options.num_gpus, resources, options.placement)
        needs = Wanted(*resource, options.placement_timeout_s)
        own = {"headrace-process": headrace_process.__version__, "headrace-ray": __version__}
        self._versions = {**versions_of(elements_of(inside)), **own}
        self._started: set[int] = set()
        self.instance_index = index = context.instance_index
        self._group = self.siblings(context, lambda: Group(needs))
        self._group.take_seats(range(inside.instances) or (index,), context.cancelled)
        super().init(options, context)

    @property
    def unplaced(self) -> InstanceLostError | None:
        """The error of an item that does not wait, since there is no room for the actor of this instance now."""
        if self.supervisor.lives or not self._group.seats[self.instance_index].unplaced:
            return super().unplaced
        hint = "Add nodes, or end what uses the resources that its actor needs."
        return InstanceLostError("its process has died, with no room to start another", hint=hint)

    def sent(self, inside: ChildConfig) -> Part:
        """Return what is sent, with all files that X names where they are to be sent."""
        part = super().sent(inside)
        if self.options.files == "path":
            return part
        from headrace_ray.files import Shipped, files_among

        options = [dict(element.options or ()) for element in elements_of(inside)]
        return Shipped(part, files_among([inside.config.files, options]))

    def place_of(self, index: int) -> ActorPlace:
        """Return the actor of the next start."""
        from headrace_ray.placing import ActorPlace

        first = index not in self._started
        self._started.add(index)
        heartbeat_s = self.options.heartbeat_ms / 1000
        return ActorPlace(self._group, index, self._versions, heartbeat_s, first=first)

    def restarts(self) -> Restarts:
        """Return after which pauses X is started again."""
        return Restarts(self.options.restart_limit, _LONGEST_PAUSE_S)

    def describe(self) -> dict[str, Any]:
        """Return the process id, the node and the address, and as the child the tree of what was built there."""
        child: Any = self.supervisor.current or self._child
        return {**super().describe(), **child.place.about()}

    def close(self) -> None:
        """Close X, end the actor, and give its resources back."""
        super().close()
        self._group.give_seat_back(self.instance_index)
