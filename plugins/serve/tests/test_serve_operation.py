"""Keys, TLS, reloading and the access log."""

from __future__ import annotations

import hashlib
import logging
import queue
import re
import shutil
import signal
import ssl
import sys

import grpc
import httpx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_serve import Keys, Server, Tls, asgi


@pytest.fixture
def keys(tmp_path):
    rows = {
        "all": ("secret-of-all", ""),
        "reader": ("secret-of-reader", 'rights = ["describe"]\n'),
        "one": ("secret-of-one", 'models = ["a"]\n'),
    }
    text = ""
    for name, (key, more) in rows.items():
        text += f'[{name}]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}'
    (tmp_path / "keys.toml").write_text(text)
    return tmp_path / "keys.toml"


def test_keys_open_what_they_are_good_for(serving, keys):
    server = serving(
        {"a": {"backend": "Identity"}, "b": {"backend": "Identity"}}, keys=Keys.load(keys)
    )

    def status(path, key=None, method="GET", header="x-api-key"):
        headers = {} if key is None else {header: key}
        return httpx.request(
            method, f"{server.url}{path}", headers=headers, content=b""
        ).status_code

    assert status("/v2/health/ready") == status("/v2/health/live") == 200
    assert status("/v2") == status("/v2", "wrong") == status("/run/a", method="POST") == 401
    assert status("/v2", "Bearer secret-of-all", header="authorization") == 200
    assert status("/run/a", "secret-of-all", "POST") == 200
    assert status("/v2/models/b", "secret-of-reader") == 200
    assert status("/run/a", "secret-of-reader", "POST") == 403
    assert status("/run/a", "secret-of-one", "POST") == 200
    assert status("/run/b", "secret-of-one", "POST") == 403
    assert status("/v2/models/b", "secret-of-one") == 403
    assert httpx.get(f"{server.url}/v2").headers["www-authenticate"] == "Bearer"
    body = httpx.get(f"{server.url}/openapi.json", headers={"x-api-key": "secret-of-all"}).json()
    assert body["security"] == [{name: []} for name in body["components"]["securitySchemes"]]
    assert body["paths"]["/v2/models/a/ready"]["get"]["security"] == []
    assert "security" not in body["paths"]["/v2/models/a"]["get"]
    unknown = httpx.get(f"{server.url}/v2/models/c/ready")  # which needs no key, and tells no names
    assert unknown.status_code == 404
    assert unknown.json()["error"] == "Request for unknown model: 'c' is not found"


def test_keys_may_be_the_path_of_their_file(serving, keys):
    server = serving({"a": {"backend": "Identity"}}, keys=str(keys))
    assert httpx.post(f"{server.url}/run/a").status_code == 401
    keys.write_text(f'[new]\nsha256 = "{hashlib.sha256(b"other").hexdigest()}"\n')
    server.reload()
    assert httpx.post(f"{server.url}/run/a", headers={"x-api-key": "other"}).status_code == 200
    keys.write_text("[new")
    for given in ({}, {"keys": keys}):
        with pytest.raises(ConfigError, match="this is no TOML"):
            server.reload(**given)
    assert httpx.post(f"{server.url}/run/a", headers={"x-api-key": "other"}).status_code == 200
    with pytest.raises(TypeError, match="the path of a file, got 5"):
        Server({"a": {"backend": "Identity"}}, keys=5)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"port": 70000}, ValueError, "port is a number from 0 to 65535, got 70000"),
        ({"grpc_port": "8001"}, ValueError, "grpc_port is a number"),
        ({"limits": 5}, TypeError, "expected headrace_serve.Limits, got 5"),
        ({"tls": ("a", "b")}, TypeError, "expected headrace_serve.Tls"),
        ({"port": 8123, "grpc_port": 8123}, ValueError, "are both 8123"),
    ],
)
def test_a_server_is_told_what_it_cannot_be_given(given, error, words):
    with pytest.raises(error, match=words):
        Server({"a": {"backend": "Identity"}}, **given)
    if "limits" in given:
        with pytest.raises(error, match=words):
            asgi({"a": {"backend": "Identity"}}, **given)


def test_a_key_names_models_that_are_there_also_after_a_reload(serving, keys):
    a, b = {"backend": "Identity"}, {"backend": "Identity"}
    with pytest.raises(ConfigError, match="'a', which is not served"):
        Server({"b": b}, keys=keys)
    with pytest.raises(ConfigError, match="'a', which is not served"):
        asgi({"b": b}, keys=keys)
    server = serving({"a": a, "b": b}, keys=keys, allow=["repository"])
    for changed in ({"models": {"b": b}}, {"models": {"b": b}, "keys": keys}):
        with pytest.raises(ConfigError, match="'a', which is not served"):
            server.reload(**changed)
    keys.write_text(keys.read_text().replace('models = ["a"]', 'rights = ["repository"]'))
    server.reload({"b": b}, keys=keys)
    url, key = f"{server.url}/v2/repository/models", {"x-api-key": "secret-of-one"}
    keys.write_text(keys.read_text().replace('rights = ["repository"]', 'models = ["b"]'))
    assert httpx.post(f"{url}/b/unload", headers=key).status_code == 200
    server.reload(keys=keys)  # a model that is unloaded is one of the served models


def test_keys_hold_for_grpc_too(serving, keys):
    server = serving({"a": {"backend": "Identity"}}, keys=Keys.load(keys), grpc_port=0)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as c:
        assert c.is_server_ready()
        for key, status in (
            (None, "UNAUTHENTICATED"),
            ("no", "UNAUTHENTICATED"),
            ("secret-of-one", ""),
        ):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            if not status:
                for blank in ({"x-api-key": f" {key}"}, {"authorization": f" Bearer {key}"}):
                    assert c.get_model_metadata("a", headers=blank).name == "a"
                assert c.get_model_metadata("a", headers=headers).name == "a"
                continue
            with pytest.raises(InferenceServerException) as caught:
                c.get_model_metadata("a", headers=headers)
            assert caught.value.status() == f"StatusCode.{status}"
            errors = queue.SimpleQueue()
            c.start_stream(lambda result, error, errors=errors: errors.put(error), headers=headers)
            error = errors.get(timeout=60)
            c.stop_stream()
            assert error.status() == f"StatusCode.{status}"


SHA256 = f"sha256 = '{'0' * 64}'"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it holds no key"),
        ("x = 1", "x: Input should be a table$"),
        ("[a]\nsha256 = 'abc'", "a.sha256: "),
        ("[a]\nrights = []", "a.sha256: "),
        (f"[a]\n{SHA256}\nright = []", "(?s)a.right: there is no such key.*'rights'"),
        (f"[a]\n{SHA256}\n[b]\n{SHA256}", "keys 'a' and 'b' have the same sha256"),
        (f"[a]\n{SHA256}\nrights = ['infr']", "(?s)a.rights.0: .*Did you mean 'infer'"),
        ("[", "keys.toml: this is no TOML: "),
    ],
)
def test_a_wrong_file_of_keys_is_refused(tmp_path, text, words):
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        Keys.load(tmp_path / "keys.toml")


def test_tls_for_both_protocols_with_certificates_of_clients(serving, certificates):
    folder = certificates
    tls = Tls(*(str(folder / name) for name in ("server.pem", "server.key", "ca.pem")))
    server = serving({"m": {"backend": "Identity"}}, tls=tls, grpc_port=0)
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with pytest.raises((httpx.HTTPError, OSError)):
        httpx.get(f"{server.url}/v2", verify=context)
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    assert httpx.post(f"{server.url}/run/m", content=b"a", verify=context).content == b"a"
    roots, key, chain = (
        (folder / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem")
    )
    for pair, works in (((key, chain), True), ((None, None), False)):
        credentials = grpc.ssl_channel_credentials(roots, *pair)
        with triton_grpc.InferenceServerClient(
            f"localhost:{server.grpc_port}", creds=credentials, ssl=True
        ) as c:
            if works:
                assert c.is_server_ready()
            else:
                with pytest.raises(InferenceServerException):
                    c.is_server_ready()
    with pytest.raises(ConfigError, match="TLS"):
        Tls(str(folder / "ca.pem"), str(folder / "server.key")).read()
    for roots in ("missing.pem", "ext"):
        files = [str(folder / name) for name in ("server.pem", "server.key", roots)]
        with pytest.raises(ConfigError, match="cannot use the files of TLS") as caught:
            Tls(*files).read()
        assert caught.value.problems[0].file == files[2]


def test_a_reload_reads_certificates_and_the_roots_of_clients_again(
    serving, certificates, tmp_path
):
    def install(*names):
        for name, source in zip(("cert", "key", "roots"), names, strict=True):
            shutil.copy(certificates / source, tmp_path / name)

    def admitted(client):
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        context.load_cert_chain(certificates / f"{client}.pem", certificates / f"{client}.key")
        try:
            over_http = httpx.get(f"{server.url}/v2", verify=context).status_code == 200
        except (httpx.HTTPError, OSError):
            over_http = False
        files = ("ca.pem", f"{client}.key", f"{client}.pem")
        pem = [(certificates / name).read_bytes() for name in files]
        address = f"localhost:{server.grpc_port}"
        with triton_grpc.InferenceServerClient(
            address, creds=grpc.ssl_channel_credentials(*pem), ssl=True
        ) as c:
            try:
                over_grpc = c.is_server_ready()
            except InferenceServerException:
                over_grpc = False
        assert over_http == over_grpc
        return over_http

    install("server.pem", "server.key", "ca.pem")
    tls = Tls(*(str(tmp_path / name) for name in ("cert", "key", "roots")))
    server = serving({"m": {"backend": "Identity"}}, tls=tls, grpc_port=0)
    assert admitted("client")
    assert not admitted("other-client")
    install("server.pem", "client.key", "other-ca.pem")
    with pytest.raises(ConfigError, match="TLS"):
        server.reload()
    assert admitted("client")  # with the certificate that was read before, and its key
    assert not admitted("other-client")
    install("server.pem", "server.key", "other-ca.pem")
    server.reload()
    assert admitted("other-client")
    assert not admitted("client")


def test_code_that_exits_in_a_reload_does_not_end_the_server(serving):
    exits = False

    class Leaves(headrace.Backend):
        def init(self, options, context):
            if exits:
                sys.exit(3)

        def forward(self, batch):
            for request in batch:
                request["result"] = "old"

    headrace.register("ServeLeaves", Leaves, replace=True)
    server = serving({"m": {"backend": "ServeLeaves"}}, allow=["repository"])
    exits = True
    with pytest.raises(SetupError, match=r"'m'.*sys\.exit"):
        server.reload({"m": {"backend": "ServeLeaves", "queue_size": 9}})
    load = f"{server.url}/v2/repository/models/m/load"
    assert httpx.post(load).json()["code"] == "setup"
    assert httpx.post(f"{server.url}/run/m", content=b"x").json() == {"result": "old"}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_sighup_reads_the_configurations_again(tmp_path, start):
    path = tmp_path / "a.toml"
    path.write_text('backend = "Identity"\nmax = 3')
    process, url = start(
        "a.toml", "--port", "0", "--access-log", "--drain-delay", "0.01", cwd=tmp_path
    )
    path.write_text('backend = "Identitee"')
    process.send_signal(signal.SIGHUP)
    said = ""
    while "nothing has changed" not in said:
        said += process.stderr.readline()
    assert "Identitee" in said
    path.write_text('backend = "Identity"\nmax = 5')
    process.send_signal(signal.SIGHUP)
    assert process.stderr.readline() == "reloaded\n"
    assert httpx.post(f"{url}/run/a", content=b"x").status_code == 200
    assert "POST /run/{model} model=a status=200" in process.stderr.readline()
    process.terminate()
    assert process.wait(300) == 0
    process.stderr.close()


HANGS = """
import os, pathlib, signal
import headrace

@headrace.register("Hangs")
class Hangs(headrace.Backend):
    def init(self, options, context):
        pathlib.Path(__file__).with_name("a.toml").write_text('backend = "Identity"')
        os.kill(os.getpid(), signal.SIGHUP)

    def forward(self, batch):
        for request in batch:
            request["result"] = "of the file that was there at the start"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_sighup_while_models_are_built_is_answered_once_they_are(tmp_path, start):
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "a.toml").write_text('import = ["hangs.py"]\nbackend = "Hangs"')
    process, url = start("a.toml", "--port", "0", cwd=tmp_path)
    assert process.stderr.readline() == "reloaded\n"
    assert httpx.post(f"{url}/run/a", content=b"x").content == b"x"
    process.terminate()
    assert process.wait(300) == 0
    process.stderr.close()


def test_draining_says_not_ready_first(serving):
    server = serving({"m": {"backend": "Identity"}})
    server.drain()
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 503
    assert httpx.get(f"{server.url}/v2/models/m/ready").status_code == 503
    assert httpx.post(f"{server.url}/run/m", content=b"x").status_code == 200


def test_the_access_log_has_a_line_a_request_and_nothing_of_its_content(serving, caplog):
    server = serving({"m": {"backend": "ServePicky"}}, grpc_port=0)
    caplog.set_level(logging.INFO, "headrace.serve.access")
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    given = triton.InferInput("data", [1], "BYTES")
    import numpy as np

    given.set_data_from_numpy(np.array([b"private"], object))
    client.infer("m", [given], request_id="id\n7", headers={"x-secret": "private"})
    httpx.post(f"{server.url}/run/m?timeout=7000000000", content=b"bad private")
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as c:
        given = triton_grpc.InferInput("data", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"private"], object))
        c.infer("m", [given])
    server.close()
    lines = [one.getMessage() for one in caplog.records if one.name == "headrace.serve.access"]
    assert len(lines) == 3
    first, second, third = lines
    assert first.startswith("POST /v2/models/{model}/infer model=m status=200 code=- id='id\\n7' ")
    assert re.search(
        r"sent_bytes=[1-9]\d* receive_ms=\d\S+ queue_ms=\d\S+ run_ms=\d\S+ send_ms=\d", first
    )
    assert "status=400 code=input" in second
    assert third.startswith("ModelInfer model=m status=OK")
    assert not any(word in "".join(lines) for word in ("private", "7000000", "secret"))
