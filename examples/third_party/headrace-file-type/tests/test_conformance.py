"""Each rule of Headrace's conformance kit is a test here."""

from headrace_file_type.conformance import FileTypeConformance

__all__ = ["FileTypeConformance"]
