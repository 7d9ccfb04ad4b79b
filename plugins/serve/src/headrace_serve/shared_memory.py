"""Tensors in system shared memory: clients make regions, and register them here under a name.

The server reads and writes a region by file calls, and does not map it. If a client shortens the region
meanwhile, a file call fails, and the client gets an error. Access to a mapping would kill the server by
SIGBUS. Linux keeps regions as files under ``/dev/shm``.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_serve.errors import AlreadyExistsError, BodyTooLargeError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AVAILABLE", "Access", "Place", "Regions", "allowed", "no_cuda_region"]

AVAILABLE = sys.platform == "linux"
"""Whether this platform has regions that can be opened by name as files."""

_FOLDER = "/dev/shm"  # noqa: S108 - where shm_open puts them
_KEY = re.compile(r"/?[A-Za-z0-9_.-]{1,250}")
_PARAMETERS = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Place:
    """The place of a tensor in shared memory.

    Attributes:
        region: The name of the region.
        offset: The offset of the tensor in the region, in bytes.
        byte_size: The number of bytes that the tensor may take.
    """

    region: str
    offset: int
    byte_size: int


@dataclass(frozen=True)
class _Region:
    name: str
    key: str
    offset: int
    byte_size: int
    file: int

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "file"}


class Regions:
    """The registered regions. Used by one event loop.

    Args:
        most: The most regions that may be registered. Each holds an open file.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._regions: dict[str, _Region] = {}

    def register(self, name: str, key: Any, offset: Any, byte_size: Any) -> None:
        """Register a region, and open its file.

        Args:
            name: The name by which requests refer to the region.
            key: The name of the shared memory, as given to ``shm_open``.
            offset: The offset of the region in the shared memory, in bytes.
            byte_size: The size of the region, in bytes.

        Raises:
            InputError: An argument is wrong, the shared memory does not exist or is too small, or the limit of
                regions is reached.
            AlreadyExistsError: A region with this name is registered.
        """
        if not name:  # which means all regions elsewhere
            raise InputError("name of a region", expected="a text that is not empty")
        if name in self._regions:
            raise AlreadyExistsError(f"shared memory region {name!r} is registered already")
        if len(self._regions) >= self._most:
            raise InputError(f"there are {self._most} regions, the most that may be registered")
        if not isinstance(key, str) or not _KEY.fullmatch(key) or key.strip("/") in (".", ".."):
            raise InputError(f"key of region {name!r}", expected="the name of a shared memory")
        start, size = _size("offset", offset), _size("byte_size", byte_size)
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(f"{_FOLDER}/{key.removeprefix('/')}", flags)
        except OSError as error:
            raise InputError(
                f"region {name!r}: the shared memory {key!r} cannot be opened: {error.strerror}"
            ) from None
        found = os.fstat(file)
        wrong = None
        if not stat.S_ISREG(found.st_mode):
            wrong = InputError(f"region {name!r}: {key!r} is no shared memory")
        elif start + size > found.st_size:
            wrong = InputError(
                f"region {name!r} would end at byte {start + size}",
                expected=f"at most {found.st_size}, the size of {key!r}",
            )
        if wrong is not None:
            os.close(file)
            raise wrong
        self._regions[name] = _Region(name, key, start, size, file)

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or all regions for ``""``; a name that is not registered is no error."""
        for one in [name] if name else list(self._regions):
            region = self._regions.pop(one, None)
            if region is not None:
                os.close(region.file)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return name, key, offset and byte_size of a region, or of all regions for ``""``.

        Raises:
            InputError: There is no region of this name.
        """
        found = [self._find(name)] if name else self._regions.values()
        return [region.as_dict() for region in found]

    def check(self, place: Place) -> None:
        """Check that a place lies inside its region.

        Raises:
            InputError: The place reaches beyond the region, or there is no such region.
        """
        region = self._find(place.region)
        if place.offset + place.byte_size > region.byte_size:
            raise InputError(
                f"bytes {place.offset} to {place.offset + place.byte_size} of region {place.region!r}",
                expected=f"a place inside of its {region.byte_size} bytes",
            )

    def read(self, place: Place) -> bytes:
        """Return the bytes at a place that `check` has accepted.

        Raises:
            InputError: A client has shortened the shared memory, or the region is gone.
        """
        region = self._find(place.region)
        found = bytearray(place.byte_size)
        done = 0
        while done < place.byte_size:
            at = region.offset + place.offset + done
            count = os.preadv(region.file, [memoryview(found)[done:]], at)
            if count == 0:
                raise InputError(f"the shared memory of region {place.region!r} is shorter by now")
            done += count
        return found  # type: ignore[return-value]  # a buffer that nobody else has

    def write(self, name: str, place: Place, data: bytes | memoryview) -> None:
        """Write an output to its place.

        Raises:
            InputError: The output does not fit, the region is gone, or a client has shortened the shared memory.
        """
        self.check(place)
        region = self._find(place.region)
        if len(data) > place.byte_size:
            raise InputError(
                f"output {name!r} has {len(data)} bytes",
                expected=f"at most {place.byte_size}, as the request says",
            )
        at, view = region.offset + place.offset, memoryview(data)
        if os.fstat(region.file).st_size < at + len(view):
            raise InputError(f"the shared memory of region {place.region!r} is shorter by now")
        while len(view):
            count = os.pwrite(region.file, view, at)
            at, view = at + count, view[count:]

    def _find(self, name: str) -> _Region:
        region = self._regions.get(name)
        if region is None:
            raise InputError(f"Unable to find shared memory region: {name!r}")
        return region


class Access:
    """The regions as one request may use them.

    Args:
        regions: The regions. None if shared memory is not allowed.
        hold: Counts bytes that are read like bytes of a body. See `headrace_serve.service.Service.hold`.
        most_bytes: The most bytes that may be read for one request.
    """

    def __init__(
        self, regions: Regions | None, hold: Callable[[int], None], most_bytes: int
    ) -> None:
        self._regions = regions
        self._hold = hold
        self._most_bytes = most_bytes
        self._read_bytes = 0

    def place(self, where: str, parameters: dict[str, Any]) -> Place | None:
        """Remove the place of a tensor from its parameters, and return it. None if they have no place.

        Args:
            where: The tensor's name, for errors.
            parameters: The parameters of the tensor. They are changed.

        Raises:
            InputError: The place is wrong.
            UnsupportedError: Shared memory is not allowed.
        """
        given = {name: parameters.pop(name) for name in _PARAMETERS if name in parameters}
        if not given:
            return None
        regions = self.regions
        region = given.get(_PARAMETERS[0])
        if not isinstance(region, str):
            raise InputError(f"{_PARAMETERS[0]} of {where}", expected="the name of a region")
        place = Place(
            region,
            _size(f"{_PARAMETERS[1]} of {where}", given.get(_PARAMETERS[1], 0)),
            _size(f"{_PARAMETERS[2]} of {where}", given.get(_PARAMETERS[2])),
        )
        regions.check(place)
        return place

    @property
    def regions(self) -> Regions:
        """The regions.

        Raises:
            UnsupportedError: They are not allowed.
        """
        return allowed(self._regions)

    def read(self, place: Place) -> bytes:
        """Return the bytes of an input.

        Raises:
            BodyTooLargeError: The inputs of the request in shared memory have too many bytes.
            OverloadedError: The bodies in flight would have too many bytes.
            InputError: A client has shortened the shared memory, or the region is gone.
        """
        self._read_bytes += place.byte_size
        if self._read_bytes > self._most_bytes:
            raise BodyTooLargeError(
                f"the inputs in shared memory have {self._read_bytes} bytes,"
                f" the limit is {self._most_bytes}"
            )
        self._hold(place.byte_size)
        return self.regions.read(place)


def allowed(regions: Regions | None) -> Regions:
    """Return the regions.

    Raises:
        UnsupportedError: Shared memory is not allowed.
    """
    if regions is None:
        raise UnsupportedError(
            "shared memory (shared_memory_region) is not supported by this server, which was started"
            " without --allow shared-memory"
        )
    return regions


def no_cuda_region(name: str) -> InputError:
    """Return the error for a region of CUDA's shared memory, of which there are none."""
    return InputError(f"Unable to find cuda shared memory region: {name!r}")


def _size(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_BYTES:
        raise InputError(what, expected="a number of bytes", got=repr(value)[:40])
    return value
