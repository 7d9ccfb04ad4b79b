"""The version of Headrace: alone, so that nothing imports the package itself to know it."""

__version__ = "0.1.0"
