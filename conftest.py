"""How hypothesis generates, for all tests of the repository."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, or is made, tells of the machine. What `--hypothesis-profile` names
# comes after this, and takes its place.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")
