"""``headrace new``: templates of a plugin and of a service, rendered without network or cookiecutter."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import unicodedata
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.errors import ConfigError, Problem
from headrace.plugins import KNOWN_BACKENDS, qualifier
from headrace_cli.arguments import EXITS, Json, group
from headrace_cli.console import OK, print_data, print_message
from headrace_cli.names import COMMANDS, all_plugins
from headrace_cli.printing import print_json
from headrace_cli.reporting import Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.abc import Traversable

_OURS = frozenset({"cli", "testing", "serve", "models", "vision", "ray"})
"""Names that distributions of Headrace have, beside those that bring backends."""

_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*")
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*")
_SERVICE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_TOKEN = re.compile(
    r"{% raw %}(?P<raw>.*?){% endraw %}|{{ ?cookiecutter\.(?P<name>\w+) ?}}", re.DOTALL
)
_SUFFIX = {"_py": "py"}
"""The suffix of the template's modules: where they had that of Python itself, ``python -m compileall`` would fail."""
_NUMPY = ', "numpy>=1.24"'
_NEEDS = {"image": _NUMPY, "text": "", "array": _NUMPY}
"""What a distribution needs beside headrace, by the kind of what its backend takes."""


new = group(COMMANDS["new"])


Folder = Annotated[
    Path,
    typer.Option(
        "--dir",
        metavar="FOLDER",
        help="Where the new folder is made; here, unless it is given.",
        show_default=False,
    ),
]


@new.command(cls=Command, epilog=EXITS)
def backend(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The backend, as in a configuration (GaussBlur), or in words (gauss-blur). The "
            "distribution is then headrace-gauss-blur, its package headrace_gauss_blur.",
            show_default=False,
        ),
    ],
    folder: Folder = Path(),
    kind: Annotated[
        Literal["image", "text", "array"],
        typer.Option("--kind", help="What the backend takes, in the example that it begins with."),
    ] = "image",
    json: Json = False,
) -> int:
    """Make a distribution with one backend.

    Contract, options, functions, tests through the conformance kit, README, CHANGELOG, CI file and
    entry points, ready to install and to test. Needs no network. Nothing that exists is changed.

    Prints the path of the folder, with --json: {"backend", "distribution", "package", "path",
    "files"}.

    \b
    Examples:
      headrace new backend GaussBlur
      headrace new backend gauss-blur --dir projects
      headrace new backend Tokenize --kind text
    """  # noqa: D301 - typer keeps the lines after a backspace character
    names = _names(name)
    _check_free(names)
    known = {**names, **_SUFFIX, "_needs": _NEEDS[kind]}
    template = dict(_template("backend", "{{cookiecutter.distribution}}"))
    if kind != "image":
        template |= _template(f"kinds/{kind}", "{{cookiecutter.distribution}}")
    files = {_render(path, known): _render(text, known) for path, text in template.items()}
    target = folder / names["distribution"]
    _write(target, files)
    if json:
        print_json({**names, "path": str(target), "files": sorted(files)})
        return OK
    print_data(str(target))
    where = f'"{target}[test]"' if target.is_absolute() else f'"./{target.as_posix()}[test]"'
    print_message(f"made {names['backend']} in {target}; next:")
    print_message(f"  pip install -e {where}")
    print_message(f"  pytest {_quoted(str(target))}")
    print_message(f"  headrace conformance {names['backend']} --write")
    return OK


@new.command("app", cls=Command, epilog=EXITS)
def service(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The service, in lower case, as word-count: the folder, the configuration and the model have this name.",
            show_default=False,
        ),
    ],
    folder: Folder = Path(),
    json: Json = False,
) -> int:
    """Make a service: a configuration, a file with its backend, tests, Dockerfile, README.

    It counts the words of texts, and works as it is. One of its tests calls the service as a client does. Needs no network.
    Nothing that exists is changed.

    Prints the path of the folder, with --json: {"name", "backend", "path", "files"}.

    \b
    Examples:
      headrace new app word-count
      headrace new app reader --dir services
    """  # noqa: D301 - typer keeps the lines after a backspace character
    if not _SERVICE.fullmatch(name):
        raise _refusal(
            "name",
            f"{name!r} is no name for a service",
            hint="Letters in lower case, digits, and single hyphens between them, as word-count.",
            suggestion=_nearby_service(name),
        )
    parts = name.split("-")
    names = {"name": name, "backend": "".join(part[0].upper() + part[1:] for part in parts)}
    if any(names["backend"] in plugin.backends for plugin in all_plugins()):
        names["backend"] += "Service"  # a backend of an installed plugin has the name
    known = {**names, **_SUFFIX}
    template = _template("app", "{{cookiecutter.name}}")
    files = {_render(path, known): _render(text, known) for path, text in template}
    target = folder / name
    _write(target, files)
    if json:
        print_json({**names, "path": str(target), "files": sorted(files)})
        return OK
    print_data(str(target))
    print_message(f"made the service {name} in {target}; next:")
    print_message(f"  pip install -r {_quoted(str(target / 'requirements-dev.txt'))}")
    print_message(f"  pytest {_quoted(str(target))}")
    print_message(f"  headrace serve {_quoted(str(target / f'{name}.toml'))}")
    return OK


def _nearby_service(text: str) -> str | None:
    """Return ``text`` as a name of a service; None where nothing of it is left."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain).lower()
    name = "-".join(re.findall(r"[a-z0-9]+", words)).lstrip("-0123456789")
    return name if _SERVICE.fullmatch(name) else None


def _names(text: str) -> dict[str, str]:
    """Return the names of backend, distribution and package, derived from what the user wrote."""
    bare = re.sub(r"^headrace[-_]", "", text, flags=re.IGNORECASE)
    backend = bare
    if not _CLASS.fullmatch(bare) and _WORDS.fullmatch(bare):
        backend = "".join(part[0].upper() + part[1:] for part in re.split("[-_]", bare))
    if not _CLASS.fullmatch(backend) or keyword.iskeyword(backend):
        raise _refusal(
            "name",
            f"{text!r} is no name for a backend",
            hint="A letter, then letters and digits, as in GaussBlur; or words, as in gauss-blur.",
            suggestion=_nearby(text),
        )
    # As in cookiecutter.json: a hyphen before each capital that does not follow a capital.
    words = re.sub(r"(?<=[^A-Z])(?=[A-Z])", "-", backend).lower()
    distribution = f"headrace-{words}"
    package = distribution.replace("-", "_")
    return {"backend": backend, "distribution": distribution, "package": package}


def _nearby(text: str) -> str | None:
    """Return ``text`` without accents and the characters that no name may hold."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    parts = re.findall(r"[A-Za-z0-9]+", plain)
    name = "".join(part[0].upper() + part[1:] for part in parts)
    return name if _CLASS.fullmatch(name) and not keyword.iskeyword(name) else None


def _check_free(names: dict[str, str]) -> None:
    """Refuse names that core, a well-known distribution or an installed one has."""
    backend, distribution = names["backend"], names["distribution"]
    plugins = all_plugins()
    owners = {plugin.distribution for plugin in plugins if backend in plugin.backends}
    if backend in KNOWN_BACKENDS:
        owners.add(KNOWN_BACKENDS[backend])
    if owners:
        raise _refusal(
            "taken",
            f"the name {backend!r} is taken by {' and '.join(sorted(owners))}",
            hint="Choose another: two of one name have to be told apart in each configuration.",
        )
    known = _OURS.union(map(qualifier, KNOWN_BACKENDS.values()))
    if qualifier(distribution) in known.union(plugin.plugin for plugin in plugins):
        raise _refusal(
            "taken",
            f"there is a distribution {distribution!r} already",
            hint="Choose another name for the backend: that of the distribution comes from it.",
        )


def _template(name: str, root_name: str) -> Iterator[tuple[str, str]]:
    """Return each file of a template: its path below the root, with ``/``, and its text."""
    root = resources.files("headrace_cli") / "_templates"
    for part in (*name.split("/"), root_name):
        root /= part
    if not root.is_dir():
        raise _refusal(
            "template",
            "the installed template is missing",
            hint="Install again: pip install --force-reinstall headrace-cli",
        )
    yield from _files(root, "")


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name == "__pycache__":  # of modules that an older checkout had there
            continue
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        else:
            yield f"{path}{entry.name}", entry.read_bytes().decode()


def _render(text: str, names: dict[str, str]) -> str:
    """Replace the placeholders of the template by the names."""
    return _TOKEN.sub(lambda m: names[m["name"]] if m["raw"] is None else m["raw"], text)


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files into a folder that must not exist yet."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        try:
            for path, text in files.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text.encode())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # a second try finds no half of it
            raise
    except FileExistsError as error:
        where = error.filename or folder
        raise _refusal(
            "exists",
            f"{str(where)!r} exists already",
            hint="Remove it, choose another name, or another folder with --dir.",
        ) from error
    except OSError as error:
        raise _refusal(
            "folder",
            f"{str(folder)!r} cannot be written: {error.strerror or error}",
            hint="Choose another folder with --dir.",
        ) from error


def _quoted(text: str) -> str:
    import shlex
    import subprocess

    return subprocess.list2cmdline([text]) if sys.platform == "win32" else shlex.quote(text)


def _refusal(code: str, message: str, *, hint: str, suggestion: str | None = None) -> ConfigError:
    return ConfigError(Problem(code, message, hint=hint, suggestion=suggestion))
