"""Documents that are followed: what each needs stands in a table. The programs of all others run in test_documents."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from following import Needs, follow, is_like, variables
from onnx_files import save_doubler
from pages import Page, run

import headrace
from headrace_serve import Server

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"
)
CURL = pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
# On a machine ten times slower the goal is reached, too.
SHORT = {
    "50ms": "1000s",
    r"^(headrace bench [^>]*)": r"\1 --seconds 0.05 --warm-up 0 ",
    r"^headrace simulate .*": r"\g<0> --requests 200",
    r"^headrace tune .*": r"\g<0> --seconds 0.3 --warm-up 0 --trials 2",
}
NEEDS = {
    "docs/files_and_hubs.md": Needs(
        "doubler",
        changes=SHORT,
        prints={"bench": "latency", "run net": r"^row.npy\t\[2.0, 4.0, 6.0\]\n$"},
        here=True,
    ),
    "docs/from_triton.md": Needs(
        "scores",
        marks=[pytest.mark.skipif(not find_spec("tritonclient"), reason="needs tritonclient")],
    ),
    "docs/hooks.md": Needs(
        "photos",
        environ="environ_of_wheels",
        prints={
            "plugins info": r"^headrace-watch 0\.1\.0: ok",
            "plugins list": "ok: ",
            "explain": "headrace-watch",
            "headrace run": r"^photos/a.jpg\t.*\nphotos/b.jpg\t.*\nphotos/c.jpg\t",
            "slowest": r"^photos/\S+ thumbnail\n",
        },
        writes=["slow.jsonl"],
        marks=[pytest.mark.slow],
    ),
    "docs/i_have.md": Needs("doubler", marks=[CURL]),
    "docs/operating.md": Needs(
        "photos",
        changes={**SHORT, "9464": "0"},
        prints={"service.py": "^serving\n"},
        writes=[
            *("times.jsonl", "bench.json", "tuned.toml", "frontier.html", "trace.json"),
            "now.json",
        ],
        programs=True,
        marks=[pytest.mark.slow],
    ),
    "docs/other_tools.md": Needs(marks=[CURL]),
    "docs/policies.md": Needs(
        "photos",
        environ="environ_of_wheels",
        prints={
            "plugins list": r"\nheadrace-gauss-blur +0\.1\.0 +\S+ +ok +GaussBlur\n"
            r"    certified by headrace-testing (.*\n)*ok: "
        },
        marks=[pytest.mark.slow],
    ),
    "docs/records.md": Needs(),
    "docs/start.md": Needs(
        "clone",
        environ="environ_of_pip",
        prints={"longest.toml": r"^words.txt\tchannel\n$", "pytest": r"\n\d\d passed"},
        marks=[pytest.mark.slow],
    ),
    "docs/why.md": Needs(
        "slow_server",
        changes={r"7f3a$": "7f3a --save monday.jsonl"},
        prints={
            "observe why": r"^\d+\.\d ms: .*\d+\.\d ran \(1 in the batch, instance \d, formed by idle\).*\n"
            r"(with main\.(instance_num=3|max=16): .*\n){2}Simulated with the 1 requests since"
        },
        here=True,
    ),
    "libs/models/README.md": Needs(
        "served",
        left_out="--watch",  # test_models_command ends it
        here=True,
        marks=[pytest.mark.first("serve over HTTP and gRPC, with models by name: its commands")],
    ),
    "plugins/serve/README.md": Needs(
        "served",
        left_out="--keys",  # test_serve_page sends keys over TLS
        marks=[
            pytest.mark.first("serve over HTTP and gRPC, with models by name: the README"),
            CURL,
        ],
    ),
}


@pytest.fixture
def photos(tmp_path):
    """A folder with three pictures."""
    (tmp_path / "photos").mkdir()
    for name in "abc":
        picture = np.full((400, 600, 3), ord(name), np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / f"{name}.jpg"), picture)
    return tmp_path


@pytest.fixture
def doubler(tmp_path):
    """A folder with a network, and a row for it."""
    save_doubler(tmp_path / "net.onnx")
    np.save(tmp_path / "row.npy", np.float32([1, 2, 3]))
    return tmp_path


@pytest.fixture
def scores(tmp_path):
    """A folder of models, in which an ensemble has a version."""
    (tmp_path / "repository" / "scores" / "1").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def served(tmp_path):
    """A folder of models, a model, and two files to send."""
    (tmp_path / "served").mkdir()
    for name in ("served/detect", "page"):
        (tmp_path / f"{name}.toml").write_text('backend = "Identity"\n')
    (tmp_path / "pictures").mkdir()
    for name in ("photo.jpg", "pictures/photo.jpg"):
        (tmp_path / name).write_bytes(bytes(48213))
    return tmp_path


@pytest.fixture
def clone(checkout):
    """A clone, and another port than that of the page, at which another test may serve."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return checkout, {r"\b8000\b": str(free.getsockname()[1])}


@pytest.fixture
def slow_server(tmp_path):
    """A folder with the pipeline of the page, which runs in a server, and the address of that."""

    class WhyModel(headrace.Backend):
        max = 8

        def forward(self, batch):
            time.sleep(0.002)
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Detect", WhyModel, replace=True)
    (tmp_path / "line.toml").write_text(Page("docs/why.md").block("toml"))
    with Server({"line": tmp_path / "line.toml"}, port=0) as server:
        for name in ("7f3a", "other", "other"):
            headers = {"X-Request-Id": name}
            httpx.post(f"{server.url}/run/line", content=b"x", headers=headers).raise_for_status()
        yield tmp_path, {"http://127.0.0.1:8000": server.url}


@pytest.fixture
def environ_of_wheels(environment, pip_environ):
    return variables(environment / "bin", pip_environ)


@pytest.fixture
def environ_of_pip(pip_environ):
    return variables(Path(sys.executable).parent, pip_environ)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs.marks) for name, needs in NEEDS.items()]
)
def test_a_document_is_followed(name, request, monkeypatch):
    needs = NEEDS[name]
    folder = request.getfixturevalue(needs.folder)
    if isinstance(folder, tuple):
        folder, changes = folder
        needs = needs._replace(changes={**needs.changes, **changes})
    environ = request.getfixturevalue(needs.environ) if needs.environ else None
    monkeypatch.chdir(folder)
    follow(Page(name), folder, needs, environ)


@pytest.mark.slow
def test_the_page_about_a_first_backend_leads_from_nothing_to_a_certificate(first_backend):
    saved = json.loads((first_backend / "printed.json").read_text(encoding="utf-8"))
    # Machine time: that of the processor, which other work on the machine does not change.
    assert saved["seconds"] < 180
    certificate = (first_backend / "headrace-gamma" / "certificate.json").read_text("utf-8")
    assert "Gamma" in json.dumps(json.loads(certificate))
    outputs = saved["printed"][-1].splitlines()
    assert [line.partition("\t")[0] for line in outputs] == ["photos/a.jpg", "photos/b.png"]
    brighter = "PATH=.venv/bin:$PATH headrace run --json brighter.toml photos/b.png"
    assert json.loads(run(brighter, first_backend, here=""))["result"]


def test_the_page_about_a_first_backend_asks_for_few_lines_and_commands():
    page = Page("docs/first_backend.md")
    lines = [line for text in page.files.values() for line in text.splitlines()[1:] if line.strip()]
    assert 20 <= len(lines) <= 40
    assert 5 <= len(page.commands) <= 8


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\tb\n", "a\tb", True),
        ("a 0.51 b", "a 0.5071 b", True),
        ("a 0.51 b", "a 0.53 b", False),
        ("[1, 2.0]", "[3, 2.0]", False),
        ("a\n...\nb", "a\n1\n2\nb\n", True),
        ("a\n...\nb", "a\n1\n2\nc\n", False),
        ("[1.0, 0.50196...]", "[1.0, 0.501960813999176]", True),
        ("version 1.2.3", "version 1.2.4", False),
        ("", "a", False),
    ],
)
def test_what_is_printed_is_like_what_is_shown(shown, printed, same):
    assert is_like(shown, printed) == same
