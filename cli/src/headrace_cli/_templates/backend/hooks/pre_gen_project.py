"""Refuse a name that no class can have, before anything is written (cookiecutter runs this)."""

import keyword
import re
import sys

backend = "{{ cookiecutter.backend }}"
if not re.fullmatch("[A-Z][A-Za-z0-9]*", backend) or keyword.iskeyword(backend):
    sys.exit(f"error: {backend!r} is no name for a backend: a capital, then letters and digits")
