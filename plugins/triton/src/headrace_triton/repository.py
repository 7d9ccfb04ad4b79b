"""What a model repository stands for: the tables of a serving file."""

from __future__ import annotations
