"""Settings of policies that operators can change per cluster. Error messages name the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec

from acmeweb.common.errors import InvalidField
from jobs.core.lifecycle import JobKind

DAY_S = 86_400.0
MAX_SETTING_S = 1e9


class MissingLibrary(Exception):
    """A policy or placement needs an optional library. The message says what to install."""


def check_scipy(what: str) -> None:
    """Raise `MissingLibrary` if SciPy is not installed. `what` needs it, in the plural."""
    if find_spec("scipy") is None:
        raise MissingLibrary(f"{what} need SciPy: install acme[prediction].")


@dataclass(frozen=True, kw_only=True)
class AcmeSettings:
    """Settings of the policy `acme`.

    order      the policy that orders jobs of equal class
    aging_s    a job is never overtaken because of that order by a job submitted this much later
    class_s    the waiting time that equals one priority point
    backfill   `easy` reserves for the first job only, `conservative` for every job
    reserve    kinds of jobs for which a team's quota stays free of jobs that cannot be preempted
    """

    order: str = "fifo"
    aging_s: float = DAY_S
    class_s: float = DAY_S
    backfill: str = "easy"
    reserve: frozenset[JobKind] = frozenset({JobKind.PRETRAIN})


def reject_unknown(settings: Mapping[str, object], *names: str) -> None:
    """Raise if a setting is not one of `names`."""
    for name in settings:
        if name not in names:
            raise InvalidField(name, f"is not one of {', '.join(names)}" if names else "this policy has no settings")


def positive_number(settings: Mapping[str, object], name: str) -> float:
    """The setting as a number above 0."""
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SETTING_S:
        raise InvalidField(name, f"{value!r} is not a number above 0")
    return float(value)


def parse_acme_settings(settings: Mapping[str, object], orders: Mapping[str, object]) -> AcmeSettings:
    """Check the settings of the policy `acme`. `orders` are the policies that it can use for its order."""
    reject_unknown(settings, *(field.name for field in fields(AcmeSettings)))
    readers = {
        "order": lambda name: _choice_value(settings, name, orders),
        "aging_s": lambda name: _seconds_value(settings, name),
        "class_s": lambda name: _seconds_value(settings, name),
        "backfill": lambda name: _choice_value(settings, name, ("easy", "conservative")),
        "reserve": lambda name: _kinds_value(settings, name),
    }
    return AcmeSettings(**{name: readers[name](name) for name in settings})  # type: ignore[arg-type, no-untyped-call]


def _choice_value(settings: Mapping[str, object], name: str, choices: Mapping[str, object] | tuple[str, ...]) -> str:
    value = settings[name]
    if not isinstance(value, str) or value not in choices:
        raise InvalidField(name, f"{value!r} is not one of {', '.join(choices)}")
    return value


def _seconds_value(settings: Mapping[str, object], name: str) -> float:
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SETTING_S:
        raise InvalidField(name, f"{value!r} is not a number of seconds, 0 or more")
    return float(value)


def _kinds_value(settings: Mapping[str, object], name: str) -> frozenset[JobKind]:
    value = settings[name]
    if not isinstance(value, list | tuple) or not all(isinstance(kind, str) for kind in value):
        raise InvalidField(name, f"{value!r} is not a list of kinds of work")
    unknown = [kind for kind in value if kind not in list(JobKind)]
    if unknown:
        raise InvalidField(name, f"{unknown[0]!r} is not one of {', '.join(JobKind)}")
    return frozenset(JobKind(kind) for kind in value)
