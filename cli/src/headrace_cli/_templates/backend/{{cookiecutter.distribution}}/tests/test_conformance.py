"""Each rule of Headrace's conformance kit is a test here."""

from {{ cookiecutter.package }}.conformance import {{ cookiecutter.backend }}Conformance

__all__ = ["{{ cookiecutter.backend }}Conformance"]
