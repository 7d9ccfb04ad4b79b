"""A port of its own for health, metrics and the repository."""

from __future__ import annotations

import re
import socket
import sys

import httpx
import pytest

from headrace_serve import Limits, Server


def connect(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_health_is_answered_while_clients_have_all_connections(serving):
    limits = Limits(max_connections=2)
    server = serving({"m": {"backend": "Identity"}}, admin_port=0, limits=limits)
    assert server.admin_port not in (0, server.port)
    with connect(server.url), connect(server.url) as second:
        # The answer shows that the server has both connections.
        second.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 503
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"):
            assert httpx.get(f"{server.admin_url}{path}").status_code == 200


def test_the_port_has_what_operators_ask_and_nothing_else(serving):
    server = serving({"m": {"backend": "Identity"}}, admin_port=0, allow=["repository"])
    url = server.admin_url
    assert httpx.get(f"{url}/metrics").status_code in (200, 501)
    assert httpx.post(f"{url}/v2/repository/index").json()[0]["state"] == "READY"
    for what in ("unload", "load"):
        assert httpx.post(f"{url}/v2/repository/models/m/{what}").status_code == 200
    assert httpx.post(f"{server.url}/run/m", content=b"x").status_code == 200
    for path in ("/run/m", "/v2/models/m/infer"):
        assert httpx.post(f"{url}{path}", content=b"x").status_code == 404
    server.drain()
    assert httpx.get(f"{url}/v2/health/ready").status_code == 503


def test_keys_hold_there_too(serving, tmp_path):
    (tmp_path / "keys.toml").write_text(
        '[a]\nsha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"'
    )
    model = {"m": {"backend": "Identity"}}
    server = serving(model, admin_port=0, keys=tmp_path / "keys.toml", allow=["repository"])
    url = f"{server.admin_url}/v2/repository/models/m/load"
    assert httpx.post(url).status_code == 401
    assert httpx.post(url, headers={"x-api-key": "key"}).status_code == 403
    assert httpx.get(f"{server.admin_url}/v2/health/ready").status_code == 200


def test_a_port_that_is_taken_or_given_twice_is_refused(serving):
    server = serving({"m": {"backend": "Identity"}})
    for ports in ({"port": 7, "admin_port": 7}, {"grpc_port": 7, "admin_port": 7}):
        with pytest.raises(ValueError, match=r"port and admin_port are both 7"):
            Server({"m": {"backend": "Identity"}}, **ports)
    with pytest.raises(Exception, match="cannot listen"):
        serving({"m": {"backend": "Identity"}}, admin_port=server.port)


@pytest.mark.skipif(sys.platform != "linux", reason="processes share a port on Linux")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_says_the_address(tmp_path, start, workers):
    (tmp_path / "m.toml").write_text('backend = "Identity"')
    args = ("m.toml", "--port", "0", "--admin-port", "0", "--workers", workers)
    process, _ = start(*args, cwd=tmp_path)
    found = re.match(r"health, metrics and repository also at (\S+)", process.stderr.readline())
    assert httpx.get(f"{found[1]}/v2/health/ready").json() == {"ready": True}
    process.terminate()
    assert process.wait(300) == 0
