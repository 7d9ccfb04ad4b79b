"""`vision.toml`, the command that runs it, and the page that shows it."""

from __future__ import annotations

import dataclasses
import http.client
import http.server
import inspect
import json
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import cv2
import numpy as np
import pytest
import supervision as sv
from processes import run_process
from typer.testing import CliRunner
from web_servers import serving

import headrace
import headrace_vision
from headrace.errors import ConfigError
from headrace_cli.app import app
from headrace_vision import VisionConfig
from headrace_vision.commands import progress
from headrace_vision.file.tables import SINKS
from headrace_vision.sinks import view as view_module

WORDS = """
import headrace
import numpy as np
import supervision as sv

@headrace.register("VisionSquare")
def square(image):
    y, x = np.nonzero((image[..., 2] > 200) & (image[..., 1] < 90))
    if not len(x):
        return sv.Detections.empty()
    box = np.array([[x.min(), y.min(), x.max() + 1, y.max() + 1]], np.float32)
    return sv.Detections(box, confidence=np.array([0.9]), class_id=np.array([0]))
"""

FILE = """
ordered = "S[Track,CountLine([32,0,32,48],name=door)]"
model = "pipe.toml"

[sources.street]
input = "street.mp4"

[sources.yard]
input = "yard.mp4"
stride = 2

[sinks.videos]
kind = "SaveVideo"
folder = "out"

[sinks.lines]
kind = "SaveJSONL"
path = "out/all.jsonl"
"""


ARENAS = """
import ctypes, sys, threading
from headrace_vision.commands import video

assert video("vision.toml") == 0
barrier, libc = threading.Barrier(8), ctypes.CDLL(None)

def work():
    kept = bytearray(100_000)
    barrier.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"info.xml", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize("asked", [None, "6"])
def test_the_command_keeps_the_arenas_of_the_allocator_few(folder, asked):
    """As glibc counts them, after eight threads have reserved memory at a time."""
    environment = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"}
    if asked is not None:
        environment["MALLOC_ARENA_MAX"] = asked
    command = [sys.executable, "-c", ARENAS]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    count = (folder / "info.xml").read_text().count("<heap nr=")
    assert count == int(asked or 2)


@pytest.fixture
def folder(kit, tmp_path):
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "pipe.toml").write_text(
        'import = ["words.py"]\nbackend = "VisionSquare"\nmax = 4\n'
    )
    (tmp_path / "vision.toml").write_text(FILE)
    kit.render(tmp_path / "street.mp4", count=16)
    kit.render(tmp_path / "yard.mp4", count=9)
    return tmp_path


def test_a_file_gives_what_it_describes(folder):
    with headrace_vision.open(folder / "vision.toml") as vision:
        frames = list(vision.run())
        assert isinstance(vision.models["main"], headrace.Pipeline)
        answer = vision.submit({"data": np.zeros((4, 4, 3), np.uint8)}).result(timeout=60)
        assert len(answer["result"]) == 0
        assert vision.add(str(folder / "yard.mp4")).wait(60)
        status = vision.status()
    assert sum(f.source == "street" for f in frames) == 16
    assert [f.frame for f in frames if f.source == "yard"] == [0, 2, 4, 6, 8]
    last = [f for f in frames if f.source == "street"][-1]
    assert sum(last.request["counts"]["door"].values()) == 1
    assert status["models"]["main"]["nodes"]["main"]["submitted"] >= 22
    lines = (folder / "out" / "all.jsonl").read_text().splitlines()
    assert len(lines) == 16 + 5 + 9
    assert (folder / "out" / "street.mp4").is_file()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nonsense = 1", "nonsense"),
        (
            '[sources.a]\ninput = "x"\nzones = { y = { zone = [[0,0],[9,0],[9,9]], dwell = 3 } }',
            r"sources.a.zones: main.dwell: no backend .*(\n.*)+Did you mean 'dwell_s'",
        ),
        ('[sinks.a]\nkind = "SaveVide"', "kind is one of SaveVideo.*, not 'SaveVide'"),
        ('[sinks.a]\nkind = "SaveVideo"\nfolders = "x"', "folders"),
        ("model = ", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(folder, line, error):
    text = line if line.startswith("model") else f'model = "pipe.toml"\n{line}'
    (folder / "vision.toml").write_text(text)
    with pytest.raises(ConfigError, match=error):
        headrace_vision.open(folder / "vision.toml")


def problems_of(path):
    with pytest.raises(ConfigError) as caught:
        headrace_vision.open(path)
    assert all(one.file == str(path) for one in caught.value.problems)
    return [(one.path, one.message.split(". ")[0].split(";")[0]) for one in caught.value.problems]


def test_all_problems_are_named_together_and_there_is_a_schema(folder):
    (folder / "vision.toml").write_text("[sources.a]\n[sources.b]\nx = 1\n")
    assert problems_of(folder / "vision.toml") == [
        ("sources.a.input", "it is missing"),
        ("sources.b.input", "it is missing"),
        ("sources.b", "there is no key 'x'"),
        (None, "there is no model: write model = ..., or tables [models.NAME]"),
    ]
    assert "sources" in VisionConfig.model_json_schema()["properties"]


WRONG = """
model = "nowhere.toml"
ordred = "Track"
ordered = "S[Track,CountLin]"
decode = "DecodeMatt"
score_threshold = 7
network = "127.0.0.1"
[sources.gate]
stried = 3
stride = 0
max_fps = -1.0
loop = 3.5
[sources.yard]
input = ["no.mp4", "rtsp://other.example/a", "yard.mp4"]
model = "cars"
start = 3.0
stop = 2.0
[sinks.View]
kind = "SaveVideo"
codecs = "x"
[sinks.call]
kind = "Webhook"
url = "http://other.example/a"
attempts = 0
[sinks.lines]
path = "x"
"""


def test_mistakes_of_every_kind_are_named_in_one_run_each_as_a_problem(folder):
    (folder / "vision.toml").write_text(WRONG)
    found = problems_of(folder / "vision.toml")
    assert sorted(path or "" for path, _ in found) == [
        "",
        "decode: main.backend",
        "model",
        "network",
        "ordered: main.backend",
        "score_threshold",
        "sinks.View",
        "sinks.View.folder",
        "sinks.call",
        "sinks.call.attempts",
        "sinks.lines",
        "sources.gate",
        "sources.gate.input",
        "sources.gate.loop",
        "sources.gate.max_fps",
        "sources.gate.stride",
        "sources.yard",
        "sources.yard",
        "sources.yard.input",
        "sources.yard.input",
    ]
    texts = " ".join(text for _, text in found)
    for one in ("'ordred'", "'stried'", "'codecs'", "'cars'", "CountLin", "DecodeMatt", "stop = 2"):
        assert texts.count(one) == 1
    done = command("vision.toml", "--check", "--json", cwd=folder)
    assert done.exit_code == 2
    assert len(json.loads(done.stdout)["problems"]) == len(found)


SOURCE_MISTAKES = [
    ("strid = 3", r"a: there is no key 'strid'\. Did you mean 'stride'\?$"),
    ("stride = 0", "a.stride: Input should be greater than or equal to 1, not 0"),
    ("stride = true", "a.stride: Input should be a valid integer, not True"),
    ("max_fps = nan", "a.max_fps: Input should be a finite number, not nan"),
    ("stop = 1\nstart = 2", "a: stop = 1.0 is not after start = 2.0"),
    ('frames = "lates"', "a.frames: .*, not 'lates'. Did you mean 'latest'?"),
    ('sinks = "x"', "a.sinks: Input should be a list"),
    ("max_pixels = 0\nffmpeg = {thread = 1}", "a.max_pixels: .*, not 0"),
    ("max_pixels = 0\nffmpeg = {thread = 1}", "a.ffmpeg: .*Did you mean 'threads'?"),
    ("models = {main = {lines = [1]}}", "a: models.main.lines: Input should be a table"),
    ("models = {main = {line = {}}}", "a: .*Did you mean 'lines'?"),
    ('models = ["main"]\nzones = {}', "a: with models, zones belongs to one of them"),
    ("lines = {door = [1, 2]}", "a.lines: main.line: "),
    ('input = ["rtsp://me:secret@127.0.0.1/a", 3]', "a.input.1: Input should be a text, not 3"),
    ('ffmpeg = "rtsp://me:secret@127.0.0.1/a"', "a.ffmpeg: Input should be a table"),
]


@pytest.mark.parametrize(("lines", "error"), SOURCE_MISTAKES)
def test_a_wrong_value_of_a_source_is_told_with_its_place_and_in_short_words(folder, lines, error):
    input_ = "" if lines.startswith("input") else 'input = "yard.mp4"\n'
    text = f'model = "pipe.toml"\n[sources.a]\n{input_}{lines}\n'
    (folder / "vision.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"sources\.{error}") as caught:
        headrace_vision.open(folder / "vision.toml")
    assert "pydantic" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_all_problems_of_a_model_are_named_with_their_places(several):
    text = (several / "vision.toml").read_text()
    wrong = text.replace("max = 2", "maxx = 2, min = 0").replace("CountLine(", "CountLines(x=1,")
    (several / "vision.toml").write_text(wrong)
    (several / "pipe.toml").write_text('backend = "Identity"\nmaxx = 1\nmin = -3\n')
    places = [path for path, _ in problems_of(several / "vision.toml")]
    assert sum(place.startswith("models.light.model: ") for place in places) >= 2
    assert sum(place.startswith("models.cars.ordered: ") for place in places) >= 1
    assert sum(f"models.cars.model: {several / 'pipe.toml'}" in place for place in places) >= 2


SEVERAL = """
network = ["127.0.0.1"]

[models.cars]
model = "pipe.toml"
ordered = "S[Track,CountLine([32,0,32,48],name=door)]"

[models.light]
model = {backend = "Call(words.py:brightness)", import = ["words.py"], max = 2}

[sources.street]
input = "street.mp4"
model = "cars"

[sources.yard]
input = ["yard.mp4", "street.mp4"]
model = "light"

[sinks.lines]
kind = "SaveJSONL"
path = "all.jsonl"
"""


@pytest.fixture
def several(folder):
    (folder / "words.py").write_text(
        f"{WORDS}\n@headrace.register('VisionLight')\ndef light(image):\n    return float(image.mean())\n"
    )
    text = SEVERAL.replace("Call(words.py:brightness)", "VisionLight")
    (folder / "vision.toml").write_text(text)
    return folder


def test_several_models_each_have_their_sources_and_their_order(several):
    with headrace_vision.open(several / "vision.toml") as vision:
        assert list(vision.models) == ["cars", "light"]
        frames = list(vision.run())
        image = np.full((4, 4, 3), 8, np.uint8)
        assert vision.submit({"data": image}, model="light").result(timeout=60)["result"] == 8
        assert len(vision.submit({"data": image}, model="cars").result(timeout=60)["result"]) == 0
        (still,) = vision.run(image, model="light")
        assert still.result == 8
        assert vision.add(image, model="cars").wait(60)
        with pytest.raises(ValueError, match=r"several models.*cars, light"):
            vision.run(image)
        with pytest.raises(ValueError, match="Did you mean 'light'"):
            vision.submit({"data": image}, model="lite")
        status = vision.status()
    by_source = {}
    for frame in frames:
        assert frame.error is None
        by_source.setdefault(frame.source, []).append(frame)
    street = by_source.pop("street")
    assert len(street) == 16
    assert sum(street[-1].request["counts"]["door"].values()) == 1
    assert sorted(map(len, by_source.values())) == [9, 16]
    assert all(isinstance(f.result, float) for found in by_source.values() for f in found)
    assert status["sources"]["street"]["models"] == ["cars"]
    assert status["models"]["cars"]["nodes"]["main"]["submitted"] >= 16
    assert status["models"]["light"]["nodes"]["main"]["submitted"] >= 25
    lines = [json.loads(line) for line in (several / "all.jsonl").read_text().splitlines()]
    assert sum("detections" in line for line in lines if line["source"] == "street") == 16


def test_models_in_python_are_those_of_a_file(kit):
    headrace.register("VisionMean", lambda image: float(image.mean()), replace=True)
    headrace.register("VisionShape", lambda image: image.shape, replace=True)
    models = {
        "mean": headrace_vision.VideoModel({"backend": "VisionMean", "max": 2}),
        "shape": headrace_vision.VideoModel("VisionShape"),
    }
    with pytest.raises(headrace.errors.ConfigError):
        headrace_vision.VideoRunner(models)  # a text is the path of a file
    models["shape"] = headrace_vision.VideoModel({"backend": "VisionShape"}, ordered="Identity")
    with pytest.raises(TypeError, match="arguments of VideoModel"):
        headrace_vision.VideoRunner(models, ordered="Identity")
    with headrace_vision.VideoRunner(models) as runner:
        (one,) = runner.run(kit.picture(0), model="shape")
        (other,) = runner.run(kit.picture(0), model="mean")
    assert one.result == (48, 64, 3)
    assert other.result == pytest.approx(kit.picture(0).mean())


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('model = "cars"', 'model = "car"', r"sources\.street: .*Did you mean 'cars'"),
        ('model = "cars"\n', "", r"sources\.street: there are several models"),
        ('model = "pipe.toml"', 'model = "pip.toml"', r"models\.cars\.model: "),
        ('model = "pipe.toml"', 'model = "none.onnx"', r"models\.cars\.model: there is no file"),
        ("CountLine(", "CountLines(", r"models\.cars\.ordered: .*CountLine"),
        ("max = 2", "maxx = 2", r"models\.light\.model: .*max"),
        ("network", 'model = "pipe.toml"\nnetwork', r"model: write it below \[models\.NAME\]"),
        (
            '= "street.mp4"',
            '= "stret.mp4"',
            r"sources\.street\.input: .*\n  Did you mean .*street\.mp4",
        ),
        ('"yard.mp4", "st', '"yard.mp4", "nowhere/st', r"sources\.yard\.input: .*no such file"),
        ('= "street.mp4"', '= "photos/*.jpg"', r"sources\.street\.input: .*no such file"),
        (
            '"street.mp4"\nmodel',
            '"rtsp://other.example/a"\nmodel',
            r"sources\.street\.input: .*not allowed",
        ),
        ('kind = "SaveJSONL"', 'kind = "SaveJSONL"\nfolder = "x"', r"sinks\.lines: .*'folder'"),
        ('kind = "SaveJSONL"', 'kind = "Webhook"', r"sinks\.lines"),
    ],
)
def test_a_file_is_checked_as_a_whole_before_anything_is_built(several, old, new, error):
    assert old in (several / "vision.toml").read_text()
    text = (several / "vision.toml").read_text().replace(old, new, 1)
    (several / "vision.toml").write_text(text)
    with pytest.raises(ConfigError, match=error):
        headrace_vision.open(several / "vision.toml")
    assert not (several / "all.jsonl").exists()


def test_the_tables_of_a_file_are_the_arguments_of_what_they_make():
    for kind, table in SINKS.items():
        taken = inspect.signature(getattr(headrace_vision, kind)).parameters
        assert set(table.model_fields) - {"kind", "model"} == set(taken)
        for name, one in taken.items():
            if one.default is not inspect.Parameter.empty and name != "network":
                assert table.model_fields[name].default == one.default
    schema = VisionConfig.model_json_schema()
    options = {one.name for one in dataclasses.fields(headrace_vision.SourceOptions)}
    found = schema["$defs"]["SourceTable"]["properties"]
    assert set(found) == {"input", *options}
    assert all(one["description"] for one in found.values())
    assert len(schema["properties"]["sinks"]["additionalProperties"]["oneOf"]) == len(SINKS) + 1
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    good = {"model": "m.onnx", "sources": {"a": {"input": "v.mp4", "stride": 2}}}
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "sources": {"a": {"input": "v.mp4", "strid": 2}}}, schema)


def test_python_that_drops_docstrings_has_the_same_tables_without_descriptions():
    code = "from headrace_vision import VisionConfig; print(sorted(VisionConfig.model_json_schema()['$defs']))"
    texts = [
        run_process([sys.executable, flag, "-c", code], check=True).stdout for flag in ("-O", "-OO")
    ]
    assert "SourceTable" in texts[0]
    assert texts[0] == texts[1]


def command(*arguments, cwd):
    """Run ``headrace video`` in this process and a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        done = CliRunner().invoke(app, ["video", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def test_the_command_runs_a_file_and_its_arguments(folder):
    done = command("vision.toml", cwd=folder)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "street\t16 delivered\t0 failed\t0 dropped",
        "yard\t5 delivered\t0 failed\t0 dropped",
    ]
    (folder / "text.mp4").write_text("no video")
    done = command(
        "vision.toml", "yard.mp4", "text.mp4", "--save", "saved", "--jsonl", "more.jsonl", "--json",
        cwd=folder,
    )  # fmt: skip
    assert done.exit_code == 1
    assert "text.mp4: frame 0: error: input" in done.stderr
    assert json.loads(done.stdout)["sources"]["yard.mp4"]["delivered"] == 9
    assert (folder / "saved" / "yard.mp4").is_file()
    assert len((folder / "more.jsonl").read_text().splitlines()) == 10
    done = command("vision.toml", "--check", cwd=folder)
    assert (done.exit_code, done.stdout) == (0, "vision.toml: ok\n")
    (folder / "yard.mp4").rename(folder / "garden.mp4")
    done = command("vision.toml", "--check", cwd=folder)
    assert done.exit_code == 2
    assert "sources.yard.input: there is no such file" in done.stderr
    done = command("vision.toml", "yard.mp4", "--check", cwd=folder)
    assert done.exit_code == 2
    assert "no such file" in done.stderr
    done = command("vision.toml", "garden.mp4", cwd=folder)  # in place of what the file names
    assert done.stdout == "garden.mp4\t9 delivered\t0 failed\t0 dropped\n", done.stderr
    (folder / "empty.gif").write_bytes(b"GIF89a\1\0\1\0\0\0\0;")  # a header and an end
    done = command("vision.toml", "empty.gif", cwd=folder)
    assert (done.exit_code, done.stdout) == (
        1,
        "empty.gif\t0 delivered\t1 failed\t0 dropped\n",
    )
    assert "empty.gif: frame 0: error: input" in done.stderr
    (folder / "video.mp4").write_bytes(b"\x00\xe2\x00")
    done = command("video.mp4", cwd=folder)
    assert done.exit_code == 2
    assert "the configuration comes first" in done.stderr
    done = command("nowhere.toml", cwd=folder)
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def test_the_command_sends_inputs_to_the_model_that_is_named(several):
    done = command("vision.toml", "yard.mp4", "--model", "light", "--json", cwd=several)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["sources"]["yard.mp4"]
    assert (found["models"], found["delivered"]) == (["light"], 9)
    for more, error in (((), "cars, light"), (("--model", "lite"), "Did you mean 'light'")):
        done = command("vision.toml", "yard.mp4", *more, cwd=several)
        assert done.exit_code == 2
        assert "error: vision.toml: --model NAME: " in done.stderr
        assert error in done.stderr
        assert "Traceback" not in done.stderr
    (several / "vision.toml").write_text('model = "pipe.toml"\n')
    done = command("vision.toml", cwd=several)
    assert done.exit_code == 2
    assert "there is nothing to read" in done.stderr


SERVICE = """
network = ["127.0.0.1"]
model = {{ backend = "Identity" }}

[sources.gate]
input = "rtsp://me:secret@127.0.0.1:9/none"

[sources.still]
input = "a.png"
loop = true
realtime = true

[sinks.hook]
kind = "Webhook"
url = "http://127.0.0.1:{port}/token"
network = ["127.0.0.1"]
only_events = false
"""


def test_a_service_without_a_terminal_says_what_is_lost_and_what_is_back(kit, tmp_path):
    answers = iter([503, 503])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(next(answers, 204))
            self.send_header("Content-Length", "0")
            self.end_headers()

    (tmp_path / "a.png").write_bytes(kit.encoded(kit.picture(1)))
    wanted = [
        r"warning: source gate is lost, and tried again \(0 delivered, 0 failed, 0 dropped\): .+",
        r"warning: sink hook fails, and is tried again \(0 frames written, \d+ waiting\): .* answered 503.*",
        r"warning: sink hook works again after 2 attempts: \d+ frames were kept, 0 were lost",
    ]
    with serving(Handler) as server:
        (tmp_path / "vision.toml").write_text(SERVICE.format(port=server.server_port))
        words = [sys.executable, "-m", "headrace_cli", "video", "vision.toml"]
        with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as service:
            patience = threading.Timer(120, service.kill)
            patience.start()
            said = []
            while not all(any(re.fullmatch(one, text) for text in said) for one in wanted):
                line = service.stderr.readline()
                assert line, said
                said.append(line.rstrip())
            patience.cancel()
            service.kill()
    assert "secret" not in str(said)
    assert "token" not in str(said)


def get(url, host=None):
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read()


def squares(image):
    found = sv.Detections(
        np.array([[4, 4, 20, 20]], np.float32), class_id=np.array([0]), confidence=np.array([1.0])
    )
    found.data["class_name"] = np.array(["<b>dog</b>"])
    return found


def test_the_page_shows_every_source_and_answers_its_own_address_only(kit):
    headrace.register("VisionSquares", squares, replace=True)
    view = headrace_vision.View()
    assert view.url.startswith("http://127.0.0.1:")
    written = threading.Semaphore(0)
    keep = view.write

    def write(frame):
        keep(frame)
        written.release()

    view.write = write
    with headrace_vision.VideoRunner({"backend": "VisionSquares"}, sinks=[view]) as runner:
        for _ in runner.run({"door": kit.picture(0), "<yard>": kit.picture(1)}):
            pass
        assert written.acquire(timeout=60)
        assert written.acquire(timeout=60)
        kind, page = get(view.url)
        assert kind.startswith("text/html")
        assert b"http://" not in page
        assert b"https://" not in page
        kind, body = get(f"{view.url}ui/state.json")
        state = json.loads(body)["sources"]
        assert list(state) == ["<yard>", "door"]
        assert state["door"]["objects"] == 1
        assert state["door"]["status"]["delivered"] == 1
        kind, data = get(f"{view.url}ui/picture.jpg?source=door&frame=0")
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert (kind, image.shape) == ("image/jpeg", (48, 64, 3))
        for wrong in ("ui/picture.jpg", "ui/picture.jpg?source=other", "ui/other", "../view.py"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(view.url + wrong)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get(view.url, host="elsewhere.example")
        for method, path in (("GET", "/"), ("GET", "/ui/state.json"), ("GET", "/no"), ("PUT", "/")):
            asked = http.client.HTTPConnection("127.0.0.1", int(view.url[17:-1]), timeout=60)
            asked.request(method, path)
            answer = asked.getresponse()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            sandboxed = "sandbox" in answer.headers["Content-Security-Policy"]
            assert sandboxed == ((method, path) != ("GET", "/"))
            asked.close()
        with socket.create_connection(("127.0.0.1", int(view.url[17:-1])), timeout=60) as asked:
            asked.sendall(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"".join(iter(lambda: asked.recv(4096), b"")).startswith(b"HTTP/1.0 501")
    with pytest.raises(urllib.error.URLError):
        get(view.url)


def test_the_page_says_frames_a_second_of_the_last_seconds_and_shows_what_never_opened(kit):
    shown = view_module._Shown()
    frame = headrace_vision.Frame("door", 7, 0.28)
    for number in range(100):
        shown.add(frame, 50 + number / 25)
    assert shown.summary(54.0)["fps"] == pytest.approx(25, rel=0.05)
    assert shown.summary(60.0)["fps"] == 0
    burst = view_module._Shown()
    burst.add(frame, 50.0)
    burst.add(frame, 50.0001)
    assert burst.summary(50.001)["fps"] <= 2
    view = headrace_vision.View()
    lost = threading.Event()

    class Clock(headrace_vision.Clock):
        def wait(self, stop, seconds):
            lost.set()
            return stop.wait()

    runner = headrace_vision.VideoRunner(
        {"backend": "Identity"}, sinks=[view], machine_clock=Clock()
    )
    with runner:
        handle = runner.add({"door": "camera:999"})
        assert lost.wait(60)
        state = json.loads(get(f"{view.url}ui/state.json")[1])["sources"]
        handle.stop()
    assert state["door"]["status"]["state"] == "lost"
    assert state["door"]["status"]["retry_in_s"] > 0
    assert "videocamera" not in state["door"]["status"]["error"]
    assert not state["door"]["has_picture"]


def test_a_request_of_the_page_that_fails_is_logged_and_not_printed(capsys, caplog):
    class Broken(headrace_vision.View):
        def picture(self, name):
            raise ValueError("nothing can be drawn")

    caplog.set_level("DEBUG", "headrace.vision")
    view = Broken()
    with pytest.raises(OSError, match=r"closed|reset"):
        get(f"{view.url}ui/picture.jpg?source=door")
    assert get(view.url)[0].startswith("text/html")  # the others are answered
    view.close()
    assert "nothing can be drawn" in caplog.text
    assert capsys.readouterr().err == ""


class Steps:
    """A clock whose waits end at once, so many times."""

    def __init__(self, times):
        self.seconds, self.times, self.done = 0.0, times, threading.Event()

    def now(self):
        return self.seconds

    def wait(self, stop, seconds):
        self.seconds += seconds
        self.times -= 1
        if self.times < 0:
            self.done.set()
            return stop.wait(60)
        return False


def test_progress_has_the_rate_of_each_source_its_drops_and_what_is_lost():
    quiet = {"state": "reading", "delivered": 0, "failed": 0, "dropped": 0, "error": None}
    states = iter(
        [
            {"street": quiet},
            {
                "street": quiet | {"delivered": 120, "failed": 5},
                "yard": quiet | {"delivered": 3, "dropped": 7},
                "hall": quiet | {"state": "lost", "error": "it is silent"},
            },
            {"street": quiet | {"delivered": 130, "failed": 5}, "yard": quiet | {"state": "ended"}},
        ]
    )
    said, clock = [], Steps(2)
    with progress(lambda: {"sources": next(states)}, said.append, clock):
        assert clock.done.wait(60)
    assert said == [
        "hall: lost (it is silent), street: 25.0 frames/s, yard: 0.6 frames/s (7 dropped)",
        "street: 2.0 frames/s",
    ]


def test_the_page_of_a_file_is_told_with_its_address(folder):
    text = FILE.replace('kind = "SaveVideo"\nfolder = "out"', 'kind = "View"')
    (folder / "vision.toml").write_text(text)
    done = command("vision.toml", cwd=folder)
    assert done.exit_code == 0
    assert done.stderr.startswith("live at http://127.0.0.1:")
