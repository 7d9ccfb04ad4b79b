"""Process: a backend in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from headrace import Options as _Options
from headrace_process.apart import Apart
from headrace_process.local import ChildProcess
from headrace_process.places import Restarts
from headrace_process.spawning import read_cpus

if TYPE_CHECKING:
    from headrace import InitContext

__all__ = ["Process"]


class Process(Apart):
    """Let X live in a process of its own: ``Process[X]``.

    X has an interpreter, an interpreter lock and a memory of its own. Use it for Python code that computes and holds
    the lock, for a library that several instances cannot share in one process, and for code that may crash or hang.
    ``init``, every ``forward`` and ``close`` of X run in the main thread of its process. The thread of the batch sends
    it and waits for the answer. The processes of all instances of a node start at the same time.

    X gets copies of the keys it reads, and its outputs come back. Large arrays and ``bytes`` travel through shared
    memory. A value that X changes in place, without writing it to a key, changes in its copy alone. X cannot name
    queues, nodes and registered instances of the pipeline: they are not in its process. The classes and functions of X
    must be importable, from an installed module or from a file imported by the configuration. Log records and warnings
    of X arrive in your process. Its loggers have the levels of yours at the start of the process. From Python 3.11 on, a
    note of an error shows its traceback.

    Batches and answers are pickles. They travel through two pipes, a pair of sockets and a file in memory without a
    name. Only the two processes have these open: there is no listening socket, and no program started by either inherits
    them. X runs with the rights of your process, so ``Process`` is no sandbox.

    SIGTERM, SIGINT and SIGHUP do nothing in the process of X unless X handles them. They often reach all processes of a
    service, and your process decides about them. It ends the process of X. If your process dies, X ends too.

    A deadline frees its caller. With ``Process`` outermost in the node, you have the request back at once, since X works
    on a copy: ``abandoned`` of the error is false.

    When the process dies, its batch fails with InstanceLostError. If all backends in X say ``rerun``, each item of the
    batch runs once more instead, alone, in the process of an idle instance or in the next process. The process is
    started again: at once, and after each further death after twice the pause before, at most 30 s, until it has lived for a
    minute. Other instances answer meanwhile, or requests wait. ``stats()["processes"]`` counts the deaths.

    The process uses the processors of its starting thread, or those in ``cpus``. So your program may keep to a
    few of them (``taskset -c 0-3 python service.py``) and leave the others to the processes.

    Reads:
        The inputs of X.
    Writes:
        The outputs of X.
    Batch:
        The range of X.

    Raises:
        The errors of X. InputError when an input of X cannot be copied. ContractError when an output of X cannot be
        copied. InstanceLostError when the process has died.
    Source:
        own
    Example:
        ``{"data": "fish &amp; chips"}`` gives ``"FISH & CHIPS"``::

            backend = "S[Process[Call(html:unescape)],Upper]"
    """

    class Options(_Options):
        """Options of Process.

        Attributes:
            restart_limit: After more deaths of an instance within a minute the liveness of headrace serve fails, so
                that its supervisor starts the server anew; none: never. The process is started again in any case.
            kill_after_ms: Kill the process when a batch of its instance runs for so long (ms) after the last deadline
                of its requests; none: never. A batch with a request without deadline is not killed, and inside another
                Process no deadlines are known.
            cpus: The processors that the process may use, as taskset writes them (4-15, or 0,2); none: those of the
                thread that starts it.
        """

        restart_limit: int | None = Field(None, ge=0)
        kill_after_ms: float | None = Field(None, ge=0)
        cpus: str | int | None = None

        @field_validator("cpus")
        @classmethod
        def _judge_cpus(cls, cpus: str | int | None) -> str | int | None:
            if cpus is not None:
                read_cpus(str(cpus))
            return cpus

    def init(self, options: Options, context: InitContext) -> None:
        """Start the process, build X there, and take over its range.

        Raises:
            SetupError: X could not be built, or the process ended.
        """
        self.restart_limit, self.cpus = options.restart_limit, options.cpus
        if options.kill_after_ms is not None:
            self.kill_after_s = options.kill_after_ms / 1000
        super().init(options, context)

    def place_of(self, index: int) -> ChildProcess:
        """Return a new process of this machine."""
        return ChildProcess()

    def restarts(self) -> Restarts:
        """Return after which pauses a process that has died is started again."""
        return Restarts(self.restart_limit)
