"""Models of Triton's Python backend, unmodified: what they import, what runs them, and their calls of other models."""

from __future__ import annotations
