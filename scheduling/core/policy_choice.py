"""How a cluster decides: policy, placement and what is set of the policy, as operators choose it. Pure.

A choice is compared by what it amounts to: nothing set and the default set in words are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta

from jobs.core.slurm_notation import format_duration
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import LIVE_POLICIES, rules_factory
from scheduling.engine.policies.acme import ORDER_RULES
from scheduling.engine.settings import AcmeSettings, InvalidPolicySettings, parse_acme_settings

SETTING_LABELS = {
    "order": "order among equals",
    "aging_s": "nobody is passed by who came so much later",
    "class_s": "one step of priority is worth a wait of",
    "backfill": "backfilling",
    "reserve": "quotas kept free for",
}


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    policy: str
    placement: str
    settings: Mapping[str, object]

    def setting_texts(self) -> dict[str, str]:
        """Every line of it in words, those that were left to their defaults too. Raises BadSettings."""
        said = {"policy": self.policy, "placement": self.placement}
        return (
            said
            | {SETTING_LABELS[name]: _value_text(name, value) for name, value in asdict(full_settings(self)).items()}
            if self.is_acme
            else said
        )

    @property
    def is_acme(self) -> bool:
        return self.policy == "acme"

    @property
    def mark(self) -> str:
        """Another one for every other choice: a page that was opened before a change is known by it."""
        text = json.dumps([self.policy, self.placement, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class PolicyDifference:
    name: str
    before: str
    after: str


def full_settings(choice: PolicyChoice) -> AcmeSettings:
    return parse_acme_settings(choice.settings, ORDER_RULES)


def check_choice(choice: PolicyChoice) -> PolicyChoice:
    """As it may be used on a live cluster. Raises BadSettings, which names the field."""
    if choice.policy not in LIVE_POLICIES:
        raise InvalidPolicySettings(f"policy: {choice.policy!r} is none of {', '.join(LIVE_POLICIES)}")
    if choice.placement not in PLACEMENTS:
        raise InvalidPolicySettings(f"placement: {choice.placement!r} is none of {', '.join(PLACEMENTS)}")
    rules_factory(choice.policy, choice.settings)
    return choice


def differences(before: PolicyChoice, after: PolicyChoice) -> list[PolicyDifference]:
    old, new = _texts_or_raw(before), _texts_or_raw(after)
    names = [*old, *(name for name in new if name not in old)]
    return [
        PolicyDifference(name=name, before=old.get(name, "–"), after=new.get(name, "–"))
        for name in names
        if old.get(name) != new.get(name)
    ]


def _texts_or_raw(choice: PolicyChoice) -> dict[str, str]:
    """What cannot be read is shown as it stands: it is what an operator comes to mend."""
    try:
        return choice.setting_texts()
    except InvalidPolicySettings:
        plain = {name: json.dumps(value) for name, value in choice.settings.items()}
        return {"policy": choice.policy, "placement": choice.placement, **plain}


MAX_DURATION_S = 10**10  # longer ones are no length that a calendar has


def _value_text(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, int | float) and value < MAX_DURATION_S and float(value).is_integer():
        return format_duration(timedelta(seconds=value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "nobody"
    return f"{value:g}" if isinstance(value, float) else str(value)


ACME_SETTING_NAMES = tuple(field.name for field in fields(AcmeSettings))
