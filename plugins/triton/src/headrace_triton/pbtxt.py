"""The text form of protobuf, as config.pbtxt has it, with the place of everything."""

from __future__ import annotations
