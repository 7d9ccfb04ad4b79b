"""What the README says of proxies: nginx, where it is installed, runs what is printed, and what Traefik is told is true of a server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading

import httpx
import pytest
from pages import Page
from serve_helpers import until

import headrace

SECTION = Page("plugins/serve/README.md", "Behind nginx or Traefik")
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
(HOST,) = re.findall(r"--allow-host (\S+)", SECTION.text)


@pytest.fixture
def read_first():
    """An event that the client sets when it has the first part."""
    return threading.Event()


@pytest.fixture
def server(serving, read_first):
    def words(data):
        yield "one"
        yield "two" if read_first.wait(60) else "the first part came late"

    headrace.register("ServeProxied", words, replace=True)
    return serving({"words": {"backend": "ServeProxied"}}, allow_hosts=[HOST], ui=True)


@pytest.fixture
def proxied(server, tmp_path):
    """A client of nginx, which has the configuration of the page in front of the server."""
    if NGINX is None:
        pytest.skip("needs nginx (apt-get install nginx)")
    address = server.url.removeprefix("http://")
    site = SECTION.block("nginx").replace("127.0.0.1:8000", address)
    assert address in site
    site = site.replace("listen 80;", f"listen unix:{tmp_path}/socket;")
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{name}_temp_path {tmp_path}/{name};\n" for name in temporary)
    log = "log_format ids $request_id; access_log access.log ids;\n"
    configuration = f"daemon off; pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{paths}{log}{site}}}\n"
    (tmp_path / "nginx.conf").write_text(configuration.replace("access.log", f"{tmp_path}/log"))
    command = [NGINX, "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr"]
    tried = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        # It listens once its number is written.
        until(lambda: (tmp_path / "pid").read_text() or process.poll() is not None)
        transport = httpx.HTTPTransport(uds=str(tmp_path / "socket"))
        try:
            with httpx.Client(transport=transport, base_url=f"http://{HOST}/ml/") as client:
                yield client
        finally:
            process.terminate()


def test_behind_nginx_all_is_below_the_prefix_and_ids_are_those_of_its_log(proxied, tmp_path):
    answers = [proxied.get(path) for path in ("v2/health/ready", "ui", "docs")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    linked = re.findall(r'(?:href|src)="([\w./]+)"', "".join(answer.text for answer in answers[1:]))
    assert {proxied.get(path).status_code for path in linked} == {200}
    identifiers = [answer.headers["x-request-id"] for answer in answers]
    assert (tmp_path / "log").read_text().splitlines()[:3] == identifiers
    assert "servers" not in proxied.get("openapi.json").json()


def test_behind_nginx_a_page_of_its_own_host_may_ask_and_another_may_not(proxied, read_first):
    read_first.set()
    asked = {
        origin: proxied.post("run/words", content=b"x", headers={"origin": origin}).status_code
        for origin in (f"http://{HOST}", "http://other.example")
    }
    assert asked == {f"http://{HOST}": 200, "http://other.example": 403}


def test_nginx_passes_each_part_on_at_once(proxied, read_first):
    accept = {"accept": "text/event-stream"}
    with proxied.stream("POST", "run/words", content=b"x", headers=accept) as answer:
        parts = (json.loads(one[6:]) for one in answer.iter_lines() if one.startswith("data: "))
        assert next(parts) == {"result": "one"}
        read_first.set()
        assert next(parts) == {"result": "two"}


def test_what_traefik_is_told_is_true_of_a_server(server):
    told = pytest.importorskip("yaml").safe_load(SECTION.block("yaml"))["http"]
    (router,) = told["routers"].values()
    prefixes = re.findall(r"PathPrefix\(`(.*?)/`\)", router["rule"])
    assert told["middlewares"][router["middlewares"][0]]["stripPrefix"]["prefixes"] == prefixes
    assert f"Host(`{HOST}`)" in router["rule"]
    balancer = told["services"][router["service"]]["loadBalancer"]
    assert balancer["servers"] == [{"url": "http://127.0.0.1:8000"}]
    checked = httpx.get(server.url + balancer["healthCheck"]["path"])
    forwarded = httpx.get(f"{server.url}/v2", headers={"host": HOST})
    assert (checked.status_code, forwarded.status_code) == (200, 200)
