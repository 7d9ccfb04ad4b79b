"""The heads of answers: whatever bytes follow, a browser neither guesses their type nor runs them in the server's name."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

import headrace
from headrace_serve import Limits
from headrace_serve.http.rest import application

IDENTITY = {"backend": "Identity"}
PAGES = {"/ui", "/ui/style.css", "/ui/live.js"}


def said(server, sent):
    """Send the bytes of requests, and give the heads of all answers until the connection ends, each as a dict."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        got = b"".join(iter(lambda: connection.recv(65536), b"")).decode("latin-1")
    heads = re.findall(r"(HTTP/1\.1 \d{3}.*?)\r\n\r\n", got, re.DOTALL)
    return [
        dict(line.lower().split(": ", 1) for line in one.split("\r\n")[1:]) | {"": one[9:12]}
        for one in heads
        if not one.startswith("HTTP/1.1 100")
    ]


def is_guarded(head, *, page=False):
    policy = head["content-security-policy"]
    return head["x-content-type-options"] == "nosniff" and ("sandbox" in policy) != page


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ["*"]}])
def test_every_route_has_the_guards(serving, settings):
    server = serving({"m": IDENTITY}, ui=True, allow=["repository"], **settings)
    found = {
        (method, re.sub(r"\{[^}]*\}", "m", route.path))
        for route in application(server._service).routes
        for method in route.methods or ()
    }
    found |= {("GET", one) for one in PAGES} | {("PUT", "/run/m"), ("GET", "/no"), ("OPTIONS", "*")}
    assert len(found) > 60
    for method, path in sorted(found):
        request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        for more in ("", "Accept: text/html\r\nOrigin: http://localhost\r\n"):
            (head,) = said(server, f"{request}{more}Content-Length: 0\r\n\r\n".encode())
            is_page = path in PAGES and head[""] == "200"
            assert is_guarded(head, page=is_page), (method, path, head)


@pytest.mark.parametrize(
    "sent",
    [
        b"no HTTP\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nx: " + b"x" * 600 + b"\r\n\r\n",
        b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n",
        b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        (
            b"OPTIONS /run/m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: https://a.example\r\n"
            b"Access-Control-Request-Method: POST\r\n\r\n"
        ),
        (
            b"OPTIONS /run/m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: https://b.example\r\n"
            b"Access-Control-Request-Method: POST\r\n\r\n"
        ),
        (
            b"POST /run/m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/event-stream\r\n"
            b"Content-Length: 1\r\n\r\n1"
        ),
    ],
    ids=lambda sent: sent[:14].decode(),
)
def test_answers_of_no_route_have_them_too(serving, sent):
    limits = Limits(max_header_bytes=500, min_rate_bytes_s=1000, rate_window_s=0.05)
    server = serving({"m": IDENTITY}, limits=limits, cors_origins=["https://a.example"])
    (head,) = said(server, sent)
    assert is_guarded(head), head


def test_a_connection_beyond_the_limit_is_refused_with_them(serving):
    server = serving({"m": IDENTITY}, limits=Limits(max_connections=1))
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        first.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(65536)
        (head,) = said(server, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (head[""], head["retry-after"], is_guarded(head)) == ("503", "1", True)


SAFE = {
    "application/json",
    "application/octet-stream",
    "text/plain",
    "text/event-stream",
    "image/png",
}


@pytest.mark.parametrize("accept", [
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    "text/html", "text/css", "application/xml", "application/pdf", "image/svg+xml", "x/y", "TEXT/HTML;level=1",
    "text/html;charset=utf-7", "application/x-shockwave-flash", "image/*", "text/event-stream", "message/rfc822",
])  # fmt: skip
def test_no_client_names_the_type_of_what_a_model_gives(serving, accept):
    for given in (b"<script>", b"\xff<script>", b"\x89PNG\r\n\x1a\n<script>", "<script>"):
        headrace.register("ServeGiven", lambda _, given=given: given, replace=True)
        server = serving({"m": {"backend": "ServeGiven"}})
        for path in ("/run/m", "/v2/models/m/infer", "/v2/models/m/generate"):
            body = b"x" if path == "/run/m" else b'{"inputs": []}'
            answer = httpx.post(server.url + path, content=body, headers={"accept": accept})
            assert answer.headers["content-type"].partition(";")[0] in SAFE
            assert answer.headers["x-content-type-options"] == "nosniff"
        server.close()


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_form_of_another_site_runs_nothing_in_the_servers_name(serving, tmp_path):
    server = serving({"m": IDENTITY, "n": IDENTITY}, allow=["repository"])
    script = "fetch('/v2/repository/models/n/unload', {method: 'POST'})"
    field = f"<script>{script}</script>"
    page = (
        f"<form id=f method=post enctype=text/plain action='{server.url}/run/m'>"
        f'<input name="{field}" value=x></form><script>f.submit()</script>'
    ).encode()
    asked = threading.Event()

    class Site(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.set()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        address = f"http://localhost:{site.server_port}/"
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=4000", "--dump-dom"]
        done = subprocess.run([*command, address], capture_output=True, timeout=120, check=False)
        site.shutdown()
    assert asked.is_set()
    assert b"not_allowed" in done.stdout
    assert httpx.post(f"{server.url}/run/n", content=b"x").status_code == 200
