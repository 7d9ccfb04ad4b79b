"""A day in an hour: four RTSP cameras, three sinks and the program itself fail at random. What is missing at the end?

A square crosses a line twice in eight seconds before each camera (320 x 240, 10 pictures a second of several packets). Cameras
are killed, cut, frozen and slow. A receiver over HTTP is away, or takes an event and says 503. The disk of a file with a line per frame, of
the recordings and of what is kept takes no byte more. A function raises. The program itself is killed twice (SIGKILL), and is started again.

Pictures say which they are. The program says of each frame that it takes which picture it was, and the cameras know when that was taken.
From this follows what each sink must have been told, whatever the program believes. The status is 1 unless

- each crossing whose pictures the program took (from a second before it) came to each sink, with one id however often it came,
- no crossing was told twice, and none that was not there,
- the time of each event is right to 0.1 s: when its picture was taken. Where the program says that it knows its arrival only: when that, or the
  next one, was sent (FFmpeg gives out the first picture of a connection once the next one begins),
- no recording lacks more than two seconds of the pictures that the program took,
- memory at the end is at most 10 MB above that of the tenth minute behind the last start.

    python -m benchmarks.vision.outages [--seconds 3600] [--quick] [--json FILE]
"""

from __future__ import annotations

import calendar
import http.server
import json
import logging
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import supervision as sv
from benchmarks.load import arguments, environment, print_environment, save
from benchmarks.vision.rtsp import (
    COUNT,
    FPS,
    LINE,
    Camera,
    again,
    encoded_pictures,
    is_below,
    number_in,
)

import headrace
from headrace_vision import SaveJSONL, SaveVideo, Sink, VideoRunner, Webhook, frame_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_vision import Frame

PACKAGES = ("headrace", "headrace-vision", "numpy", "av", "supervision", "trackers")
CAMERAS, KILLS = 4, 2
MOST_TIME_S, MOST_LACK_S, MOST_GROWTH_MB = 0.1, 2.0, 10.0
HOST = "127.0.0.1"


# The program, in a process of its own.


def find_square(image: np.ndarray[Any, Any]) -> sv.Detections:
    """Return the square of a picture, and the number of the picture."""
    gray = image[:, :, 1]
    rows = np.flatnonzero(gray[16:, 150:170].mean(1) > 150) + 16
    if not len(rows):
        return sv.Detections.empty()
    box = np.array([[140, rows[0], 180, rows[-1] + 1]], np.float32)
    data = {"picture": np.array([number_in(gray)])}
    return sv.Detections(box, confidence=np.array([0.9]), class_id=np.array([0]), data=data)


def say(kind: str, **values: Any) -> None:
    """Tell the one who started the program. What is said is there whatever becomes of the program."""
    sys.stdout.write(json.dumps({"kind": kind, **values}) + "\n")
    sys.stdout.flush()


class Function(Sink):
    """A sink that calls Python, and fails while there is a file."""

    name = "function"
    needs_image = False

    def __init__(self, folder: Path) -> None:
        self._away = folder / "away"
        self.spool, self.close_s = folder / "spool-function", 60.0

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame has events."""
        return bool(frame.request.get("events"))

    def write(self, frame: Frame) -> None:
        """Tell of a frame."""
        if self._away.exists():
            raise RuntimeError("away")
        say("told", record=frame_record(frame))


def program(folder: Path) -> None:
    """Read the cameras until the input ends."""
    given = json.loads((folder / "program.json").read_text())
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    headrace.register("FindSquare", find_square)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    sinks = [
        Webhook(given["receiver"], network=[HOST], spool=folder / "spool-webhook", close_s=60),
        SaveJSONL(folder / "all.jsonl", spool=folder / "spool-lines", close_s=60),
        SaveVideo(folder / "videos", codec="copy", every_s=given["every_s"], close_s=60),
        Function(folder),
    ]
    ordered = f"S[Track,CountLine({list(LINE)})]"
    config = {"backend": "FindSquare", "max": 4}
    with VideoRunner(config, ordered=ordered, sinks=sinks, network=[HOST]) as runner:
        for f in runner.run(given["cameras"], read_timeout=given["read_timeout"]):
            found = () if f.result is None else f.result.data.get("picture", ())
            picture = int(found[0]) if len(found) else -1
            say("took", source=f.source, frame=f.frame, time=f.time, picture=picture)
            if over.is_set():
                break
    say("ended", status=runner.status())


# Those around it.


class Receiver(http.server.ThreadingHTTPServer):
    """Notes what is posted. It can be away, or say 503 to what it took."""

    daemon_threads = True

    def __init__(self, got: list[dict[str, Any]], port: int = 0, answer: int = 200) -> None:
        self.got, self.answer = got, answer
        super().__init__((HOST, port), _Post)
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()

    def away(self) -> None:
        """Close the port."""
        self.shutdown()
        self.server_close()


class _Post(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Note a frame, and answer."""
        server: Any = self.server
        server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Program:
    """The program as a process that is started again, with what it said, and its memory each second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.said: list[dict[str, Any]] = []
        self.log: list[str] = []
        self.memory_mb: list[tuple[float, float]] = []
        self.starts_s: list[float] = []
        self.is_full = False
        self._begun = threading.Event()

    def start(self) -> None:
        """Start it."""
        self._begun.clear()
        command = [sys.executable, "-m", "benchmarks.vision.outages", "--program", self._folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        self.starts_s.append(time.time())
        self.memory_mb.clear()
        self.disk(is_full=self.is_full)
        self._reader = threading.Thread(target=self._read, args=[self.process.stdout])
        self._reader.start()

    def _read(self, lines: Any) -> None:
        run = len(self.starts_s) - 1
        for line in lines:
            if not line.startswith('{"kind"'):
                self.log.append(line)
            elif line.endswith("\n"):  # not cut by a kill
                self._begun.set()
                self.said.append({**json.loads(line), "run": run})

    def look(self) -> None:
        """Note its memory, and how many seconds it has been there."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        size_mb = pages * resource.getpagesize() / 1e6
        self.memory_mb.append((time.time() - self.starts_s[-1], size_mb))

    def disk(self, *, is_full: bool) -> None:
        """Let none of its files grow, or let them grow again, once it runs: Python itself needs a place for files to begin."""
        self._begun.wait(60.0 if is_full else 0.0)
        self.is_full = is_full
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        limits = (0 if is_full else hard, hard)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)

    def kill(self) -> None:
        """End it at once (SIGKILL), and start it again."""
        if self.is_full:  # what is not on the disk yet cannot survive
            self.disk(is_full=False)
            threading.Event().wait(2.0)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self.start()

    def end(self) -> int:
        """Let it end; return its status."""
        self.process.stdin.close()  # type: ignore[union-attr]
        status = self.process.wait(180)
        self._reader.join()
        return status


class Receivers:
    """A receiver at one port that comes and goes."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self._up: Receiver | None = Receiver(self.got)
        self.port = self._up.server_port

    def be(self, answer: int | None) -> None:
        """Answer this from now on. None: be away."""
        if self._up is not None:
            self._up.away()
        self._up = answer and again(lambda: Receiver(self.got, self.port, answer))


Trouble = tuple[str, "Callable[[], Any]", "Callable[[], Any]"]


def troubles(
    away: Path, program: Program, receivers: Receivers, cameras: dict[str, Camera]
) -> dict[str, list[Trouble]]:
    """Return what may happen to each: its name, how it begins, and how it ends."""
    found: dict[str, list[Trouble]] = {
        "Webhook": [
            ("away", lambda: receivers.be(None), lambda: receivers.be(200)),
            ("503", lambda: receivers.be(503), lambda: receivers.be(200)),
        ],
        "SaveJSONL": [
            ("full", lambda: program.disk(is_full=True), lambda: program.disk(is_full=False))
        ],
        "function": [("away", away.touch, away.unlink)],
    }
    for name, one in cameras.items():
        found[name] = [
            ("killed", one.down, one.up),
            ("cut", one.cut, lambda: None),
            ("frozen", one.works.clear, one.works.set),
            ("slow", partial(setattr, one, "late_s", 1.5), partial(setattr, one, "late_s", 0.0)),
        ]
    return found


def planned(
    kinds: dict[str, list[Trouble]], seconds: float, scale: float
) -> list[tuple[float, str, Callable[[], Any]]]:
    """Return what happens when, in seconds: to each something every minute or so, and nothing at the end."""
    chance, plan = random.Random(0), []
    for who, what in kinds.items():
        at = 20 * scale + 3
        while True:
            at += chance.uniform(20, 90) * scale
            how, begin, end = chance.choice(what)
            lasts_s = chance.uniform(2, 25) * scale
            if at + lasts_s > seconds - max(60 * scale, 5.0):
                break
            plan += [(at, f"{who} {how}", begin), (at + lasts_s, "", end)]
            at += lasts_s
    return plan


def day(seconds: float, folder: Path) -> dict[str, Any]:
    """Let it happen, and return what there is to judge."""
    pictures, begun_s = encoded_pictures(), time.time()
    cameras = {f"camera{number}": Camera(pictures, begun_s) for number in range(CAMERAS)}
    receivers, program, scale = Receivers(), Program(folder), min(seconds / 600, 1.0)
    given = {
        "cameras": {name: one.url for name, one in cameras.items()},
        "receiver": f"http://{HOST}:{receivers.port}/",
        "every_s": 60 * scale,
        "read_timeout": max(5 * scale, 2.0),
    }
    (folder / "program.json").write_text(json.dumps(given))
    plan = planned(troubles(folder / "away", program, receivers, cameras), seconds, scale)
    plan += [(seconds * (n + 1) / 6, "program killed", program.kill) for n in range(KILLS)]
    plan.append((seconds, "", lambda: None))
    program.start()
    began, happened = time.monotonic(), []
    for at, name, act in sorted(plan, key=lambda one: one[0]):
        while (left := began + at - time.monotonic()) > 0:
            threading.Event().wait(min(left, 1.0))
            program.look()
        act()
        if name:
            happened.append(name)
            print(f"{at:7.1f} s  {name}", flush=True)
    status = program.end()
    for one in cameras.values():
        one.down()
    lines = (folder / "all.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if line.endswith("}")]  # not cut by a kill
    return {
        "begun_s": begun_s,
        "seconds": seconds,
        "status": status,
        "happened": dict(Counter(happened)),
        "sent_s": {name: one.sent_s for name, one in cameras.items()},
        "told": {
            "Webhook": receivers.got,
            "SaveJSONL": [one for one in records if one.get("events")],
            "function": [one["record"] for one in program.said if one["kind"] == "told"],
        },
        "said": program.said,
        "log": program.log,
        "memory_mb": program.memory_mb,
    }


# What came of it.


def whole_number(picture: int, time_s: float) -> int:
    """Return which picture of a camera one is, of those with its number, by about when it was taken (seconds of the camera)."""
    return picture + COUNT * round((time_s * FPS - picture) / COUNT)


Taken = dict[tuple[int, str], set[int]]
"""The pictures that the program took, by the number of its start and by camera."""


def judged_events(found: dict[str, Any], took: Taken) -> dict[str, Any]:
    """Return what each sink was told, beside what it must have been told."""
    begun_s = found["begun_s"]
    pictures: dict[tuple[str, int, float], int] = {}
    for one in found["said"]:
        if one["kind"] == "took" and one["picture"] >= 0:
            number = whole_number(one["picture"], one["time"] - begun_s)
            took[one["run"], one["source"]].add(number)
            pictures[one["source"], one["frame"], one["time"]] = number
    must = set()
    for (_, source), numbers in took.items():
        for number in numbers:
            if is_below(number) != is_below(number - 1) and all(
                one in numbers for one in range(number - FPS, number + 3)
            ):
                must.add((source, number))
    sinks = {}
    for name, records in found["told"].items():
        ids: dict[tuple[str, int], set[str]] = defaultdict(set)
        seen: dict[str, Any] = {}
        wrong_ids = false = 0
        errors_s: dict[str, list[float]] = {"camera": [0.0], "arrival": [0.0]}
        for record in records:
            key = (record["source"], record["frame"], record["time"])
            near = round((record["time"] - begun_s) * FPS)
            number = pictures.get(key, near)
            rights_s = [begun_s + number / FPS]
            if record["time_from"] == "arrival":
                sent_s = found["sent_s"][record["source"]]
                rights_s = [sent_s[one] for one in (number, number + 1) if one in sent_s]
            error_s = min((record["time"] - one for one in rights_s), key=abs)
            errors_s[record["time_from"]].append(error_s)
            crossing = next(n for n in range(number, 0, -1) if is_below(n) != is_below(n - 1))
            for event in record["events"]:
                false += event["direction"] != ("out" if is_below(number) else "in")
                wrong_ids += seen.setdefault(event["id"], (key, event)) != (key, event)
                ids[record["source"], crossing].add(event["id"])
        sinks[name] = {
            "came": len(records),
            "again": len(records) - len({event[0] for event in seen.values()}),
            "missing": len(must - set(ids)),
            "told_twice": sum(len(one) > 1 for one in ids.values()),
            "wrong_ids": wrong_ids,
            "false": false,
            "time_s": {who: max(row, key=abs) for who, row in errors_s.items()},
            "times": {who: len(row) - 1 for who, row in errors_s.items()},
        }
    return {"took": sum(map(len, took.values())), "must": len(must), "sinks": sinks}


def judged_recordings(folder: Path, begun_s: float, took: Taken) -> dict[str, Any]:
    """Return how many pictures that the program took are in no recording, and how many seconds are missing at once."""
    there: dict[str, set[int]] = defaultdict(set)
    paths = sorted(folder.glob("*.mp4*"))
    unplayable = 0
    for path in paths:
        source, date, clock = path.name.split(".")[0].split("-")[:3]
        first_s = calendar.timegm(time.strptime(date + clock, "%Y%m%d%H%M%S")) - begun_s
        count = 0
        try:
            with av.open(str(path)) as container:
                for frame in container.decode(video=0):
                    picture = number_in(frame.to_ndarray(format="gray"))
                    count += 1
                    if picture >= 0:
                        there[source].add(whole_number(picture, first_s + (frame.time or 0.0)))
        except (av.FFmpegError, IndexError):
            unplayable += not count
    missing = longest = 0
    for (_, source), numbers in took.items():
        row = 0
        for number in sorted(numbers):
            row = 0 if number in there[source] else row + 1
            missing += row > 0
            longest = max(longest, row)
    return {
        "files": len(paths),
        "unplayable": unplayable,
        "missing": missing,
        "lacks_s": longest / FPS,
    }


def growth_mb(memory_mb: list[tuple[float, float]], behind_s: float) -> float:
    """Return by how much memory has grown behind so many seconds: the medians of a quarter of that time."""
    window_s, last_s = behind_s / 4, memory_mb[-1][0]
    first = [mb for at, mb in memory_mb if behind_s <= at <= behind_s + window_s]
    last = [mb for at, mb in memory_mb if at >= last_s - window_s]
    return statistics.median(last) - statistics.median(first)


def main() -> None:
    """Run and print."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long it runs")
    parser.add_argument("--program", type=Path, help="a folder: be the program (for itself)")
    args = parser.parse_args()
    if args.program:
        program(args.program)
        return
    about = environment(PACKAGES)
    print_environment(about)
    took: Taken = defaultdict(set)
    with tempfile.TemporaryDirectory() as name:
        found = day(45.0 if args.quick else args.seconds, Path(name))
        events = judged_events(found, took)
        videos = judged_recordings(Path(name) / "videos", found["begun_s"], took)
    grown = growth_mb(found["memory_mb"], found["seconds"] / 6)
    print("".join(found["log"][-200:]))
    print(f"{CAMERAS} cameras, {found['seconds']:g} s, {sum(found['happened'].values())} outages:")
    print(f"{events['took']} pictures taken, {events['must']} crossings that must be told")
    names = ("came", "again", "missing", "told_twice", "wrong_ids", "false")
    print(f"{'':10}", *(f"{one:>10}" for one in names), "  greatest error of time (s)")
    for sink, one in events["sinks"].items():
        errors = ", ".join(
            f"{who} {s:.3f} ({one['times'][who]})" for who, s in one["time_s"].items()
        )
        print(f"{sink:10}", *(f"{one[name]:10}" for name in names), f"  {errors}")
    print("recordings:", ", ".join(f"{name} {one}" for name, one in videos.items()))
    print(f"memory {found['memory_mb'][-1][1]:.0f} MB, grown by {grown:.1f} MB")
    faults = [
        f"{sink}: {name}"
        for sink, one in events["sinks"].items()
        for name in ("missing", "told_twice", "wrong_ids", "false")
        if one[name]
    ]
    for sink, one in events["sinks"].items():
        faults += [f"{sink}: time" for s in one["time_s"].values() if abs(s) > MOST_TIME_S]
    faults += ["recordings"] * (videos["lacks_s"] > MOST_LACK_S)
    faults += ["memory"] * (found["seconds"] >= 600 and grown > MOST_GROWTH_MB)
    faults += ["status"] * (found["status"] != 0)
    print("wrong:", ", ".join(faults) or "nothing")
    curve = [[round(at), round(mb, 1)] for at, mb in found["memory_mb"][::60]]
    figures = {"events": events, "recordings": videos, "wrong": faults}
    figures |= {"grown_mb": grown, "memory_mb": curve}
    save(args.json, about, {"outages": {**figures, "happened": found["happened"]}})
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
