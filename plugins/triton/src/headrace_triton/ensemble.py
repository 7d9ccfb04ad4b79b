"""Ensembles: models one after the other, by the names of tensors."""

from __future__ import annotations
