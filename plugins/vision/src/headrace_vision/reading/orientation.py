"""Pictures as a viewer shows them: turned and mirrored as their file asks, in one of eight ways."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Matrix: TypeAlias = tuple[int, int, int, int]

__all__ = ["Matrix", "matrix_of", "pixels_of_pillow", "pixels_of_video", "turns"]

_UPRIGHT = (1, 0, 0, 1)

_ORIENTATION = 0x0112
_OF_EXIF = {
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}
"""The tag of EXIF, and a, b, c and d of `_shown` for each of its values that is not upright."""

_NEWER_KINDS = 16
"""So many kinds of side data may FFmpeg have, beside those that PyAV has a name for."""


def pixels_of_pillow(image: Any) -> NDArray[np.uint8]:
    """Return an image of Pillow as ``uint8 [H, W, 3]`` (blue, green, red), upright by its EXIF or XMP data.

    Source:
        EXIF 2.32, tag 274.
    """
    import numpy as np

    pixels = np.asarray(image.convert("RGB"))[..., ::-1]
    matrix = _UPRIGHT
    with suppress(Exception):  # data that cannot be read turn nothing
        matrix = _OF_EXIF.get(image.getexif().get(_ORIENTATION), _UPRIGHT)
    return _shown(pixels, *matrix)


def pixels_of_video(picture: Any, matrix: Matrix | None, reformatter: Any) -> NDArray[np.uint8]:
    """Return a picture of PyAV as ``uint8 [H, W, 3]`` (blue, green, red), upright by its `matrix_of`, if it has one.

    Of a matrix that turns by another angle, the nearest of the eight ways is taken.

    Args:
        picture: It.
        matrix: Its display matrix.
        reformatter: A ``VideoReformatter``, one for all pictures of a video: one for each begins as many threads as there are processors.
    """
    converted = reformatter.reformat(picture, format="bgr24", threads=1)
    return _shown(converted.to_ndarray(), *(matrix or _UPRIGHT))


def _shown(pixels: NDArray[np.uint8], a: int, b: int, c: int, d: int) -> NDArray[np.uint8]:
    """Return pixels where a viewer shows them.

    Source:
        ISO/IEC 14496-12, section 8.3.2: what is at (x, y) is shown at (a x + c y, b x + d y).
    """
    import numpy as np

    if turns(a, b, c, d):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def turns(a: int, b: int, c: int, d: int) -> bool:
    """Return whether the sides of a picture change places."""
    return abs(b) + abs(c) > abs(a) + abs(d)


def matrix_of(picture: Any) -> Matrix | None:
    """Return a, b, c and d of the display matrix of a picture of PyAV, None without one."""
    from av.sidedata.sidedata import SideDataContainer

    # A picture and its own `side_data` hold each other: they would wait in memory for Python's collector of cycles.
    side_data_of: Any = SideDataContainer
    try:
        matrix = side_data_of(picture).get("DISPLAYMATRIX")
    except ValueError:  # it has a kind that PyAV knows no name for, such as EXIF data
        matrix = side_data_of(_with_known_kinds(picture)).get("DISPLAYMATRIX")
    if matrix is None:
        return None
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    return a, b, c, d


def _with_known_kinds(picture: Any) -> Any:
    """Return a picture without the side data whose kinds PyAV does not know: it would show none of them."""
    from av.filter import Graph
    from av.sidedata.sidedata import Type

    picture = picture.reformat(format="bgr24")  # also from the memory of a device
    newest: Any = max(kind.value for kind in list[Any](Type))
    graph, newer = Graph(), range(1, _NEWER_KINDS)
    keys = ("width", "height", "format", "time_base")
    nodes = [
        graph.add_buffer(**{key: getattr(picture, key) for key in keys}),
        *(graph.add("sidedata", mode="delete", type=str(newest + n)) for n in newer),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes).configure()
    nodes[0].push(picture)
    return nodes[-1].pull()
