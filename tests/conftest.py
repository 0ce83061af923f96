"""How hypothesis draws: the same examples in every run, and a busy computer is no failure.

`pytest --hypothesis-profile explore` draws others each time.
"""

from typing import Any

from hypothesis import HealthCheck, settings

PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("same", derandomize=True, database=None, **PATIENT)
settings.register_profile("explore", **PATIENT)
settings.load_profile("same")
