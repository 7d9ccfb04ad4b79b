"""Certify the backends of a distribution of this repository, for its wheel: ``certificate.json`` in its folder.

python scripts/certify.py DISTRIBUTION     exit 1 if a backend breaks a rule

A backend whose device is missing here stops nothing: the certificate names it as not certified. What offers no
conformance class of backends of its own has no certificate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import distributions

BAD = ("failed", "blocked", "unexpected_pass")
"""The outcomes of rules that no missing device explains."""


def is_good(certificate: dict[str, Any]) -> bool:
    """Return whether a backend keeps all rules that can be judged on this machine."""
    judged = certificate["certified"] or certificate["unavailable"] is not None
    return judged and not any(rule["outcome"] in BAD for rule in certificate["rules"])


def certify(folder: Path) -> bool:
    """Write the certificate of the distribution in a folder; return whether all its backends are good."""
    project = distributions.project(folder)
    if not {"headrace.backends", "headrace.conformance"} <= {*project.get("entry-points", {})}:
        return True
    file = folder / "certificate.json"
    command = [sys.executable, "-m", "headrace", "conformance", project["name"]]
    if subprocess.run([*command, "--certificate", file], check=False).returncode not in (0, 1):
        return False
    told = json.loads(file.read_text(encoding="utf-8"))
    return all(map(is_good, told["certificates"]))


if __name__ == "__main__":
    named = [
        one for one in distributions.folders() if distributions.project(one)["name"] in sys.argv[1:]
    ]
    sys.exit(not all(map(certify, named)))
