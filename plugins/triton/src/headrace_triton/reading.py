"""What one config.pbtxt stands for."""

from __future__ import annotations
