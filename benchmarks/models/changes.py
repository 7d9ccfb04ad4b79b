"""Whether a request is lost, or the server called unready, while the files of its models change for an hour.

Two servers watch folders, under 16 clients: a repository of Triton, and a folder of TOML files. Each round makes these changes:

- ``rename``: a new version is moved into the repository.
- ``copy``: its file grows for 30 s in its place.
- ``initialize``: a new version cannot be built at first.
- ``delete``: a model goes, and returns. Its requests between these do not count.
- ``swap``: the link of a folder leads to another one, as that of a ConfigMap.
- ``branch``: a branch of a hub moves, and SIGHUP tells the server.
- ``busy``: it moves while the hub answers 503.
- ``full``: it moves to a file for which the disk has no room.

Each is waited for: a change that should be seen must be, and one that should not, not. All figures are counts.

    python -m benchmarks.models.changes [--seconds 3600] [--quick] [--json FILE]
"""

from __future__ import annotations

import collections
import http.client
import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLIENTS = 16
PAUSE_S = 0.05
"""What a client waits between two requests, since this counts and measures no speed."""
SEEN_S = 120.0
"""How long a change may take until it is seen."""

CONFIG = 'backend: "python"\noutput [{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }]\n'
CONFIG += 'input [{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }]\n'
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        if {broken}:
            raise RuntimeError("it cannot be built")

    def execute(self, requests):
        out = pb_utils.Tensor("OUT", np.array([{value}], np.int32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""
READS = """
import headrace

@headrace.register("Reads")
class Reads(headrace.Backend):
    class Options(headrace.Options):
        positional = ("text",)
        text: str = ""
        path: headrace.FilePath | None = None

    def init(self, options, context):
        self.text = options.text if options.path is None else options.path.read_text()

    def forward(self, batch):
        for request in batch:
            request["result"] = self.text
"""
INFER = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}


class Hub:
    """A hub with one file, which its branch ``main`` moves from commit to commit.

    Attributes:
        value: What the file holds.
        busy: Whether it answers 503.
        size_bytes: What it says of the size of the file. None: the truth.
    """

    def __init__(self) -> None:
        hub = self
        self.value, self.busy = 1, False
        self.size_bytes: int | None = None

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Write nothing."""

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, to: http.server.BaseHTTPRequestHandler) -> None:
        """Answer a request for the list of files, or for the file of a commit."""
        status, headers = 200, {}
        commit = f"{self.value:040x}"
        if self.busy:
            status, body = 503, b"{}"
        elif to.path.startswith("/api/models/"):
            size = len(str(self.value)) if self.size_bytes is None else self.size_bytes
            files = [{"rfilename": "net.txt", "size": size}]
            body = json.dumps({"id": "org/name", "sha": commit, "siblings": files}).encode()
        elif to.path.startswith("/org/name/resolve/"):
            asked = to.path.split("/")[4]
            body = str(int(asked, 16)).encode()
            headers = {"ETag": f'"{asked}"', "X-Repo-Commit": asked}
        else:
            status, body = 404, b"{}"
        to.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            to.send_header(name, text)
        to.end_headers()
        if to.command == "GET":
            to.wfile.write(body)


class Served:
    """A server of a folder, in a process of its own, and what was seen of it.

    Attributes:
        answers: How often each status came, by model. 0: the connection broke.
        lost: The requests of models that are not away, and were not answered with 200.
        away: The answers other than 200 of models that are deleted and have not returned.
        unready: The looks at which the server was not ready.
        looks: All looks.
        values: The last value of each model.
        gone: The models that are away.
    """

    def __init__(
        self, folder: Path, log: Path, ended: threading.Event, more: dict[str, str]
    ) -> None:
        self.answers: collections.Counter[tuple[str, int]] = collections.Counter()
        self.lost = self.away = self.unready = self.looks = 0
        self.values: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self._newest: dict[str, int] = {}
        self.gone: set[str] = set()
        self._ended, self._lock, self._here = ended, threading.Lock(), threading.local()
        self._threads: list[threading.Thread] = []
        command = [sys.executable, "-m", "headrace", "serve", str(folder), "--watch"]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*command, "--port", "0", "--json"],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **more},
            )
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        if "url" not in said:
            raise RuntimeError(f"the server of {folder} did not start: {said}")
        self.port = int(said["url"].rpartition(":")[2])

    def ask(self, path: str, body: bytes | None) -> tuple[int, Any]:
        """Send one request in the connection of this thread: one for each would use up the ports."""
        one = getattr(self._here, "connection", None)
        if one is None:
            one = self._here.connection = http.client.HTTPConnection("127.0.0.1", self.port, 60)
        try:
            one.request("GET" if body is None else "POST", path, body)
            answer = one.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            one.close()  # the next request opens it again
            raise
        return answer.status, json.loads(text or b"null")

    def start(self, models: dict[str, Callable[[Any], Any]], clients: int) -> None:
        """Send requests for models, whose values functions read out of answers, and look at health."""
        work = [*([lambda: self._send(models)] * clients), self._look]
        self._threads = [threading.Thread(target=self._until_ended, args=(one,)) for one in work]
        for thread in self._threads:
            thread.start()

    def _until_ended(self, work: Callable[[], None]) -> None:
        while not self._ended.wait(PAUSE_S):
            work()
        self._here.connection.close()

    def _send(self, models: dict[str, Callable[[Any], Any]]) -> None:
        for name, read in models.items():
            is_triton = read is of_triton
            path = f"/v2/models/{name}/infer" if is_triton else f"/run/{name}"
            body = json.dumps(INFER).encode() if is_triton else b"x"
            before, number = name in self.gone, next(self._numbers)
            try:
                status, said = self.ask(path, body)
            except (OSError, http.client.HTTPException):
                status, said = 0, None
            with self._lock:
                self.answers[name, status] += 1
                if status == 200:
                    self._newest[name] = newest = max(number, self._newest.get(name, 0))
                    if number == newest:  # the answer to an earlier request may come late
                        self.values[name] = read(said)
                elif before or name in self.gone:
                    self.away += 1
                else:
                    self.lost += 1

    def _look(self) -> None:
        status, _ = self.ask("/v2/health/ready", None)
        self.looks += 1
        self.unready += status != 200

    def close(self) -> None:
        """Wait for the clients, and end the server."""
        for thread in self._threads:
            thread.join()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def of_triton(said: Any) -> Any:
    """Return the value of an answer of the protocol."""
    return said["outputs"][0]["data"][0]


def of_run(said: Any) -> Any:
    """Return the value of an answer of ``/run``."""
    return int(said["result"])


class Changes:
    """Makes the changes, and counts those that were seen as they should be."""

    def __init__(self, root: Path, copy_s: float, stays_s: float) -> None:
        self.root, self.copy_s, self.stays_s = root, copy_s, stays_s
        self.made: collections.Counter[str] = collections.Counter()
        self.missed: collections.Counter[str] = collections.Counter()
        self.hub, self.ended, self.number = Hub(), threading.Event(), 1
        repository, served = root / "repository", root / "served"
        for name in ("kept", "deleted"):
            self.version(repository / name, 1)
        served.mkdir()
        (root / "reads.py").write_text(READS)
        start = f'import = ["{root / "reads.py"}"]\n'
        self.start_of_toml = start
        (served / "hub.toml").write_text(
            start + "backend = \"Reads(path='hf://org/name@main/net.txt')\"\n"
        )
        self.swap(1)
        (served / "swapped.toml").symlink_to("..data/swapped.toml")
        more = {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(root / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HEADRACE_CACHE": str(root / "cache"),
            "HEADRACE_FETCH_TIMEOUT_S": "5",
        }
        self.repository = Served(repository, root / "repository.log", self.ended, more)
        self.folder = Served(served, root / "served.log", self.ended, more)

    def version(self, folder: Path, value: int, *, broken: bool = False) -> Path:
        """Write a version of a model of the repository, and return its folder."""
        place = folder / str(value)
        place.mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG)
        (place / "model.py").write_text(CODE.format(broken=broken, value=value))
        return place

    def swap(self, value: int) -> None:
        """Let the link of the folder lead to another folder, and remove that of before."""
        new, link = self.root / f"data-{value}", self.root / "served" / "..data"
        new.mkdir()
        (new / "swapped.toml").write_text(
            f"{self.start_of_toml}backend = \"Reads(text='{value}')\"\n"
        )
        before = link.resolve() if link.is_symlink() else None
        (self.root / "link").symlink_to(new)
        (self.root / "link").replace(link)
        if before is not None:
            (before / "swapped.toml").unlink()
            before.rmdir()

    def expect(self, change: str, served: Served, model: str, value: Any, *, stays: bool) -> None:
        """Wait until a model gives a value, or look whether it stays."""
        self.made[change] += 1
        until = time.monotonic() + (self.stays_s if stays else SEEN_S)
        while time.monotonic() < until:
            if (served.values.get(model) == value) != stays:
                self.missed[change] += stays
                return
            time.sleep(PAUSE_S)
        self.missed[change] += not stays

    def rounds(self, until: float) -> int:
        """Make all changes, and again until a time; return how often."""
        for done in range(1 << 30):
            for change in self.of_a_round():
                change()
            if time.monotonic() >= until:
                return done + 1
        return 0

    def of_a_round(self) -> Iterator[Callable[[], None]]:
        """Yield what makes each change of a round."""
        yield self.rename
        yield self.copy
        yield self.initialize
        yield self.delete
        yield self.move_link
        yield self.move_branch
        yield self.move_busy
        yield self.move_full

    def _next(self) -> int:
        self.number += 1
        return self.number

    def rename(self) -> None:
        """Move a version in."""
        value = self._next()
        place = self.version(self.root / "aside", value)
        place.rename(self.root / "repository" / "kept" / str(value))
        self.expect("rename", self.repository, "kept", value, stays=False)

    def copy(self) -> None:
        """Let the file of a version grow."""
        value = self._next()
        place = self.root / "repository" / "kept" / str(value)
        place.mkdir()
        code = CODE.format(broken=False, value=value)
        with (place / "model.py").open("w") as file:
            for letter in code:  # as a copy does, it never stands still for a second
                file.write(letter)
                file.flush()
                time.sleep(self.copy_s / len(code))
        self.expect("copy", self.repository, "kept", value, stays=False)

    def initialize(self) -> None:
        """Bring a version that cannot be built, and mend it."""
        before, value = self.repository.values["kept"], self._next()
        place = self.version(self.root / "repository" / "kept", value, broken=True)
        self.expect("initialize", self.repository, "kept", before, stays=True)
        (place / "model.py").write_text(CODE.format(broken=False, value=value))
        self.expect("initialize", self.repository, "kept", value, stays=False)

    def delete(self) -> None:
        """Take a model away, and bring it back."""
        value, served = self._next(), self.repository
        folder = self.root / "repository" / "deleted"
        served.gone.add("deleted")
        folder.rename(self.root / f"away-{value}")
        self._wait_for(served, 404)
        served.values.pop("deleted", None)
        self.version(folder, value)
        self.expect("delete", served, "deleted", value, stays=False)
        served.gone.discard("deleted")

    def _wait_for(self, served: Served, status: int) -> None:
        until, before = time.monotonic() + SEEN_S, served.answers["deleted", status]
        while served.answers["deleted", status] == before and time.monotonic() < until:
            time.sleep(PAUSE_S)
        self.missed["delete"] += time.monotonic() >= until

    def move_link(self) -> None:
        """Swap the link."""
        value = self._next()
        self.swap(value)
        self.expect("swap", self.folder, "swapped", value, stays=False)

    def move_branch(self) -> None:
        """Move the branch."""
        self.hub.value = self._next()
        self.folder.process.send_signal(signal.SIGHUP)
        self.expect("branch", self.folder, "hub", self.hub.value, stays=False)

    def move_busy(self) -> None:
        """Move the branch of a hub that does not answer."""
        before, self.hub.busy, self.hub.value = self.folder.values["hub"], True, self._next()
        self.folder.process.send_signal(signal.SIGHUP)
        self.expect("busy", self.folder, "hub", before, stays=True)
        self.hub.busy = False

    def move_full(self) -> None:
        """Move the branch to a file that has no room, and then to one that has."""
        before, self.hub.size_bytes = self.folder.values["hub"], 1 << 60
        self.hub.value = self._next()
        self.folder.process.send_signal(signal.SIGHUP)
        self.expect("full", self.folder, "hub", before, stays=True)
        self.hub.size_bytes = None
        self.folder.process.send_signal(signal.SIGHUP)
        self.expect("full", self.folder, "hub", self.hub.value, stays=False)


def run(root: Path, seconds: float, copy_s: float, stays_s: float) -> dict[str, Any]:
    """Make changes for some seconds, in whole rounds, and return the counts."""
    changes = Changes(root, copy_s, stays_s)
    both = (changes.repository, changes.folder)
    until = time.monotonic() + SEEN_S
    while time.monotonic() < until and any(
        one.ask("/v2/health/ready", None)[0] != 200 for one in both
    ):
        time.sleep(PAUSE_S)
    changes.repository.start({"kept": of_triton, "deleted": of_triton}, CLIENTS // 2)
    changes.folder.start({"swapped": of_run, "hub": of_run}, CLIENTS // 2)
    while any(len(one.values) < 2 for one in both):
        time.sleep(PAUSE_S)
    try:
        rounds = changes.rounds(time.monotonic() + seconds)
    finally:
        changes.ended.set()
        for one in both:
            one.close()
    return {
        "rounds": rounds,
        "requests": sum(one.answers.total() for one in both),
        "lost": sum(one.lost for one in both),
        "away": sum(one.away for one in both),
        "answers": {
            f"{name} {status}": count
            for one in both
            for (name, status), count in sorted(one.answers.items())
        },
        "looks": sum(one.looks for one in both),
        "unready": sum(one.unready for one in both),
        "changes": dict(changes.made),
        "missed": {name: count for name, count in changes.missed.items() if count},
    }


def main() -> None:
    """Print the counts; the status is 1 if a request was lost, a look wrong, or a change missed."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    asked = parser.parse_args()
    about = environment(["headrace", "headrace-models", "headrace-serve", "headrace-triton"])
    print_environment(about)
    seconds, copy_s, stays_s = (1.0, 4.0, 4.0) if asked.quick else (asked.seconds, 30.0, 12.0)
    with tempfile.TemporaryDirectory(prefix="headrace-changes-") as root:
        counts = run(Path(root), seconds, copy_s, stays_s)
    for name, value in counts.items():
        print(f"{name:<10} {value}")
    save(asked.json, about, counts)
    if counts["lost"] or counts["unready"] or counts["missed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
