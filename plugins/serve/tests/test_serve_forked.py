"""An application that was built before a fork says so, and does not answer 503 for ever without a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PROGRAM = """
import asyncio, json, os, sys, warnings
import httpx
import headrace_serve

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: this is what is shown
app = headrace_serve.asgi({"m": {"backend": "Identity"}})


async def started():
    events, sent = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}], []

    async def receive():
        return events.pop(0)

    async def send(message):
        sent.append(message["type"])
        sent.extend(["says what to do"] if "without --preload" in message.get("message", "") else [])

    try:
        await app({"type": "lifespan", "state": {}}, receive, send)
    except Exception as error:
        sent.append(type(error).__name__)
    return sent


async def asked():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        paths = ("/run/m", "/run/m")
        return [(await client.post(path, content=b"x")).status_code for path in paths]


child = os.fork()
if child == 0:
    found = asyncio.run(started()) if sys.argv[1] == "lifespan" else asyncio.run(asked())
    print(json.dumps(found), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps(asyncio.run(asked())))
"""


def run(what):
    command = [sys.executable, "-c", PROGRAM, what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_start_of_a_forked_child_fails_and_says_what_to_do():
    (child, parent), said = run("lifespan")
    assert child[:2] == ["lifespan.startup.failed", "says what to do"]
    assert said.count("without --preload") == 1
    assert parent == [200, 200]


def test_where_no_lifespan_runs_the_first_request_says_it_once():
    (child, parent), said = run("requests")
    assert child == [503, 503]
    assert said.count("without --preload") == 1
    assert parent == [200, 200]
