"""Processes that are killed while clients send, who count: those of ``Process[X]``, and whole workers.

Here each is killed as soon as another is there in its place, a few times; with ``--stress`` one each second for a minute.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter

import pytest

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share ports on Linux"),
]

CLIENTS = 20
WHERE = """
import os, headrace

@headrace.register("ServeWhereAndWhat")
def where(data):
    return f"{os.getpid()} {data.decode()}"
"""


class Clients:
    """Send without a pause, each over connections of its own, and count what comes of every request.

    Attributes:
        counts: How often requests were answered, refused with 503, or lost with their connection.
        wrong: Answers that are none of these.
        pids: The processes that have answered, in their order.
        lost: The process that last answered on each connection that broke; None: it was new.
    """

    def __init__(self, port):
        self.port = port
        self.counts = Counter()
        self.wrong = []
        self.pids = []
        self.lost = []
        self._changed = threading.Condition()
        self._over = False
        self._threads = [
            threading.Thread(target=self._send, args=(number,)) for number in range(CLIENTS)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        for thread in self._threads:
            thread.join()

    def until(self, condition):
        """Wait for an answer after which it is so; give what the condition gives."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition() or self.wrong, 120)
            assert self.wrong == []
            return condition()

    def _send(self, number):
        connection, pid, count = None, None, 0
        while not self._over:
            count += 1
            wanted = f"{number}-{count}"
            connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, 120)
            try:
                connection.request("POST", "/run/m", wanted.encode())
                answer = connection.getresponse()
                body = json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                connection.close()
                self._note("lost", lost=[pid])
                connection = pid = None
                continue
            if answer.status == 503 and int(answer.getheader("Retry-After")) >= 1:
                self._note("refused")
                continue
            found, _, data = str(body.get("result")).partition(" ")
            right = answer.status == 200 and data == wanted
            pid = int(found) if right else None
            self._note("answered", wrong=[] if right else [(wanted, answer.status, body)], pid=pid)
            if count % 20 == 0:  # a new process gets new connections alone
                connection.close()
                connection = pid = None
        if connection is not None:
            connection.close()

    def _note(self, what, *, lost=(), wrong=(), pid=None):
        with self._changed:
            self.counts[what] += 1
            self.lost += lost
            self.wrong += wrong
            if pid is not None and pid not in self.pids:
                self.pids.append(pid)
            self._changed.notify_all()


@pytest.fixture
def seconds(request):
    """Return for how long a process is killed each second; 0: a few times, whenever all are there."""
    return 60 if request.config.getoption("--stress", default=False) else 0


def kill_in_turn(clients, others, seconds):
    """Kill the process that answered first of those that are alive; give all that were killed.

    Args:
        clients: The clients.
        others: How many more are alive when one is killed.
        seconds: For how long, once a second; 0: three times.
    """
    killed, ends = [], time.monotonic() + seconds
    while len(killed) < 3 if not seconds else time.monotonic() < ends:
        alive = clients.until(
            lambda: (
                (found := [pid for pid in clients.pids if pid not in killed])
                and len(found) > others
                and found
            )
        )
        os.kill(alive[0], signal.SIGKILL)
        killed.append(alive[0])
        if seconds:
            threading.Event().wait(1.0)
    clients.until(lambda: any(pid not in killed for pid in clients.pids))
    return killed


def test_a_process_of_a_pipeline_costs_nobody_a_connection(serving, tmp_path, seconds):
    (tmp_path / "where.py").write_text(WHERE)
    word = "Process(restart_limit=1000)[ServeWhereAndWhat]"
    server = serving({"m": {"import": [str(tmp_path / "where.py")], "backend": word, "max": 4}})
    with Clients(server.port) as clients:
        killed = kill_in_turn(clients, 0, seconds)
    assert clients.wrong == clients.lost == []
    assert len(clients.pids) > len(killed)
    assert clients.counts["answered"] > 0


def test_a_worker_takes_along_its_own_connections_alone(start, tmp_path, seconds):
    (tmp_path / "where.py").write_text(WHERE)
    (tmp_path / "m.toml").write_text(
        'import = ["where.py"]\nbackend = "ServeWhereAndWhat"\nmax = 4\n'
    )
    count = 4 if seconds else 2
    process, url = start("m.toml", "--workers", str(count), "--port", "0", cwd=tmp_path)
    errors = queue.SimpleQueue()
    drain = threading.Thread(target=lambda: [errors.put(line) for line in process.stderr])
    drain.start()
    with Clients(int(url.rpartition(":")[2])) as clients:
        killed = kill_in_turn(clients, 1, seconds)
    noticed = 0  # what dies while all are told to end counts as a failure
    while noticed < len(killed):
        noticed += "ended with -9" in errors.get(timeout=60)
    process.terminate()
    assert process.wait(300) == 0
    drain.join()
    assert clients.wrong == []
    assert {pid for pid in clients.lost if pid is not None} <= set(killed)
    assert clients.counts["refused"] == 0
