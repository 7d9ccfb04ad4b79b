"""Words that say how an expression is put together; the planner gives them their meaning.

They are gone once the pipeline is built: a name that stands for an instance is that instance.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from headrace._backend import Backend
from headrace._options import Options as _Options

__all__ = [
    "DI",
    "Forward",
    "InstanceFromParam",
    "InstancesRegister",
    "IoC",
    "List",
    "Proxy",
    "Reflect",
    "Register",
    "Wiring",
    "With",
]


class Wiring(Backend):
    """Base of the words that wire others together.

    Attributes:
        word: How the planner treats it.
        words: How many of its children are words, not backends.
    """

    word: ClassVar[
        Literal[
            "ioc",
            "di",
            "with",
            "instance",
            "param",
            "reflect",
            "register",
            "instances",
            "list",
            "repost",
        ]
    ]
    words: ClassVar[int] = 0


class IoC(Wiring):
    """Build the first phase in order, then the front, in which their names mean those instances.

    ``IoC[A,B;S[A,B,A]]`` holds one A and one B per copy. An element of the first phase sees the
    earlier ones. The names are seen inside this ``IoC`` only.

    Reads:
        What the front reads.
    Writes:
        What the front writes.
    Batch:
        The range of the front.

    Raises:
        What the front raises.
    Source:
        own
    """

    word = "ioc"
    takes = (2, None)
    phases = 2


class DI(Wiring):
    """Let each element depend on the next: ``DI[a,b,c]`` is ``a[b[c]]``.

    Each may be the name of an instance. All but the last take what follows as their only child.

    Reads:
        What the first reads.
    Writes:
        What the first writes.
    Batch:
        The range of the first.

    Raises:
        What the first raises.
    Source:
        own
    """

    word = "di"
    takes = (2, None)


class With(Wiring):
    """Put W around X: ``With[W,X]`` is ``W[X]``.

    Reads:
        What W and X read.
    Writes:
        What W and X write.
    Batch:
        The range of W.

    Raises:
        What W and X raise.
    Source:
        own
    """

    word = "with"
    takes = 2


class Proxy(Wiring):
    """Stand for a named instance: ``Proxy[x.0]`` is the first instance of node ``x``.

    An instance that several threads can reach this way is called by one at a time.

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

    word = "instance"
    takes = 1
    words = 1


class Forward(Wiring):
    """Call a registered instance; ``Forward[node.x]`` hands the requests to the node ``x``.

    Each item is a request of its own there, with its own outcome; the calling thread waits, and
    runs batches of that node meanwhile where it may.

    Reads:
        What the instance reads.
    Writes:
        What the instance writes.
    Batch:
        1 or more for a node, else the range of the instance.

    Raises:
        What the instance raises.
    Source:
        own
    """

    word = "instance"
    takes = 1
    words = 1


class InstanceFromParam(Wiring):
    """Use the instance whose name stands in a parameter: ``InstanceFromParam[key]``.

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

    word = "param"
    takes = 1
    words = 1


class Reflect(Wiring):
    """Build the expression that stands in a parameter: ``Reflect[key,Default]``.

    Without the parameter the default is built; without a default that is an error.

    Reads:
        What the expression reads.
    Writes:
        What the expression writes.
    Batch:
        The range of the expression.

    Raises:
        What the expression raises.
    Source:
        own
    """

    word = "reflect"
    takes = (1, 2)
    words = 1


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
