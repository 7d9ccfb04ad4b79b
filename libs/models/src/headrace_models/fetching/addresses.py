"""Where files come from that configurations name by addresses: web servers, hubs of models, buckets."""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import os
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import headrace
from headrace.errors import ConfigError, HeadraceError, Problem, SetupError, among
from headrace.plugins import library
from headrace_models.fetching.cache import Cached, Got, shown
from headrace_models.fetching.digests import digest_of
from headrace_models.fetching.limits import Limits
from headrace_models.fetching.onnx_files import leads_out, weights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["bucket", "from_bucket", "from_hub", "from_web", "hub", "web"]

_log = logging.getLogger("headrace.models")

_HUB = re.compile(
    r"hf://(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<file>.+))?"
)
_BUCKET = re.compile(r"s3://[^/?]+/[^?]+(?:\?versionId=(?P<version>[^&]+))?")
_DIGEST = re.compile(r"sha256=([0-9a-fA-F]{64})")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_FILES: Final = (
    *(".onnx", ".ort", ".plan", ".engine", ".pt", ".pt2", ".toml"),
    *(".json", ".safetensors", ".bin", ".txt"),
)
"""How the name of a file ends. A repository of a hub whose name ends so is a mistake."""
_TOLD: Final = (".json", ".txt", ".toml", ".pbtxt", ".py", ".yaml", ".yml")
"""Files of a folder that what reads it may read: they are fetched first, and it names the others."""
_MOST_DEATHS: Final = 5
"""How often in a row a transfer may break off without a byte more than before."""
_SILENCE_S: Final = 30.0
"""How long a server may send nothing."""
_BLOCK_BYTES: Final = 1 << 20
_SAFE: Final = "%/:=&?~+!$,;'@()*[]"
"""What `urllib.parse.quote` leaves as it is in a URL that is written already."""
_ASK_S: Final = 10.0
"""How long a hub may take to say which commit a branch is."""
_BUSY: Final = (429, 503)
_FULL: Final = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


def web(address: str) -> Cached:
    """Return the place of ``https://host/file#sha256=...``; ``http`` is for servers of this machine alone.

    Raises:
        ConfigError: It has no digest, or is ``http`` of another machine.
    """
    url, digest = _parts_of(address)
    key = f"{shown(url)}#sha256={digest}"
    return Cached(address, from_web, key=key, sha256=digest)


def hub(address: str) -> Cached:
    """Return the place of ``hf://org/name[@revision]/file``, or of the folder ``hf://org/name``.

    What is no commit, such as a branch, is asked for its commit.

    Raises:
        ConfigError: It is written otherwise.
    """
    repo, revision, file = _repo_of(address)
    name = PurePosixPath(file or repo).name
    is_fixed = revision is not None and _COMMIT.fullmatch(revision) is not None
    ask = None if is_fixed else partial(_commit_of, repo, revision)
    return Cached(address, from_hub, name=name, revision=ask, within=_cache_of_hub)


def bucket(address: str) -> Cached:
    """Return the place of ``s3://bucket/file``, or of one of its versions, ``s3://bucket/file?versionId=...``.

    Without a version the object is asked for its version, or its ETag.

    Raises:
        ConfigError: It is written otherwise.
    """
    match = _BUCKET.fullmatch(address)
    if match is None:
        raise _refused(f"{shown(address)!r} names no object of a bucket", "Write s3://bucket/file.")
    ask = None if match["version"] else partial(_version_of, address)
    return Cached(address, from_bucket, revision=ask)


def _refused(text: str, hint: str) -> ConfigError:
    return ConfigError(Problem("fetch", text, hint=hint))


# Web servers.


def _parts_of(address: str) -> tuple[str, str]:
    """Return the URL of a file, in ASCII, and its digest."""
    url, _, fragment = address.partition("#")
    asked, parts = _DIGEST.fullmatch(fragment), urllib.parse.urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise _refused(f"{shown(address)}: http is for this machine alone", "Write https://.")
    if asked is None:
        hint = f"Write {shown(url)}#sha256=DIGEST, with the digest of the file that you have tried."
        raise _refused(f"{shown(address)} has no digest, so what it gives may change", hint)
    if not (parts.hostname or "").isascii():
        host = parts.hostname or ""
        url = url.replace(host, host.encode("idna").decode(), 1)
    return urllib.parse.quote(url, safe=_SAFE), asked[1].lower()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to where an address may not lead: from https to https alone."""

    def redirect_request(
        self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str
    ) -> Any:
        to = urllib.parse.urlsplit(newurl)
        local = (
            urllib.parse.urlsplit(req.full_url).scheme == "http"
        )  # of this machine, as was checked
        if to.scheme != "https" and not (
            local and to.scheme == "http" and to.hostname in _LOOPBACK
        ):
            fp.close()
            text = f"{shown(req.full_url)} leads to {shown(newurl)}, which is no https"
            raise SetupError(text, hint="Name a file that its own server gives.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(_Redirects)


def from_web(address: str, folder: Path, limits: Limits | None = None) -> Path:
    """Fetch the file of `web`, and go on where a transfer broke off, also that of an earlier process.

    Args:
        address: The address.
        folder: Where it is put.
        limits: The bounds of time and bytes. None: those of the environment.

    Raises:
        SetupError: The server does not give the file within the bounds, its digest is another one, or it names further files.

    Source:
        RFC 9110, sections 14.2 (Range), 15.3.7 (206) and 15.5.17 (416).
    """
    (url, asked), path = _parts_of(address), folder / "file"
    limits = limits or Limits(shown(address))
    deaths = 0
    while True:
        before = _size(path)
        why, headers, whole = _go_on(url, path, limits)
        if whole:
            break
        gained = _size(path) - before
        deaths = 0 if gained > 0 or why else deaths + 1
        if deaths >= _MOST_DEATHS:
            text = f"{shown(address)}: the transfer broke off {deaths} times at {before} bytes"
            raise SetupError(text, hint="What is here is kept: try again to go on there.")
        limits.pause(why or "the transfer broke off", headers, gained=gained >= _BLOCK_BYTES)
    if (digest := digest_of(path)) != asked:
        path.unlink()
        text = f"{shown(url)} has the digest sha256={digest}, not {asked}"
        raise SetupError(text, hint="What came was removed. Look at the file before you name it.")
    name = urllib.parse.urlsplit(url).path
    further = weights_of(path) if name.endswith(".onnx") else []
    if further:
        text = f"{shown(url)} keeps weights in {', '.join(further)}, which has no digest here"
        raise SetupError(
            text, hint="Save the model as one file, or name a folder or hub with both."
        )
    return path


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _opened(path: Path, mode: str) -> BinaryIO:
    """Open a file to write, and follow no link."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    flags |= os.O_APPEND if mode == "ab" else os.O_TRUNC
    return open(os.open(path, flags, 0o600), mode)  # type: ignore[return-value]  # noqa: PTH123 - a descriptor


def _go_on(url: str, path: Path, limits: Limits) -> tuple[str, Any, bool]:
    """Fetch what is missing of a file.

    Returns:
        Why the server gave nothing now (``""`` if it began), the headers that may say when it is to be asked again, and
        whether the file is whole as far as it tells.
    """
    have = _size(path)
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with _opener.open(request, timeout=_SILENCE_S) as answer:
            mode = "ab" if answer.status == 206 else "wb"
            begun = have if mode == "ab" else 0
            total = None if answer.length is None else begun + answer.length
            limits.check_room(path.parent, answer.length)
            with _opened(path, mode) as file, _bar(shown(url), total, begun) as told:
                _copy(partial(answer.read1, _BLOCK_BYTES), file, begun, limits, told)
            return "", None, not answer.length
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return "", None, True
        if error.code in _BUSY:
            return f"{error.code} {error.reason}", error.headers, False
        hint = None
        if error.code in (401, 403):
            hint = "It asks for a login, and none is sent. Name a file of a hub or a bucket, or a public one."
        raise SetupError(f"{shown(url)}: {error.code} {error.reason}", hint=hint) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError):
        return "", None, False
    except urllib.error.URLError as error:
        if isinstance(error.reason, (TimeoutError, ConnectionResetError)):
            return "", None, False
        raise SetupError(f"{shown(url)}: {error.reason}") from error


def _copy(
    read: Callable[[], bytes],
    file: BinaryIO,
    have: int,
    limits: Limits,
    told: Callable[[int], object],
) -> None:
    """Write what is read to a file within the bounds. A full disk gets back what it was given.

    Raises:
        SetupError: A bound is reached, or the disk is full.
    """
    try:
        while block := read():
            have += len(block)
            limits.check()
            limits.check_bytes(have)
            file.write(block)
            told(len(block))
        file.flush()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        file.truncate(0)
        text = f"{limits.what}: there is no room for more than {have} bytes"
        raise SetupError(text, hint="HEADRACE_CACHE names another folder.") from error


@contextlib.contextmanager
def _bar(name: str, total: int | None, begun: int) -> Iterator[Callable[[int], object]]:
    """Show how far a transfer is, in a terminal where tqdm is installed, as the libraries of hubs do."""
    try:
        bars = library("tqdm", "headrace-models[hub]") if sys.stderr.isatty() else None
    except HeadraceError:
        bars = None
    if bars is None:
        yield lambda _: None
        return
    settings: Any = {"unit": "B", "unit_scale": True, "desc": name.rpartition("/")[2]}
    with bars.tqdm(total=total, initial=begun, **settings) as bar:
        yield bar.update


# Hubs.


def _repo_of(address: str) -> tuple[str, str | None, str | None]:
    """Return repository, revision and file."""
    match = _HUB.fullmatch(address)
    hint = "Write hf://org/name/file, or hf://org/name@revision/file."
    if match is None or ".." in address.split("/"):
        raise _refused(f"{shown(address)!r} names no file of a hub", hint)
    repo, revision, file = match["repo"], match["revision"], match["file"]
    if file is None and repo.lower().endswith(_FILES):
        raise _refused(f"{shown(address)!r} names a file, and no repository of a hub", hint)
    return repo, None if revision is None else urllib.parse.unquote(revision), file


def _hub_libraries() -> tuple[Any, Any]:
    """Return `huggingface_hub` and its errors.

    Raises:
        MissingDependencyError: The extra ``hub`` is not installed.
    """
    extra = "headrace-models[hub]"
    return library("huggingface_hub", extra), library("huggingface_hub.errors", extra)


def _cache_of_hub() -> Path:
    return Path(library("huggingface_hub.constants", "headrace-models[hub]").HF_HUB_CACHE)


def _commit_of(repo: str, revision: str | None) -> str:
    """Ask a hub once which commit a branch or tag is.

    Raises:
        SetupError: It does not say.
    """
    there, errors = _hub_libraries()
    try:
        return str(there.HfApi().model_info(repo, revision=revision, timeout=_ASK_S).sha)
    except Exception as error:
        raise _of_hub(error, errors, repo, revision, None) from error


def _of_hub(
    error: Exception, errors: Any, repo: str, revision: str | None, file: str | None
) -> SetupError:
    """Return an error of a hub with repository, revision and file."""
    place = f"{repo} at revision {revision or 'main'}{f', file {file}' if file else ''}"
    code = getattr(getattr(error, "response", None), "status_code", None)
    hint = None
    if code in (401, 403):
        hint = "HF_TOKEN, or `hf auth login`, gives the token of who may."
    if isinstance(error, errors.RevisionNotFoundError):
        return SetupError(f"the hub has no revision {revision!r} of {repo}", hint=hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        return SetupError(f"the hub has no repository {repo}, or it is private", hint=hint)
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    return SetupError(f"the hub does not give {place}: {said}", hint=hint)


def _call_hub(
    ask: Callable[[], Any], place: tuple[str, str | None, str | None], limits: Limits
) -> Any:
    """Call a function of a hub, and again while the hub is busy.

    Raises:
        SetupError: The hub refuses, or is busy beyond the bounds.
    """
    _, errors = _hub_libraries()
    while True:
        limits.check()
        try:
            return ask()
        except errors.HfHubHTTPError as error:
            answer = error.response
            code = getattr(answer, "status_code", None)
            if code not in _BUSY:
                raise _of_hub(error, errors, *place) from error
            limits.pause(f"the hub answers {code}", answer.headers)
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
            raise _of_hub(error, errors, *place) from error


def from_hub(address: str, folder: Path, limits: Limits | None = None) -> Got:
    """Fetch the file or folder of `hub` by `huggingface_hub`, with its tokens and cache.

    ``HF_ENDPOINT`` names another hub. Of a folder come the files that its reader names, and the weights that an ONNX file
    keeps in other files.

    Args:
        address: The address.
        folder: Where what is needed meanwhile lies.
        limits: The bounds of time and bytes. None: those of the environment.

    Returns:
        The path in the cache of the hub, the commit, and the files that count.

    Raises:
        SetupError: The hub does not give the file.
        MissingDependencyError: The extra ``hub`` is not installed.
    """
    repo, revision, file = _repo_of(address)
    there, _ = _hub_libraries()
    limits = limits or Limits(shown(address))
    ask = partial(there.HfApi().model_info, repo, revision=revision, files_metadata=True)
    about = _call_hub(ask, (repo, revision, file), limits)
    sizes = {sibling.rfilename: getattr(sibling, "size", None) for sibling in about.siblings}
    if file is not None and file not in sizes:
        text = f"{repo} at revision {revision or 'main'} ({about.sha}) has no file {file!r}"
        raise SetupError(text, hint=among(file, sizes))
    got: dict[str, Path] = {}

    def take(names: Iterable[str]) -> None:
        wanted = [name for name in names if name not in got]
        limits.check_room(folder, sum(sizes.get(name) or 0 for name in wanted))
        for name in wanted:
            fetch = partial(there.hf_hub_download, repo, name, revision=about.sha)
            got[name] = Path(_call_hub(fetch, (repo, revision, name), limits))

    if file is None:
        take(name for name in sizes if name.endswith(_TOLD))
        named: list[str] | None = None
        while named is None:
            named, lacks = _named_by_reader(address, folder / "listing", sizes, got)
            take(lacks)
        take(named)
    else:
        take([file])
    for name in [name for name in got if name.endswith(".onnx")]:
        take(_beside(name, weights_of(got[name]), address))
    if not got:
        raise SetupError(f"{repo} at revision {revision or 'main'} ({about.sha}) has no files")
    first = next(iter(got))
    root = got[first].parents[first.count("/")]
    return Got(root if file is None else got[file], about.sha, tuple(got.values()))


def _beside(name: str, weights: Iterable[str], address: str) -> list[str]:
    """Return the files that an ONNX file names, as seen from the folder to which its own name is relative.

    Raises:
        SetupError: One leads out of the folder.
    """
    wrong = [weight for weight in weights if leads_out(weight)]
    if wrong:
        text = f"{shown(address)}: {name} keeps weights in {wrong[0]!r}, outside of its folder"
        raise SetupError(text)
    return [str(PurePosixPath(name).parent / weight) for weight in weights]


def _named_by_reader(
    address: str, listing: Path, names: Iterable[str], here: dict[str, Path]
) -> tuple[list[str] | None, list[str]]:
    """Return the files of a folder that are named by the plugin that reads it, all where none reads it.

    The plugin sees the folder with the files that are here. The others are empty.

    Returns:
        The names. None where the plugin has to see a further file first, which comes beside them.

    Raises:
        SetupError: The plugin refuses the folder.
    """
    names = [name for name in names if not leads_out(name)]
    shutil.rmtree(listing, ignore_errors=True)
    try:
        for name in names:
            place = listing / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if name in here:
                place.symlink_to(here[name].resolve())
            else:
                place.touch()
        tables = headrace.plugins.tables_of(listing)
    except ConfigError as error:
        wrong = {
            os.path.relpath(bad.file, listing) for bad in error.problems if bad.file is not None
        }
        lacks = [name for name in names if name in wrong and name not in here]
        if lacks:
            return None, lacks
        raise SetupError(f"{shown(address)}: {error.problems[0].message}") from error
    finally:
        shutil.rmtree(listing, ignore_errors=True)
    if tables is None:
        return names, []
    said = {
        os.path.relpath(text, listing) if Path(text).is_absolute() else text
        for text in _texts_in(tables)
    }
    return [name for name in names if name in {os.path.normpath(text) for text in said if text}], []


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part)


# Buckets.


def _opened_bucket(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
        MissingDependencyError: The extra ``s3`` is not installed.
    """
    extra = "headrace-models[s3]"
    if address.startswith("s3:"):
        library("s3fs", extra)
    settings = {"version_aware": True} if "?versionId=" in address else {}
    files, path = library("fsspec", extra).core.url_to_fs(address, **settings)
    return files, str(path)


def _about(files: Any, path: str) -> tuple[str, int | None]:
    """Return version or ETag of an object, and its size in bytes."""
    files.invalidate_cache()
    info = files.info(path)
    version = info.get("VersionId")
    said = version if version not in (None, "null") else info.get("ETag")
    return str(said or files.ukey(path)).strip('"'), info.get("size")


def _version_of(address: str) -> str:
    """Ask a bucket once for the version of an object.

    Raises:
        SetupError: It does not say.
        MissingDependencyError: The extra ``s3`` is not installed.
    """
    files, path = _opened_bucket(address)
    try:
        return _about(files, path)[0]
    except Exception as error:
        raise SetupError(f"{shown(address)}: {type(error).__name__}: {error}") from error


def from_bucket(address: str, folder: Path, limits: Limits | None = None) -> Got:
    """Fetch the file of `bucket` by `fsspec`, with the credentials that it finds, as those of ``AWS_PROFILE``.

    A transfer that broke off goes on, unless the object has changed meanwhile. The weights that an ONNX file keeps in other
    files come with it.

    Args:
        address: The address.
        folder: Where it is put.
        limits: The bounds of time and bytes. None: those of the environment.

    Raises:
        SetupError: The bucket does not give it within the bounds.
        MissingDependencyError: The extra ``s3`` is not installed.
    """
    files, there = _opened_bucket(address)
    limits = limits or Limits(shown(address))
    path = folder / "file"
    revision = _object(files, there, path, folder / "revision", limits)
    name = PurePosixPath(shown(address)).name
    if name.endswith(".onnx"):
        at = PurePosixPath(there.partition("?")[0]).parent
        for one in _beside("file", weights_of(path), address):
            (folder / one).parent.mkdir(parents=True, exist_ok=True)
            _object(files, str(at / one), folder / one, folder / "revision", limits)
    (folder / "revision").unlink()
    return Got(path, revision)


def _object(files: Any, there: str, path: Path, note: Path, limits: Limits) -> str:
    """Fetch one object, and return its version. ``note`` holds that of what is here already."""
    deaths = 0
    while True:
        limits.check()
        before = _size(path)
        try:
            revision, size = _about(files, there)
            mark = f"{there} {revision}"
            if not note.exists() or note.read_text("utf-8") != mark:
                path.unlink(missing_ok=True)
                with _opened(note, "wb") as file:
                    file.write(mark.encode())
            have = _size(path)
            limits.check_room(path.parent, None if size is None else size - have)
            with (
                files.open(there, "rb", cache_type="none") as source,
                _opened(path, "ab") as file,
                _bar(there, size, have) as told,
            ):
                source.seek(have)
                _copy(partial(source.read, _BLOCK_BYTES), file, have, limits, told)
        except HeadraceError:
            raise
        except (FileNotFoundError, PermissionError) as error:
            raise SetupError(f"{limits.what}: {there}: {error}") from error
        except Exception as error:
            why, gained = f"{type(error).__name__}: {error}", _size(path) - before
            deaths = 0 if gained > 0 else deaths + 1
            if deaths >= _MOST_DEATHS or not (gained > 0 or isinstance(error, OSError)):
                raise SetupError(f"{limits.what}: {there}: {why}") from error
            limits.pause(why, gained=gained >= _BLOCK_BYTES)
        else:
            return revision
