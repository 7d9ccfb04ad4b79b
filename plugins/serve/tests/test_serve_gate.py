"""The gate before all routes: which hosts a request may name, and in which order host, key and limit are asked."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
import socket
from pathlib import Path

import grpc
import httpx
import pytest
import uvicorn

from headrace.errors import ConfigError
from headrace_serve import Limits, Server, asgi
from headrace_serve.grpc.messages import message
from headrace_serve.http.rest import application

IDENTITY = {"backend": "Identity"}
ALLOWED = ["repository"]
KEY = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"  # SHA-256 of "key"
README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[a]\nsha256 = "{KEY}"')
    return path


def asked(server, head, body=b""):
    """Send the bytes of a request, and return the status of its answer, and the whole answer."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall("\r\n".join([*head, "Connection: close", "", ""]).encode() + body)
        got = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(got.split(b" ", 2)[1]), got


def status(server, *hosts, target="/v2/health/live", method="GET", version="1.1", more=()):
    lines = [f"{method} {target} HTTP/{version}", *(f"Host: {one}" for one in hosts), *more]
    return asked(server, lines)[0]


def routes(server):
    """Return method and path of each route that a server has, with a word for each name in it, and some that it lacks."""
    found = [
        (method, re.sub(r"\{[^}]*\}", "m", route.path))
        for route in application(server._service).routes
        for method in route.methods or ()
    ]
    return [*found, ("GET", "/nothing"), ("PUT", "/run/m"), ("OPTIONS", "*"), ("HEAD", "/v2")]


def test_no_route_is_answered_to_a_page_whose_name_was_made_to_lead_here(serving):
    server = serving({"m": IDENTITY}, ui=True, allow=ALLOWED)
    before = server._service.models.find("m").pipe
    port = server.url.rpartition(":")[2]
    found = routes(server)
    assert {"/run/m", "/metrics", "/docs", "/openapi.json", "/v2/models/m/infer"} <= {
        path for _, path in found
    }
    for method, path in found:
        for host in (f"evil.example:{port}", "evil.example"):
            assert (
                status(server, host, target=path, method=method, more=[f"Origin: http://{host}"])
                == 403
            )
    assert server._service.models.find("m").pipe is before
    for method, path in found:
        assert status(server, f"localhost:{port}", target=path, method=method) != 403


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.8.9.1:8000", "[::1]", "[::1]:8000",
        "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "localhost:",
    ],
)  # fmt: skip
def test_a_client_of_this_machine_names_it_as_it_likes(plain, host):
    assert status(plain, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "evil.example@localhost",
        "localhost@evil.example", "localhost/", "localhost:x", "localhost..", "localhost,evil.example",
        "127.1", "2130706433", "0x7f000001", "0.0.0.0", "192.168.0.4", "[::2]", "[::1", "::1", "[::1]evil.example",
    ],
)  # fmt: skip
def test_every_other_host_is_403(plain, host):
    assert status(plain, host) == 403


def test_a_request_has_one_host_and_none_is_no_browser(serving):
    """RFC 9112, section 3.2; HTTP/1.0 has no Host."""
    server = serving({"m": IDENTITY}, allow=ALLOWED)
    assert status(server, version="1.0") == 200  # as the checks of HAProxy
    load = {"target": "/v2/repository/models/m/load", "method": "POST", "version": "1.0"}
    assert status(server, **load, more=["Origin: http://evil.example"]) == 403
    for hosts in (("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost",) * 2):
        assert status(server, *hosts) == 400
        assert status(server, *hosts, version="1.0") == 400
    assert status(server) == 400
    assert status(server, target="http://localhost/v2/health/live") == 400
    assert status(server, "localhost") == 200


@pytest.mark.parametrize("version", ["2.0", "0.9"])
def test_a_version_of_http_that_the_server_lacks_is_505(plain, version):
    """RFC 9110, section 15.6.6."""
    assert status(plain, "localhost", version=version) == 505


@pytest.mark.parametrize(
    "head",
    [
        ["GET /v2 HTTP/1.1", "Host: localhost"],
        ["GET /none HTTP/1.1", "Host: localhost"],
        ["GET /v2 HTTP/1.1"],
        ["POST /run/m HTTP/1.1", "Host: localhost", "Accept: text/event-stream", "Content-Length: 0"],
    ],
)  # fmt: skip
def test_every_answer_says_when_it_was_made(plain, head):
    """RFC 9110, section 6.6.1."""
    lines = asked(plain, head)[1].partition(b"\r\n\r\n")[0].split(b"\r\n")
    (date,) = (line[6:] for line in lines if line.lower().startswith(b"date: "))
    assert dt.datetime.strptime(date.decode(), "%a, %d %b %Y %H:%M:%S GMT")  # noqa: DTZ007


def test_a_whole_url_says_the_host_whatever_the_header_says(plain):
    """RFC 9112, section 3.2.2."""
    for target, header, expected in (
        ("http://evil.example/v2/health/live", "localhost", 403),
        ("http://evil.example:80/v2/health/live", "localhost", 403),
        ("http://localhost:80/v2/health/live", "evil.example", 200),
        ("http://[::1]:80/v2/health/live", "evil.example", 200),
        ("http://[::2]/v2/health/live", "localhost", 403),
    ):
        assert status(plain, header, target=target) == expected


def test_a_request_for_another_protocol_is_no_way_around(plain):
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    assert status(plain, "evil.example", more=upgrade) == 403
    assert status(plain, "localhost", more=upgrade) == 200


def test_a_preflight_request_passes_the_gate_too(serving):
    server = serving({"m": IDENTITY}, cors_origins=["*"])
    asks = ["Origin: http://page.example", "Access-Control-Request-Method: POST"]
    for host, expected in (("localhost", 200), ("evil.example", 403)):
        head = ["OPTIONS /run/m HTTP/1.1", f"Host: {host}", *asks]
        found, answer = asked(server, head)
        assert found == expected
        assert (b"access-control-allow-origin" in answer) == (expected == 200)


def test_the_port_of_those_who_operate_it_has_the_gate_too(serving):
    server = serving({"m": IDENTITY}, admin_port=0)
    for host, expected in (("localhost", 200), ("evil.example", 403)):
        answer = httpx.get(f"{server.admin_url}/v2/health/live", headers={"Host": host})
        assert answer.status_code == expected


def test_the_order_is_host_key_limit_route(serving, keys):
    limits = Limits(max_body_bytes=10)
    plain, keyed = (
        serving({"m": IDENTITY}, limits=limits, **more) for more in ({}, {"keys": keys})
    )
    large = ["Content-Length: 11"]

    def sent(server, host, *more):
        return asked(server, ["POST /run/m HTTP/1.1", f"Host: {host}", *large, *more], b"x" * 11)[0]

    assert sent(plain, "evil.example") == 403
    assert sent(plain, "localhost") == 413
    assert (
        sent(keyed, "models.example") == 401
    )  # with keys any name may be asked for: no page has a key
    assert sent(keyed, "models.example", "X-API-Key: key") == 413


def test_an_allowed_host_is_a_proxys_and_then_no_other_is(serving, keys):
    proxied = serving({"m": IDENTITY}, allow_hosts=["Models.Example", "10.0.0.7", "[fd00::7]"])
    for host in ("models.example", "MODELS.example:443", "10.0.0.7:80", "[fd00::7]", "localhost"):
        assert status(proxied, host) == 200
    assert status(proxied, "evil.example") == status(proxied, "sub.models.example") == 403
    for more in ({"host": "0.0.0.0"}, {"keys": keys}):
        assert status(serving({"m": IDENTITY}, **more), "evil.example") == 200
        named = serving({"m": IDENTITY}, **more, allow_hosts=["models.example"])
        assert status(named, "models.example") == 200
        assert status(named, "evil.example") == 403


@pytest.mark.parametrize("wrong", ["http://a.example", "a.example:80", "a b", "", "*"])
def test_what_is_no_host_is_not_allowed(wrong):
    with pytest.raises(ConfigError, match="is no host"):
        Server({"m": IDENTITY}, allow_hosts=[wrong])


def test_the_command_takes_hosts_in_all_its_processes(start, tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"')
    _, url = start(
        "m.toml", "--port", "0", "--workers", "2", "--allow-host", "models.example", cwd=tmp_path
    )
    for _ in range(8):  # each on a connection of its own
        for host, expected in (("models.example", 200), ("evil.example", 403)):
            answer = httpx.get(f"{url}/v2/health/live", headers={"Host": host})
            assert answer.status_code == expected


CALLS = [
    ("inference.GRPCInferenceService", "ServerLive"),
    ("inference.GRPCInferenceService", "ModelInfer"),
    ("inference.GRPCInferenceService", "RepositoryModelUnload"),
    ("grpc.health.v1.Health", "Check"),
]


def code(call, host):
    """Return the status with which a call ends that has a metadatum ``host``."""
    try:
        found = call(metadata=(("host", host),))
        for _ in found if hasattr(found, "__next__") else ():
            break
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_a_host_that_a_gateway_passes_on_is_asked_for_by_grpc_too(serving):
    server = serving({"m": IDENTITY}, grpc_port=0, allow=ALLOWED)
    denied = grpc.StatusCode.PERMISSION_DENIED
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        for service, name in CALLS:
            call = channel.unary_unary(f"/{service}/{name}")
            assert code(lambda call=call, **more: call(b"", **more), "evil.example:80") is denied
            assert code(lambda call=call, **more: call(b"", **more), "localhost:80") is not denied
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        infer = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        question = message("grpc.reflection.v1.ServerReflectionRequest")(list_services="")
        for call, sent in (
            (watch, b""),
            (infer, iter([b""])),
            (reflect, iter([question.SerializeToString()])),
        ):
            assert (
                code(lambda call=call, sent=sent, **more: call(sent, **more), "evil.example")
                is denied
            )
    assert server._service.models.find("m").ready


def test_what_a_browser_sends_is_no_grpc(serving):
    """Browsers speak HTTP/2 behind TLS alone, and the certificate is not one for the name of their page."""
    server = serving({"m": IDENTITY}, grpc_port=0)
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=30) as connection:
        connection.sendall(
            b"POST /inference.GRPCInferenceService/ServerLive HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/grpc\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0"
        )
        with contextlib.suppress(ConnectionError):
            assert not connection.recv(65536).startswith(b"HTTP/1.1 2")


def over_uvicorn(app, *requests):
    """Serve an application on a free port of the loopback, and return the statuses of requests."""

    async def ask():
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        (port,) = [one.getsockname()[1] for one in server.servers[0].sockets]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            found = [
                (await client.get("/v2/health/live", headers=one)).status_code for one in requests
            ]
        server.should_exit = True
        await task
        return found

    return asyncio.run(ask())


def test_an_application_in_another_server_asks_by_the_address_of_each_request(keys):
    evil, own = {"Host": "evil.example"}, {"Host": "localhost"}
    assert over_uvicorn(asgi({"m": IDENTITY}), own, evil) == [200, 403]
    assert over_uvicorn(asgi({"m": IDENTITY}, keys=keys), own, evil) == [200, 200]
    named = asgi({"m": IDENTITY}, allow_hosts=["evil.example"])
    assert over_uvicorn(named, own, evil) == [200, 200]

    async def elsewhere():
        transport = httpx.ASGITransport(asgi({"m": IDENTITY}))  # the address is that of the URL
        async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.1") as client:
            return (await client.get("/v2/health/live", headers=evil)).status_code

    assert asyncio.run(elsewhere()) == 200


def test_an_application_closes_websockets():
    said = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(one):
        said.append(one["type"])

    scope = {"type": "websocket", "path": "/run/m", "headers": [], "query_string": b""}
    asyncio.run(asgi({"m": IDENTITY})(scope, receive, send))
    assert said == ["websocket.close"]
