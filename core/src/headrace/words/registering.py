"""The words of init and node_entrypoint: Register, InstancesRegister and List."""

from __future__ import annotations

from pydantic import Field

from headrace._options import Options as _Options
from headrace.words._wiring import Wiring

__all__ = ["InstancesRegister", "List", "Register"]


class Register(Wiring):
    """Register an instance for the whole pipeline, as ``node.{node_name}`` or a name of its own.

    Belongs in ``init`` or ``node_entrypoint``.

    Reads:
        What the instance reads.
    Writes:
        What the instance writes.
    Batch:
        The range of the instance.

    Raises:
        What the instance raises.
    Source:
        own
    """

    class Options(_Options):
        """Options of Register."""

        positional = ("name",)
        name: str | None = Field(
            None, description="The name to register under; default: node.{node_name}."
        )

    word = "register"
    takes = 1


class InstancesRegister(Wiring):
    """Build ``instance_num`` copies and register them as ``{node_name}.0``, ``{node_name}.1``, ...

    Belongs in ``init`` or ``node_entrypoint``. It cannot be called.

    Reads:
        Nothing.
    Writes:
        Nothing.
    Batch:
        None: it cannot be called.

    Raises:
        ContractError: It was called.
    Source:
        own
    """

    reads = ()
    writes = ()
    word = "instances"
    takes = 1


class List(Wiring):
    """Build several, in order. It cannot be called.

    Reads:
        Nothing.
    Writes:
        Nothing.
    Batch:
        None: it cannot be called.

    Raises:
        ContractError: It was called.
    Source:
        own
    """

    reads = ()
    writes = ()
    word = "list"
    takes = (1, None)
