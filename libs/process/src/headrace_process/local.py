"""A process of this machine as the place of a part: started by this process, and ending with it."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from headrace_process.far import Reports, serve
from headrace_process.pipes import PipeLink
from headrace_process.spawning import end_with_parent, ended_with, memory_file, spawn

if TYPE_CHECKING:
    import subprocess

_CODE = "import sys; sys.path[:] = {path!r}; from headrace_process.local import main; main({files}, {parent})"


class ChildProcess:
    """A child process of this one, with a link of two pipes and a file in memory."""

    process: subprocess.Popen[bytes]
    _killed = False

    def start(self) -> tuple[PipeLink, socket.socket]:
        """Start the process. Return the link, and the socket of what is no answer.

        Raises:
            SetupError: The platform cannot start such a process.
            OSError: There are no descriptors, or there is no memory, for it.
        """
        reports, far_end = socket.socketpair()
        opened: list[int] = []
        try:
            opened.append(memory_file())
            opened += os.pipe()
            opened += os.pipe()
            file, taken, sink, source, answers = opened
            link = PipeLink(source, sink, file, held=(taken, answers))
            files, path = (taken, answers, file, far_end.fileno()), [*map(str, sys.path)]
            self.process = spawn(_CODE.format(path=path, files=files, parent=os.getpid()), files)
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            reports.close()
            raise
        finally:
            far_end.close()
        return link, reports

    def wait(self) -> None:
        """Wait until the process has ended."""
        self.process.wait()

    def kill(self) -> None:
        """End the process at once."""
        self._killed = True
        self.process.kill()

    def how_ended(self) -> tuple[str, str | None]:
        """Say how the process has ended: by a signal, or with an exit status; and what that may mean."""
        how, hint = ended_with(self.process.returncode)
        return how, None if self._killed else hint

    def close(self) -> None:
        """Do nothing: the link and the socket are all that is open."""


def main(files: tuple[int, int, int, int], parent: int) -> None:
    """Serve the process that started this one, until it closes the link.

    Args:
        files: Descriptors: the three of the link, and the socket for all messages that are no answers.
        parent: The process id of the process that started this one.
    """
    for file in files:
        os.set_inheritable(file, False)
    reports = Reports(socket.socket(fileno=files[3]), answers=True)
    end_with_parent(parent, reports.wait_for_end)
    serve(PipeLink(*files[:3]), reports)
