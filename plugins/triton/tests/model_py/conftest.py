"""The models of the tests can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
try:
    import python_models  # noqa: F401
finally:
    sys.path.remove(str(HERE))
