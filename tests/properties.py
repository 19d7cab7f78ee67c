"""How many examples property tests try.

Tests name the number of the profile `thorough`. The default, `quick`, tries about a third of it. `few` is for runs
that only look for what another version of Python changes. `--hypothesis-profile=thorough` chooses a profile. A failure
prints the decorator that repeats it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

# Without deadlines, because a busy machine must not fail a test
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
DEFAULT = "quick"
PROFILES = {"thorough": 100, DEFAULT: 33, "few": 5}
FEWEST = 5  # the first ones that Hypothesis tries are the simplest


def register_profiles() -> None:
    for name, percent in PROFILES.items():
        settings.register_profile(name, max_examples=percent, **COMMON)
    settings.load_profile(DEFAULT)


def examples(thorough: int, **other: Any) -> settings:
    """Return the settings of a test that tries this number of examples with the profile `thorough`."""
    percent = settings().max_examples
    return settings(max_examples=max(min(thorough, FEWEST), thorough * percent // 100), **other)
