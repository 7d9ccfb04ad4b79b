"""The words that stand for an instance: Proxy, Forward and InstanceFromParam."""

from __future__ import annotations

from headrace.words._wiring import Wiring

__all__ = ["Forward", "InstanceFromParam", "Proxy"]


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
