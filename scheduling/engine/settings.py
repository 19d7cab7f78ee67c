"""What operators may choose of a policy, for each cluster; for `acme` a frozen value. Errors name the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from jobs.core.lifecycle import JobKind

DAY_S = 86_400.0
MAX_SETTING_S = 1e9


class MissingLibrary(Exception):
    """It needs a library that is not there; the sentence says what to install."""


class InvalidPolicySettings(ValueError):
    """What was set cannot be; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class AcmeSettings:
    """
    order      the policy whose order is taken among jobs of equal class.
    aging_s    nobody is passed over for that order's sake by who came this much later.
    class_s    one step of priority is worth so long a wait.
    backfill   `easy` promises a start to the first in line, `conservative` to everybody.
    reserve    kinds of work for which a team's quota is kept free of all who cannot be sent away again.
    """

    order: str = "fifo"
    aging_s: float = DAY_S
    class_s: float = DAY_S
    backfill: str = "easy"
    reserve: frozenset[JobKind] = frozenset({JobKind.PRETRAIN})


def reject_unknown(given: Mapping[str, object], *names: str) -> None:
    """Nothing else may be set."""
    for name in given:
        if name not in names:
            raise InvalidPolicySettings(
                f"{name}: is none of {', '.join(names)}" if names else f"{name}: this policy has none"
            )


def positive_number(given: Mapping[str, object], name: str) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SETTING_S:
        raise InvalidPolicySettings(f"{name}: {value!r} is not a number above 0")
    return float(value)


def parse_acme_settings(given: Mapping[str, object], orders: Mapping[str, object]) -> AcmeSettings:
    reject_unknown(given, *(field.name for field in fields(AcmeSettings)))
    readers = {
        "order": lambda name: _choice_value(given, name, orders),
        "aging_s": lambda name: _seconds_value(given, name),
        "class_s": lambda name: _seconds_value(given, name),
        "backfill": lambda name: _choice_value(given, name, ("easy", "conservative")),
        "reserve": lambda name: _kinds_value(given, name),
    }
    return AcmeSettings(**{name: readers[name](name) for name in given})  # type: ignore[arg-type, no-untyped-call]


def _choice_value(given: Mapping[str, object], name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    value = given[name]
    if not isinstance(value, str) or value not in known:
        raise InvalidPolicySettings(f"{name}: {value!r} is none of {', '.join(known)}")
    return value


def _seconds_value(given: Mapping[str, object], name: str) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SETTING_S:
        raise InvalidPolicySettings(f"{name}: {value!r} is not a number of seconds, 0 or more")
    return float(value)


def _kinds_value(given: Mapping[str, object], name: str) -> frozenset[JobKind]:
    value = given[name]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise InvalidPolicySettings(f"{name}: {value!r} is not a list of kinds of work")
    unknown = [one for one in value if one not in list(JobKind)]
    if unknown:
        raise InvalidPolicySettings(f"{name}: {unknown[0]!r} is none of {', '.join(JobKind)}")
    return frozenset(JobKind(one) for one in value)
