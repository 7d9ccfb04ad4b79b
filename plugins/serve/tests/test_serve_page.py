"""The commands of the page, as somebody would follow it."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", README, re.MULTILINE)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell and signals of POSIX")


def serve_command(text):
    """The arguments of the one ``headrace serve`` of the page that has this in it, on free ports."""
    (found,) = [one for one in COMMANDS if one.startswith("headrace serve") and text in one]
    words = [{"8000": "0", "8001": "0"}.get(word, word) for word in shlex.split(found)[2:]]
    return words if "--port" in words else [*words, "--port", "0"]


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_first_commands(tmp_path, start):
    configuration = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "size.toml").write_text(configuration)
    (tmp_path / "photo.jpg").write_bytes(bytes(48213))
    process, url = start(*serve_command("size="), cwd=tmp_path)
    (asking,) = [shlex.split(one) for one in COMMANDS if one.startswith("curl --data-binary")]
    asking[-1] = asking[-1].replace("http://localhost:8000", url)
    printed = subprocess.run(asking, cwd=tmp_path, capture_output=True, timeout=240).stdout.decode()
    assert f"`{printed}`" in README
    process.terminate()
    assert process.wait(300) == 0


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_parts_of_an_answer(tmp_path, start):
    blocks = re.findall(r"```(?:python|toml)\n(# (words\.\w+)\n.*?)```", README, re.DOTALL)
    assert [name for _, name in blocks] == ["words.py", "words.toml"]
    for text, name in blocks:
        (tmp_path / name).write_text(text)
    process, url = start(*serve_command("words.toml"), cwd=tmp_path)
    (asking,) = [shlex.split(one) for one in COMMANDS if one.startswith("curl -N")]
    asking[-1] = asking[-1].replace("http://localhost:8000", url)
    printed = subprocess.run([*asking, "-s"], capture_output=True, timeout=240).stdout.decode()
    assert f"```text\n{printed}```" in README
    process.terminate()
    assert process.wait(300) == 0


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_securing_it(tmp_path, certificates, start):
    key = "a long and random key"
    (hashing,) = [one for one in COMMANDS if "sha256sum" in one]
    done = subprocess.run(
        ["sh", "-c", hashing], env={"KEY": key, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=True,
    ).stdout.split()[0]  # fmt: skip
    (keys,) = [
        one for one in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "keys.toml" in one
    ]
    written, count = re.subn(r'sha256 = "\w+"', f'sha256 = "{done}"', keys)
    assert count == 1
    (tmp_path / "keys.toml").write_text(written)
    (tmp_path / "page.toml").write_text('backend = "Identity"')
    for name in ("server.pem", "server.key"):
        shutil.copyfile(certificates / name, tmp_path / name)
    arguments = serve_command("--keys")
    assert arguments[arguments.index("--host") + 1] == "0.0.0.0"
    process, url = start(*arguments, cwd=tmp_path)
    address = url.replace("0.0.0.0", "localhost")
    assert address.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with httpx.Client(base_url=address, verify=context) as client:
        for headers, status in (
            ({}, 401),
            ({"X-API-Key": "another"}, 401),
            ({"X-API-Key": key}, 200),
            ({"Authorization": f"Bearer {key}"}, 200),
        ):
            assert client.post("/run/page", content=b"x", headers=headers).status_code == status
        assert client.get("/v2", headers={"X-API-Key": key}).status_code == 403  # infer alone
        assert client.get("/v2/health/ready").status_code == 200
    process.terminate()
    assert process.wait(300) == 0


def test_the_live_page(tmp_path):
    configuration = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "size.toml").write_text(configuration)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "photo.jpg").write_bytes(bytes(100))
    commands = [shlex.split(one) for one in COMMANDS if one.startswith("headrace ui")]
    offered = []
    for command in commands:
        with subprocess.Popen(
            [sys.executable, "-m", *command, "--port", "0"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            process.stderr.readline()
            (url,) = re.findall(r"live page at (\S+)", process.stderr.readline())
            assert httpx.get(url).status_code == 200
            examples = httpx.get(f"{url}/models.json").json()["examples"]
            offered.append([one["name"] for one in examples])
            process.terminate()
            assert process.wait(300) == 0
    assert offered == [[], ["photo.jpg"]]
