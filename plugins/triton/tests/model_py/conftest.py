"""The models of the tests can be imported, and are built in a process and in this one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
try:
    import python_models
finally:
    sys.path.remove(str(HERE))


@pytest.fixture(params=[False, True], ids=["process", "here"])
def in_process(request):
    return request.param


@pytest.fixture
def models(tmp_path, in_process):
    """Return a function that builds models, which are closed."""
    opened = []

    def build(named, **keys):
        opened.append(python_models.build(tmp_path, named, in_process=in_process, **keys))
        return opened[-1]

    yield build
    for each in opened:
        each.close()
