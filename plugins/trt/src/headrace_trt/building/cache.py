"""The engine cache: each plan in a file of its own, with a sidecar that describes it.

An entry is ``KEY.plan``, the bytes as TensorRT gave them, and ``KEY.plan.json``. The sidecar is
written last and holds the hash of the plan, so that an incomplete entry is recognized and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError
from headrace_trt.building.builder import BuildCancelledError
from headrace_trt.building.timing import write_atomically
from headrace_trt.onnx_models.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_trt.building.builder import BuiltPlan

__all__ = [
    "CachedPlan",
    "default_cache_dir",
    "get_or_build",
    "key_of",
    "read_entry",
    "trim_cache",
]

_log = logging.getLogger("headrace.trt")

FORMAT: Final = 1
_LOCK_STEP_S: Final = 0.2
_KINDS: Final[Mapping[str, type]] = {
    "asked": dict,
    "library": str,
    "layers": list,
    "layers_by_type": dict,
    "profiles": list,
    "warnings": list,
}
"""What the entries of a sidecar are that others read."""


@dataclass(frozen=True)
class CachedPlan:
    """A plan, and whether it came from the cache.

    Attributes:
        path: The file of the plan.
        plan: The bytes of the plan.
        hit: Whether the plan was in the cache already.
        sidecar: The content of the sidecar.
    """

    path: Path
    plan: bytes
    hit: bool
    sidecar: Mapping[str, Any]


def default_cache_dir() -> Path:
    """Return the folder of the user's engine cache (``HEADRACE_TRT_CACHE`` names another)."""
    named = os.environ.get("HEADRACE_TRT_CACHE")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("headrace")) / "trt"


def key_of(recipe: Mapping[str, Any]) -> str:
    """Return the key of an entry: a hash of everything on which the engine depends."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def sidecar_of(plan: Path) -> Path:
    """Return the path of the sidecar of a plan."""
    return plan.with_name(f"{plan.name}.json")


def read_sidecar(plan: Path) -> dict[str, Any]:
    """Read the sidecar of a plan.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no sidecar of Headrace's, or was damaged.
    """
    about: dict[str, Any] = json.loads(sidecar_of(plan).read_text(encoding="utf-8"))
    whole = isinstance(about, dict) and all(
        isinstance(about.get(name, kind()), kind) for name, kind in _KINDS.items()
    )
    if not whole or not all(
        isinstance(part, dict) for name in ("layers", "profiles") for part in about.get(name, ())
    ):
        raise ValueError("its entries are not of the kinds that Headrace writes")
    return about


def read_entry(plan: Path, recipe: Mapping[str, Any] | None = None) -> CachedPlan | None:
    """Read a plan with its sidecar. None if it does not exist, is not whole, or was built from something else.

    A warning is logged for a plan that exists and cannot be used.

    Args:
        plan: The file of the plan.
        recipe: The content of the key that the entry must have (`what_is_asked`). None: any.
    """
    if not plan.exists():
        return None
    reason = "its sidecar is missing"
    try:
        sidecar = read_sidecar(plan)
        content = plan.read_bytes()
        if sidecar.get("format") != FORMAT:
            reason = "its sidecar is of another format"
        elif recipe is not None and sidecar.get("asked") != json.loads(json.dumps(recipe)):
            reason = "it was built from something else"
        elif hashlib.sha256(content).hexdigest() != sidecar.get("plan_sha256"):
            reason = "its content is not what its sidecar says"
        else:
            return CachedPlan(plan, content, True, sidecar)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError) as error:
        reason = f"its sidecar cannot be read ({error})"
    _log.warning("%s is not used and will be built anew: %s", plan, reason)
    return None


def was_built_here(plan: Path) -> bool:
    """Return whether a file has a sidecar of Headrace's, even an incomplete one; JSON of another program is none."""
    try:
        about = json.loads(sidecar_of(plan).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(about, dict) and "plan_sha256" in about


def origin_of(plan: Path) -> str:
    """Return a text with the library that built a plan and the device it is for, from its sidecar; "" without one."""
    try:
        recipe = read_sidecar(plan)["asked"]
        device = recipe.get("device") or {}
        where = f" for {device['name']} ({device['compute_capability']})" if device else ""
        return f"built by {recipe['library']} {recipe['version']}{where}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


@contextlib.contextmanager
def locked(file: Path, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock across processes of a file that is to be written, while others wait.

    Raises:
        SetupError: The folder cannot be written.
        BuildCancelledError: ``cancelled()`` was true while waiting.
    """
    from filelock import FileLock, Timeout

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(file, error) from error
    lock = FileLock(file.with_name(f".{file.name}.lock"))
    while True:
        try:
            lock.acquire(timeout=_LOCK_STEP_S)
            break
        except Timeout:
            if cancelled():
                raise BuildCancelledError(
                    f"stopped waiting for another process that builds {file}"
                ) from None
        except OSError as error:
            raise _unwritable(file, error) from error
    try:
        yield
    finally:
        lock.release()


def get_or_build(
    plan: Path,
    recipe: Mapping[str, Any],
    build: Callable[[], BuiltPlan],
    *,
    cancelled: Callable[[], bool] = lambda: False,
    most_bytes: int | None = None,
) -> CachedPlan:
    """Return the plan in the file ``plan``. Build it if the file does not hold it.

    A lock across processes lets one process build while the others wait. The files are replaced
    atomically, the sidecar first. In a folder that cannot be written a plan that is there is given all the same.

    Args:
        plan: The file of the plan, which need not exist.
        recipe: Everything on which the plan depends, JSON-able.
        build: Builds the plan.
        cancelled: Called while another process builds. True ends the wait.
        most_bytes: The most bytes of all plans in the folder. Beyond it the plans unused for longest are removed.

    Raises:
        SetupError: ``build`` has raised it, or the plan is not there and the folder cannot be written.
        BuildCancelledError: ``cancelled()`` was true while waiting.
    """
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(locked(plan, cancelled))
        except BuildCancelledError:
            raise
        except SetupError:
            entry = read_entry(plan, recipe)  # in a container, say, the folder may be read-only
            if entry is None:
                raise
            return entry
        entry = read_entry(plan, recipe)
        if entry is not None:
            with contextlib.suppress(OSError):  # another user's file
                os.utime(sidecar_of(plan))  # the time of last use, by which trim_cache chooses
            return entry
        built = build()
        sidecar = {
            "format": FORMAT,
            "asked": dict(recipe),
            "plan_sha256": hashlib.sha256(built.plan).hexdigest(),
            "built_at": int(time.time()),  # noqa: TID251 - a date for people
            **built.describe(),
            "layers": [layer.as_dict() for layer in built.layers],
        }
        try:
            # The sidecar goes first: if the process is killed in between, the hash in it is not that of the plan, and
            # the plan is built anew. A plan without a sidecar was never written here.
            write_atomically(sidecar_of(plan), json.dumps(sidecar, indent=1).encode())
            write_atomically(plan, built.plan)
        except OSError as error:
            raise _unwritable(plan, error) from error
        if most_bytes is not None:
            trim_cache(plan.parent, most_bytes, keep=plan)
        return CachedPlan(plan, built.plan, False, sidecar)


def trim_cache(folder: Path, most_bytes: int, *, keep: Path | None = None) -> list[Path]:
    """Remove the plans that were unused for longest, until the others have at most ``most_bytes``.

    Only plans that have a sidecar are counted and removed.

    Returns:
        The plans that were removed.
    """
    entries = []
    for plan in folder.glob("*.plan"):
        try:
            entries.append((sidecar_of(plan).stat().st_mtime_ns, plan.stat().st_size, plan))
        except OSError:
            continue
    total = sum(size for _, size, _ in entries)
    removed = []
    for _, size, plan in sorted(entries):
        if total <= most_bytes:
            break
        if plan == keep:
            continue
        sidecar_of(plan).unlink(missing_ok=True)
        plan.unlink(missing_ok=True)
        total -= size
        removed.append(plan)
    if removed:
        _log.info("removed %d plans from %s to stay below its size limit", len(removed), folder)
    return removed


def file_identity(path: Path) -> dict[str, Any]:
    """Return the hash and size of a file as the key of an entry has it."""
    return {"sha256": hash_file(path), "bytes": path.stat().st_size}


def _unwritable(plan: Path, error: OSError) -> SetupError:
    return SetupError(
        f"the engine cannot be kept in {plan.parent}: {error}",
        hint="Name another folder in `cache_dir`, or a file in `engine`.",
    )
