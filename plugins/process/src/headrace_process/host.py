"""Host: a backend in a process of another machine, where `headrace worker` listens."""

from __future__ import annotations

import ssl
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

import headrace
from headrace import Options as _Options
from headrace.errors import SetupError
from headrace.isolation import Restarts
from headrace_workers import hello
from headrace_workers.apart import Apart
from headrace_workers.machine import Machine, Workers, versions_for
from headrace_workers.secret import read_secret

if TYPE_CHECKING:
    from headrace import InitContext

__all__ = ["Host", "Machine", "Workers", "versions_for"]

_CONNECT_S = 10.0
_MOST_FRAME_BYTES = 1 << 20
_LONGEST_PAUSE_S = 10.0


class Host(Apart):
    """Let X live in a process of another machine: ``Host(at=["gpu1:7000"])[X]``.

    There `headrace worker` listens, with the same versions of Python, core and all plugins in X, and the files
    that the configuration imports at the same paths. All that holds for `Process` holds here: what X reads is sent,
    what it wrote comes back, outcomes are those of each request, log records and warnings arrive, and what dies
    is started again. Instance 0 lives at the first address, instance 1 at the second, and so on, around; what
    could not be started at one address, or has died there, is started at the next one.

    A machine that says nothing for three heartbeats is away: its batch fails with InstanceLostError, or runs once
    more elsewhere where all backends in X say ``rerun``, and requests go to other instances, or wait.

    **Who has the secret runs code**, on both machines: batches are pickles. The secret never crosses the wire, and
    both sides prove it before anything is unpickled. Beyond the loopback TLS is needed, or ``insecure``.

    Probes and ``timings`` see nothing of the backends in X: their clock is another one.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; ContractError when a key that
        X wrote cannot be copied; InstanceLostError when the process has died, or its machine is away.
    Source:
        own
    Example:
        A machine that decodes, beside the one of the program::

            [decode]
            backend = "Host[S[DecodeMat,ResizeMat(64,64)]]"
            at = ["cpu1:7000", "cpu2:7000"]
            secret_file = "secret"
            tls_ca = "ca.pem"
            instance_num = 2
    """

    class Options(_Options):
        """Options of Host."""

        at: list[str] = Field(
            min_length=1, description="The addresses of workers, HOST:PORT each, one or more."
        )
        secret_file: headrace.FilePath = Field(
            description="The file with the secret of the workers: 64 hexadecimal digits."
        )
        tls_ca: headrace.FilePath | None = Field(
            None, description="The roots for the workers' certificates, PEM; none: no TLS."
        )
        insecure: bool = Field(
            False, description="Let connections to other machines be without TLS."
        )
        heartbeat_ms: float = Field(
            1000,
            ge=10,
            le=60000,
            description="A machine that says nothing three times is away (ms).",
        )
        restart_limit: int | None = Field(
            None, ge=0, description="How many times a minute X is started again; none: without end."
        )
        kill_after_ms: float | None = Field(
            None,
            ge=0,
            description="Kill the process when a batch of its instance runs for so long (ms) after the last "
            "deadline of its requests; none: never.",
        )

        @field_validator("at")
        @classmethod
        def _judge_addresses(cls, at: list[str]) -> list[str]:
            for one in at:
                hello.split_address(one)
            return at

    same_clock = False

    def init(self, options: Options, context: InitContext) -> None:
        """Connect to a worker, let it build X, and take over its range.

        Raises:
            SetupError: No worker is there, it has another secret or other versions, or X could not be built.
        """
        plan: Any = context.children[0]
        self.options = options
        if options.kill_after_ms is not None:
            self.kill_after_s = options.kill_after_ms / 1000
        tls = None
        if options.tls_ca is not None:
            try:
                tls = ssl.create_default_context(cafile=str(options.tls_ca))
            except (OSError, ssl.SSLError) as error:
                raise SetupError(f"tls_ca: {options.tls_ca} cannot be used: {error}") from error
        secret, versions = read_secret(options.secret_file), versions_for(plan)
        heartbeat_s = options.heartbeat_ms / 1000
        self._workers = Workers(secret, versions, heartbeat_s, tls, insecure=options.insecure)
        self._starts: dict[int, count[int]] = {}
        super().init(options, context)

    def place(self, index: int) -> Machine:
        """Return the machine of the next start: the first time that of the instance, then the next one."""
        turn = next(self._starts.setdefault(index, count(index)))
        return Machine(self._workers, self.options.at[turn % len(self.options.at)])

    def restarts(self) -> Restarts:
        """Return how often X is started again."""
        return Restarts(self.options.restart_limit, _LONGEST_PAUSE_S)
