"""Let uv install what pip would: ``python scripts/uv_install.py UV ARGUMENTS...``, with the arguments of ``pip install``.

uv reads no settings of pip. They are told to it, so that it asks the index that pip would ask. A setting that uv
does not have ends this with status 2, and pip installs instead.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

__all__ = ["settings", "translated"]

_NO_MATTER = frozenset(
    (
        *(
            "cache-dir",
            "compile",
            "config-file",
            "disable-pip-version-check",
            "no-cache-dir",
            "no-color",
        ),
        *("no-compile", "no-input", "no-python-version-warning", "no-warn-script-location"),
        *("progress-bar", "quiet", "require-virtualenv", "root-user-action", "verbose"),
    )
)
"""Settings of pip that do not decide what is installed."""
_OPTIONS = {"constraint": "--constraints", "trusted-host": "--allow-insecure-host"}
_VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "index-url": ("UV_DEFAULT_INDEX",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "retries": ("UV_HTTP_RETRIES",),
    "timeout": ("UV_HTTP_TIMEOUT",),
}


def settings(listed: str) -> dict[str, str]:
    """Return the settings of ``pip install`` out of the lines of ``pip config list``: the nearest one of each name."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name.replace("_", "-")] = ast.literal_eval(value)
    return {name: value for one in sections.values() for name, value in one.items()}


def translated(of_pip: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the options and the variables by which uv does what these settings of pip ask for.

    Raises:
        LookupError: uv has nothing for a setting.
    """
    options: list[str] = []
    variables = {"UV_HTTP_RETRIES": "10", "UV_HTTP_TIMEOUT": "60"}
    for name, value in of_pip.items():
        words = value.split()
        if name in _OPTIONS:
            options += [part for word in words for part in (_OPTIONS[name], word)]
        elif name == "find-links":
            options += [part for word in words for part in ("--find-links", word)]
        elif name == "no-index":
            options += ["--no-index"] * (value.lower() in ("1", "true", "yes", "on", "t", "y"))
        elif name == "extra-index-url":
            # As pip does it: the best version of all indexes.
            options += ["--index-strategy", "unsafe-best-match"]
            variables["UV_INDEX"] = " ".join(words)
        elif name in _VARIABLES:
            variables.update(dict.fromkeys(_VARIABLES[name], value))
        elif name not in _NO_MATTER:
            raise LookupError(name)
    return options, variables


def main() -> None:
    """Become uv, which installs."""
    uv, *arguments = sys.argv[1:]
    pip = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(pip, capture_output=True, text=True, check=True)
    try:
        options, variables = translated(settings(done.stdout))
    except LookupError as unknown:
        print(f"uv has nothing for {unknown} among the settings of pip", file=sys.stderr)
        sys.exit(2)
    command = [uv, "pip", "install", "--python", sys.executable, *options, *arguments]
    # What is set for uv itself stays.
    os.execvpe(uv, command, {**variables, **os.environ})


if __name__ == "__main__":
    main()
