"""The words that put others together: IoC, DI (also Aspect) and With."""

from __future__ import annotations

from headrace.words._wiring import Wiring

__all__ = ["DI", "Aspect", "IoC", "With"]


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


Aspect = DI
