"""What is decided: which errors may be gone at the next attempt. Useful without a pipeline."""

from __future__ import annotations

from headrace.errors import BackendError

__all__ = ["may_pass"]


def may_pass(error: Exception | None, names: tuple[str, ...]) -> bool:
    """Tell whether another attempt may help.

    Args:
        error: The outcome of an item; None when all went well.
        names: The names of the exceptions that may pass, as ``ConnectionError``; a class below one of them counts.

    Returns:
        False for what is the fault of the request, as an InputError, and for all that Headrace itself raises: only a
        BackendError has an exception of a library behind it.
    """
    cause = error.__cause__ if isinstance(error, BackendError) else None
    return cause is not None and any(cls.__name__ in names for cls in type(cause).__mro__)
