"""Where files come from that configurations name by addresses: web servers, hubs of models, buckets."""

from __future__ import annotations

import http.client
import logging
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, Problem, SetupError
from headrace.plugins import library
from headrace_models.cache import Cached, digest_of

__all__ = ["bucket", "from_bucket", "from_hub", "from_web", "hub", "web"]

_log = logging.getLogger("headrace.models")

_HUB = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<file>.+))?")
_BUCKET = re.compile(r"s3://[^/]+/.+")
_DIGEST = re.compile(r"sha256=([0-9a-fA-F]{64})")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_MOST_DEATHS: Final = 5
"""How often in a row a transfer may break off without a byte more than before."""
_SILENCE_S: Final = 30.0
"""How long a server may send nothing."""
_BLOCK_BYTES: Final = 1 << 20


def web(address: str) -> Cached:
    """Return the place of ``https://host/file#sha256=...``; ``http`` is for servers of this machine alone.

    Raises:
        ConfigError: It has no digest, or is ``http`` of another machine.
    """
    _parts_of(address)
    return Cached(address, from_web)


def hub(address: str) -> Cached:
    """Return the place of ``hf://org/name[@revision]/file``, or of the folder ``hf://org/name``.

    Raises:
        ConfigError: It is written otherwise.
    """
    _repo_of(address)
    return Cached(address, from_hub)


def bucket(address: str) -> Cached:
    """Return the place of ``s3://bucket/file``.

    Raises:
        ConfigError: It is written otherwise.
    """
    if _BUCKET.fullmatch(address) is None:
        raise _refused(f"{address!r} names no object of a bucket", "Write s3://bucket/file.")
    return Cached(address, from_bucket)


def _refused(what: str, hint: str) -> ConfigError:
    return ConfigError(Problem("fetch", what, hint=hint))


def _parts_of(address: str) -> tuple[str, str]:
    """Return the URL of a file and its digest."""
    url, _, fragment = address.partition("#")
    asked, parts = _DIGEST.fullmatch(fragment), urllib.parse.urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise _refused(f"{address}: http is for this machine alone", "Write https://.")
    if asked is None:
        hint = f"Write {url}#sha256=DIGEST, with the digest of the file that you have tried."
        raise _refused(f"{address} has no digest, so what it gives may change", hint)
    return url, asked[1].lower()


def from_web(address: str, folder: Path) -> Path:
    """Fetch the file of `web`, and go on where a transfer broke off, also that of an earlier process.

    Raises:
        SetupError: The server does not give the file, or its digest is another one.

    Source:
        RFC 9110, sections 14.2 (Range), 15.3.7 (206) and 15.5.17 (416).
    """
    (url, asked), path = _parts_of(address), folder / "file"
    most, deaths = 0, 0
    while not _go_on(url, path):
        size = path.stat().st_size if path.exists() else 0
        most, deaths = max(most, size), 0 if size > most else deaths + 1
        if deaths >= _MOST_DEATHS:
            what = f"{address}: the transfer broke off {deaths} times at {most} bytes"
            raise SetupError(what, hint="What is here is kept: try again to go on there.")
    if (found := digest_of(path)) != asked:
        path.unlink()
        what = f"{url} has the digest sha256={found}, not {asked}"
        raise SetupError(what, hint="What came was removed. Look at the file before you name it.")
    return path


def _go_on(url: str, path: Path) -> bool:
    """Fetch what is missing of a file; return whether it is whole as far as the server tells."""
    have = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=_SILENCE_S) as answer:  # noqa: S310
            goes_on = answer.status == 206
            with path.open("ab" if goes_on else "wb") as file:
                while block := answer.read(_BLOCK_BYTES):
                    file.write(block)
            return not answer.length
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return True
        hint = None
        if error.code in (401, 403):
            hint = "It asks for a login, and none is sent. Name a file of a hub or a bucket, or a public one."
        raise SetupError(f"{url}: {error.code} {error.reason}", hint=hint) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError):
        return False
    except urllib.error.URLError as error:
        if isinstance(error.reason, (TimeoutError, ConnectionResetError)):
            return False
        raise SetupError(f"{url}: {error.reason}") from error


def _repo_of(address: str) -> tuple[str, str | None, str | None]:
    """Return repository, revision and file."""
    found = _HUB.fullmatch(address)
    if found is None or ".." in address.split("/"):
        hint = "Write hf://org/name/file, or hf://org/name@revision/file."
        raise _refused(f"{address!r} names no file of a hub", hint)
    return found["repo"], found["revision"], found["file"]


def from_hub(address: str, folder: Path) -> tuple[Path, str | None]:
    """Fetch the file or folder of `hub` by `huggingface_hub`, with its tokens and cache.

    ``HF_ENDPOINT`` names another hub. The weights that an ONNX file keeps beside it come with it.

    Returns:
        The path in the cache of the hub, and the commit.

    Raises:
        SetupError: The hub does not give the file.
        MissingDependencyError: The extra ``hub`` is not installed.
    """
    repo, revision, file = _repo_of(address)
    hub = "headrace-models[hub]"
    there, errors = library("huggingface_hub", hub), library("huggingface_hub.errors", hub)
    try:
        if file is None:
            path = Path(there.snapshot_download(repo, revision=revision))
        else:
            path = Path(there.hf_hub_download(repo, file, revision=revision))
            if path.suffix == ".onnx":
                beside = [f"{file}_data", f"{file}.data"]
                there.snapshot_download(repo, revision=revision, allow_patterns=beside)
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", None)
        hint = (
            "HF_TOKEN, or `hf auth login`, gives the token of who may."
            if code in (401, 403)
            else None
        )
        raise SetupError(f"{address}: {str(error).splitlines()[0]}", hint=hint) from error
    commit = next((one for one in path.parts if _COMMIT.fullmatch(one)), None)
    if revision is None:
        _log.warning(
            "%s names no revision: it is commit %s now. Write @%s", address, commit, commit
        )
    return path, commit


def from_bucket(address: str, folder: Path) -> Path:
    """Fetch the file of `bucket` by `fsspec`, with the credentials that it finds, as those of ``AWS_PROFILE``.

    Raises:
        MissingDependencyError: The extra ``s3`` is not installed.
    """
    files, there = library("fsspec", "headrace-models[s3]").core.url_to_fs(address)
    path = folder / "file"
    files.get_file(there, str(path))
    return path
