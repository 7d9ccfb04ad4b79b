"""The one thread in which an instance runs its session on a device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

__all__ = ["RunThread"]


class RunThread:
    """Runs a session in one thread, whichever thread asks.

    ONNX Runtime's providers on CUDA keep handles of cuBLAS and cuDNN, and captured graphs, for each thread that runs the
    session. Any thread may run a batch, so without this one each thread would make its own.

    Args:
        session: The session.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._thread: ThreadPoolExecutor | None = None

    def run(self, binding: Any, options: Any) -> None:
        """Run the session on a binding. The caller waits for it, even if Ctrl-C interrupts the wait: the bound memory is in use."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-ort")
        job = self._thread.submit(self._session.run_with_iobinding, binding, options)
        try:
            job.result()
        except BaseException:
            wait([job])
            raise

    def close(self) -> None:
        """End the thread, and drop the session."""
        if self._thread is not None:
            self._thread.shutdown()
        del self._session
