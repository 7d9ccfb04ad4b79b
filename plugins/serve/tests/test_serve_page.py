"""The keys of the README, over TLS. tests/test_followed_pages.py runs its other commands."""

from __future__ import annotations

import re
import shutil
import ssl
import sys

import httpx
import pytest
from pages import Page, run, serving

PAGE = Page("plugins/serve/README.md")

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="a shell and signals of POSIX"),
    pytest.mark.first("serve over HTTP and gRPC, with models by name: the commands of the README"),
]


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_securing_it(tmp_path, certificates):
    key = "a long and random key"
    digest = run(PAGE.command("sha256sum"), tmp_path, KEY=key).split()[0]
    keys = PAGE.files["keys.toml"]
    written, count = re.subn(r'sha256 = "\w+"', f'sha256 = "{digest}"', keys)
    assert count == 1
    (tmp_path / "keys.toml").write_text(written)
    (tmp_path / "page.toml").write_text('backend = "Identity"')
    for name in ("server.pem", "server.key"):
        shutil.copyfile(certificates / name, tmp_path / name)
    command = PAGE.command("serve page.toml --host 0.0.0.0 --keys")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with (
        serving(f"{command} --port 0", tmp_path) as url,
        httpx.Client(base_url=url.replace("0.0.0.0", "localhost"), verify=context) as client,
    ):
        for headers, status in (
            ({}, 401),
            ({"X-API-Key": "another"}, 401),
            ({"X-API-Key": key}, 200),
            ({"Authorization": f"Bearer {key}"}, 200),
        ):
            assert client.post("/run/page", content=b"x", headers=headers).status_code == status
        assert client.get("/v2", headers={"X-API-Key": key}).status_code == 403  # infer alone
        assert client.get("/v2/health/ready").status_code == 200
