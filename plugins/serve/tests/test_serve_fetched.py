"""Models whose files were fetched, or may not be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import httpx
import pytest
from serve_helpers import refused

import headrace
from headrace_serve.models.entries import read_models

TEXT = "from afar"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()
ADDRESS = f"https://models.example/words.txt#sha256={DIGEST}"
ORIGIN = {"address": ADDRESS, "revision": "r1", "files": {"words.txt": DIGEST}}


@headrace.register("ReadsWords", replace=True)
class ReadsWords(headrace.Backend):
    """Give the text of a file."""

    class Options(headrace.Options):
        """A file."""

        path: headrace.FilePath

    def init(self, options, _context):
        """Read it."""
        self.text = options.path.read_text()

    def forward(self, batch):
        """Give it."""
        for request in batch:
            request["result"] = self.text


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Have the file of the address in the cache, as an earlier build has left it."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("HEADRACE_OFFLINE", "1")
    found = headrace.explain({"backend": "ReadsWords", "path": ADDRESS})["nodes"]["main"]
    place = Path(found["tree"]["options"]["path"]["value"])
    place.parent.mkdir(parents=True)
    place.write_text(TEXT)
    (place.parents[1] / "origin.json").write_text(json.dumps(ORIGIN))
    return place


def test_the_protocol_shows_address_revision_and_digest_of_what_runs(fetched, serving):
    secret = ADDRESS.replace("#", "?X-Amz-Signature=SECRET#")
    server = serving({"words": {"backend": "ReadsWords", "path": secret}})
    found = httpx.get(f"http://127.0.0.1:{server.port}/v2/models/words/config").json()
    assert found["parameters"] == {ADDRESS: {"string_value": f"r1 sha256={DIGEST}"}}
    assert fetched.exists()


def test_a_model_without_addresses_has_no_such_parameters(serving):
    server = serving({"plain": {"backend": "Identity"}})
    found = httpx.get(f"http://127.0.0.1:{server.port}/v2/models/plain/config").json()
    assert "parameters" not in found


def test_an_address_is_a_model_of_the_name_of_its_file(fetched):
    assert read_models([ADDRESS, f"other={ADDRESS}"], None) == {
        "words": str(fetched),
        "other": ADDRESS,
    }


@pytest.mark.parametrize("switch", [["--no-fetch"], []])
def test_a_server_that_may_not_fetch_says_what_it_lacks(tmp_path, monkeypatch, switch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("HEADRACE_OFFLINE", "0" if switch else "1")
    said = refused("serve", "--port", "0", *switch, ADDRESS)
    assert f"{ADDRESS} is not here, and nothing may be fetched" in said
    assert [*tmp_path.iterdir()] == []
