"""What is checked without a network, what `init` reads, encryption, and who is warned."""

from __future__ import annotations

import json
import logging
import pickle
import socket

import grpc
import numpy as np
import pytest
from certificate_files import write_certificates
from processes import run_python
from remote_servers import ROWS, StandIn

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_remote import ConnectionLostError, Remote, ServersAwayError
from headrace_serve import Tls


def test_check_needs_no_network_and_loads_neither_grpc_nor_numpy():
    code = (
        "import sys, headrace;"
        "config = {'backend': 'Remote(page)', 'urls': ['nowhere.invalid:1'], 'max': 8};"
        "headrace.PipelineConfig.load(config); headrace.explain(config);"
        "print(sorted({'grpc', 'numpy', 'google.protobuf'} & set(sys.modules)))"
    )
    done = run_python(code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_by_auto_as_many_instances_wait_for_the_servers_as_there_are_threads():
    config = {"backend": "Remote(m)", "urls": ["a:1"], "instance_num": "auto"}
    node = headrace.explain({**config, "global": {"threads": 5}})["nodes"]["main"]
    assert node["instance_num"] == 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"urls": []}, "at least 1"),
        ({"urls": ["gpu1"]}, "'gpu1' is no address host:port"),
        ({"urls": ["http://gpu1:8001"]}, "without http:// or grpc://"),
        ({"urls": ["gpu1:0"]}, "no address"),
        ({"urls": ["gpu1:70000"]}, "no address"),
        ({"urls": ["a:1", "a:1"]}, "'a:1' is listed twice"),
        ({"urls": ["a:1"], "tls_cert": __file__}, "tls_cert and tls_key go together"),
        ({"urls": ["a:1"], "tls_ca": "missing.pem"}, "missing.pem"),
        ({"urls": ["a:1"], "key": "a\nb"}, "printable ASCII"),
        ({"urls": ["a:1"], "batched": True, "unbatched": ["x"]}, "exclude each other"),
        ({"urls": ["a:1"], "when_away": "sleep"}, "'wait' or 'refuse'"),
        ({"urls": ["a:1"], "retrys": 2}, "retries"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_built(options, text):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": "Remote(m)", **options})
    assert text in str(caught.value)


def test_the_addresses_of_ipv6_and_of_sockets_are_read():
    urls = ["[::1]:8001", "unix:/run/headrace.sock", "gpu1.example:8001"]
    assert Remote.Options(model="m", urls=urls).urls == tuple(urls)


def test_no_server_is_a_setup_error_that_names_all(stand_in, remote):
    servers = [stand_in(), stand_in()]
    for one in servers:
        one.stop()
    with pytest.raises(SetupError) as caught:
        remote([one.url for one in servers])
    assert all(f"{one.url}: UNAVAILABLE" in str(caught.value) for one in servers)
    assert "--grpc-port" in caught.value.hint


def test_a_model_that_is_not_served_is_a_setup_error_with_the_servers_words(serving, remote):
    with pytest.raises(SetupError, match="Request for unknown model: 'rowz' is not found"):
        remote([serving({"rows": ROWS})], "rowz")


def test_one_of_two_servers_is_enough_to_start(stand_in, remote, caplog):
    servers = [stand_in(), stand_in()]
    servers[0].stop()
    with caplog.at_level(logging.WARNING, "headrace"):
        pipe = remote([one.url for one in servers], health_ms=60_000)
    assert f"{servers[0].url} counts as away" in caplog.text
    assert pipe({"data": [1, 2, 3]})["result"].tolist() == [2, 4, 6]


def test_servers_with_different_models_are_refused(stand_in, remote):
    other = {
        "name": "m",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }
    servers = [stand_in(), stand_in(metadata=other)]
    with pytest.raises(SetupError, match="different models"):
        remote([one.url for one in servers])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inputs": {"xx": "a"}}, "`inputs` names 'xx'"),
        ({"outputs": ["z"]}, "`outputs` names 'z'"),
        ({"unbatched": ["xy"]}, "`unbatched` names 'xy'"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused_with_its_names(
    stand_in, remote, options, text
):
    with pytest.raises(SetupError) as caught:
        remote([stand_in().url], **options)
    assert text in str(caught.value)
    assert caught.value.hint.startswith(("There are: ", "Did you mean"))


def test_a_batch_axis_that_the_model_lacks_is_refused(stand_in, remote):
    fixed = {
        "name": "m",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3]}],
    }
    server = stand_in(metadata=fixed)
    with pytest.raises(SetupError, match="first axis of 'x' is not of any length"):
        remote([server.url], batched=True)
    whole = np.ones((2, 3), np.float32)
    assert remote([server.url])({"data": whole})["result"].tolist() == (2 * whole).tolist()


def test_the_node_has_one_connection_per_server_and_tells_its_state(stand_in, remote):
    server = stand_in()
    pipe = remote([server.url], instance_num=3)
    built = pipe.describe()["nodes"]["main"]["tree"]["built"]
    assert built["servers"] == [{"url": server.url, "state": "there", "outstanding": 0}]
    assert built["inputs"] == {
        "x": {"key": "data", "dtype": "float32", "shape": [None, 3], "batched": True}
    }
    json.dumps(built)


@pytest.mark.parametrize("url", ["10.0.0.1:8001", "gpu1:8001", "127.0.0.1:1", "[::1]:1"])
@pytest.mark.parametrize("tls", [False, True])
def test_plain_text_beyond_this_machine_is_warned_about_once(url, tls, caplog):
    from headrace_remote.servers import warn_of_plain_text

    options = Remote.Options(model="m", urls=[url, "unix:/x"], tls=tls, key="k")
    with caplog.at_level(logging.WARNING, "headrace"):
        warn_of_plain_text(options, logging.getLogger("headrace.backend"))
    far = url.startswith(("10.", "gpu"))
    assert len(caplog.records) == (far and not tls)
    if caplog.records:
        assert f"requests and the key travel to {url} in plain text" in caplog.text


def test_neither_explain_nor_describe_shows_the_key(stand_in, remote):
    server = stand_in()
    config = {"backend": "Remote(m)", "urls": [server.url], "key": "sesame"}
    assert "sesame" not in json.dumps(headrace.explain(config))
    assert "sesame" not in json.dumps(remote([server.url], key="sesame").describe())
    assert "sesame" not in repr(Remote.Options(model="m", urls=["a:1"], key="sesame"))


@pytest.mark.parametrize("error", [ConnectionLostError("a"), ServersAwayError("b")])
def test_the_errors_can_be_pickled(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, str(again)) == (type(error), error.code, str(error))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("tls"))


def test_tls_with_certificates_of_both_sides(certificates, serving, remote):
    server, client = (certificates / f"{name}.pem" for name in ("server", "client"))
    root = certificates / "ca.pem"
    tls = Tls(cert=server, key=server.with_suffix(".key"), client_ca=root)
    url = serving({"m": ROWS}, tls=tls)
    shown = {"tls_cert": str(client), "tls_key": str(client.with_suffix(".key"))}
    pipe = remote([url], tls_ca=str(root), **shown)
    assert pipe({"data": [1, 2, 3]})["result"].tolist() == [1, 2, 3]
    for less in ({"tls_ca": str(root)}, {"tls": True, **shown}, {}):
        with pytest.raises(SetupError, match="no server describes"):
            remote([url], **less)


def test_the_key_opens_a_server_with_keys(serving, remote, tmp_path):
    import hashlib

    keys = tmp_path / "keys.toml"
    keys.write_text(f'[me]\nsha256 = "{hashlib.sha256(b"open").hexdigest()}"\n')
    url = serving({"m": ROWS}, keys=keys)
    assert remote([url], key="open")({"data": [1, 2, 3]})["result"].tolist() == [1, 2, 3]
    with pytest.raises(SetupError, match="UNAUTHENTICATED"):
        remote([url], key="shut")


def test_the_client_sends_what_it_is_asked_over_tls_only(certificates):
    key, chain = ((certificates / f"server.{end}").read_bytes() for end in ("key", "pem"))
    server = StandIn(credentials=grpc.ssl_server_credentials([(key, chain)]))
    try:
        config = {"backend": "Remote(m)", "urls": [server.url], "max": 8}
        with headrace.pipe({**config, "tls_ca": str(certificates / "ca.pem")}) as pipe:
            assert pipe({"data": [1, 2, 3]})["result"].tolist() == [2, 4, 6]
    finally:
        server.stop()


def test_no_proxy_of_the_environment_gets_the_requests(serving, remote, monkeypatch):
    """gRPC sends the calls of every channel to ``http_proxy``, also those to this machine."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, address)
        pipe = remote([serving({"m": {"backend": "Identity"}})])
        assert pipe({"data": b"x"})["result"] == b"x"
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
