"""The policy, placement and settings that operators choose for a cluster. Pure.

Choices are compared by their effect: an empty setting equals its default set explicitly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta

from acmeweb.common.errors import InvalidField
from jobs.core.slurm_notation import format_duration
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES, live_rules_factory
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.engine.settings import AcmeSettings, MissingLibrary, parse_acme_settings

SETTING_LABELS = {
    "order": "order within a class",
    "aging_s": "maximum overtaking",
    "class_s": "wait equal to one priority point",
    "backfill": "backfilling",
    "reserve": "quotas reserved for",
}


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """A policy, its placement and its settings."""

    policy: str
    placement: str
    settings: Mapping[str, object]

    def setting_texts(self) -> dict[str, str]:
        """All settings as text, including defaults. Raises `InvalidField`."""
        texts = {"policy": self.policy, "placement": self.placement}
        return (
            texts
            | {SETTING_LABELS[name]: _value_text(name, value) for name, value in asdict(full_settings(self)).items()}
            if self.is_acme
            else texts
        )

    @property
    def is_acme(self) -> bool:
        return self.policy == "acme"

    @property
    def mark(self) -> str:
        """A hash of the choice, by which a page notices that the choice has changed since it was opened."""
        text = json.dumps([self.policy, self.placement, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PolicyDifference:
    """A setting that differs between two choices."""

    name: str
    before: str
    after: str


def full_settings(choice: PolicyChoice) -> AcmeSettings:
    return parse_acme_settings(choice.settings, ORDER_RULES)


def check_choice(choice: PolicyChoice) -> PolicyChoice:
    """Return the choice if a live cluster can use it. Raises `InvalidField`, which names the field."""
    if choice.policy not in LIVE_POLICIES:
        raise InvalidField("policy", f"{choice.policy!r} is not one of {', '.join(LIVE_POLICIES)}")
    if choice.placement not in PLACEMENTS:
        raise InvalidField("placement", f"{choice.placement!r} is not one of {', '.join(PLACEMENTS)}")
    rules = live_rules_factory(choice.policy, choice.settings)()
    try:
        rules.check_libraries()
    except MissingLibrary as missing:
        raise InvalidField("policy", str(missing)) from missing
    return choice


def refuse_missing_run_times(choice: PolicyChoice, cluster: str) -> None:
    """Raise `InvalidField` if the choice orders jobs by learned run times, for a cluster without any."""
    if live_rules_factory(choice.policy, choice.settings)().needs_run_times:
        field, order = ("order", str(choice.settings["order"])) if choice.is_acme else ("policy", choice.policy)
        raise InvalidField(
            field,
            f"{order} orders jobs by run times learned from ended jobs, and no job has ended on {cluster} yet."
            " Choose another one, or import past jobs with manage.py import_history.",
        )


def weighs_service(choice: PolicyChoice) -> bool:
    """Whether the choice is meaningless without speeds of GPU models."""
    return live_rules_factory(choice.policy, choice.settings)().weighs_service


def missing_speeds(choice: PolicyChoice, cluster: str) -> InvalidField:
    """The error of such a choice for a cluster without known speeds."""
    return InvalidField(
        "policy",
        f"{choice.policy} orders jobs by the speeds of GPU models, and no job name on {cluster} has known"
        " speeds on two models. Give them on the settings page of the cluster, or choose tiresias.",
    )


def differences(before: PolicyChoice, after: PolicyChoice) -> list[PolicyDifference]:
    """The settings that differ, as text."""
    old, new = _texts_or_raw(before), _texts_or_raw(after)
    names = [*old, *(name for name in new if name not in old)]
    return [
        PolicyDifference(name=name, before=old.get(name, "–"), after=new.get(name, "–"))
        for name in names
        if old.get(name) != new.get(name)
    ]


def _texts_or_raw(choice: PolicyChoice) -> dict[str, str]:
    """The settings as text, or unformatted if they are invalid, so that an operator can see and correct them."""
    try:
        return choice.setting_texts()
    except InvalidField:
        plain = {name: json.dumps(value) for name, value in choice.settings.items()}
        return {"policy": choice.policy, "placement": choice.placement, **plain}


MAX_DURATION_S = 10**10  # `timedelta` cannot represent much longer durations


def _value_text(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, int | float) and value < MAX_DURATION_S and float(value).is_integer():
        return format_duration(timedelta(seconds=value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "no kind"
    return f"{value:g}" if isinstance(value, float) else str(value)
