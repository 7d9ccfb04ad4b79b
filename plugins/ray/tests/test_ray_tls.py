"""Where Ray uses TLS, so do the connections to actors."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import ray
from ray_programs import run_program

from headrace.errors import SetupError
from headrace_ray.tls import context

PROGRAM = """
import ray, headrace
for left in (2, 1, 0):
    try:
        ray.init("local", num_cpus=1, object_store_memory=80 << 20, include_dashboard=False)
        break
    except Exception:  # Ray waits 30 seconds for its parts, which is too short on a busy machine
        ray.shutdown()
        if not left:
            raise
with headrace.pipe({"backend": "RayActor(num_cpus=0.1)[Call(html:unescape)]"}) as pipe:
    print(pipe({"data": "fish &amp; chips"})["result"])
"""


@pytest.fixture
def certificates(tmp_path):
    """Make a certificate for this machine, which is its own root; return the variables of Ray."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = f"subjectAltName=IP:127.0.0.1,IP:{ray.util.get_node_ip_address()},DNS:localhost"
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-addext", names]
    subprocess.run(command, check=True, capture_output=True)
    files = {"SERVER_CERT": cert, "SERVER_KEY": key, "CA_CERT": cert}
    return {"RAY_USE_TLS": "1", **{f"RAY_TLS_{name}": str(one) for name, one in files.items()}}


def test_a_cluster_with_tls_has_it_on_the_connections_too(tmp_path, certificates):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = run_program(path, **certificates)
    assert (done.returncode, done.stdout) == (0, "fish & chips\n"), done.stderr


def test_both_sides_show_their_certificate(certificates, monkeypatch):
    for name, value in certificates.items():
        monkeypatch.setenv(name, value)
    here, there = context(server=False), context(server=True)
    assert here.verify_mode == there.verify_mode
    assert here.check_hostname
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", "/nowhere")
    with pytest.raises(SetupError, match="RAY_TLS_SERVER_KEY"):
        context(server=True)
    monkeypatch.setenv("RAY_USE_TLS", "0")
    assert context(server=True) is None
