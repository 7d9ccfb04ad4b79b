"""Certificates of servers and of clients, by OpenSSL."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def write_certificates(folder: Path) -> Path:
    """Write a root, certificates of a server and of a client that it signed, and a client of another root."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")

    def run(*args: str) -> None:
        subprocess.run([program, *args], cwd=folder, check=True, capture_output=True)

    # From Python 3.13 on, clients refuse a root that does not say what its key is for.
    signs = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "other-ca"):
        files = ["-keyout", f"{ca}.key", "-out", f"{ca}.pem"]
        run("req", "-x509", *curve, *files, *signs, "-subj", f"/CN={ca}", "-days", "30")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    (folder / "ext").write_text(f"{names}\nauthorityKeyIdentifier=keyid\n")
    for name, ca in (("server", "ca"), ("client", "ca"), ("other-client", "other-ca")):
        run("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
            "-CAcreateserial", "-out", f"{name}.pem", "-days", "30", "-extfile", "ext",
        )  # fmt: skip
    return folder
