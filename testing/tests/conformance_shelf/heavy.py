"""A backend in a module that imports a library at its top."""

from __future__ import annotations

import pytest

from conformance_shelf.labels import breaks
from conformance_shelf.perfect import Perfect


@breaks("imports-lazily")
class ImportsItsLibraryAtTheTop(Perfect):
    library = pytest
