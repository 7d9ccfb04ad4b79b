"""Making the probes of a pipeline: one object per entry of ``[global] probes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._scheduling.probing import Probes
from headrace.errors import HeadraceError, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._plan.element import ProbePlan

__all__ = ["make_probes"]


def make_probes(plans: Sequence[ProbePlan]) -> Probes:
    """Make every probe; those that were made are closed again when one cannot be.

    Raises:
        SetupError: A class raised when it was called.
    """
    made: dict[str, Any] = {}
    for plan in plans:
        try:
            made[plan.text] = plan.cls() if plan.options is None else plan.cls(plan.options)
        except BaseException as error:
            Probes(made).close()
            if isinstance(error, HeadraceError) or not isinstance(error, Exception):
                raise
            raise SetupError(
                f"the probe {plan.text} of {plan.distribution} could not be made: "
                f"{type(error).__name__}: {error}"
            ) from error
    return Probes(made)
