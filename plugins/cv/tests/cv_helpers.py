"""What several files of tests of pictures say."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import InputError
from headrace_cv.decode import DecodeMat


def noise(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


def refused(kit, backend, **request):
    """Return the error of a request that a backend refuses."""
    with pytest.raises(InputError) as caught:
        kit.run(backend, **request)
    assert caught.value.expected
    return caught.value


def error_of(kit, data, **options):
    """Return the error of a file that `DecodeMat` refuses."""
    error = refused(kit, kit.ready(DecodeMat, **options), data=data)
    assert error.key == "data"
    return error
