"""How a cluster decides: policy, placement and what is set of the policy, as operators choose it. Pure.

A choice is compared by what it amounts to: nothing set and the default set in words are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta

from jobs.notation import format_duration
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import POLICIES, rules_of
from scheduling.engine.policies.acme import ORDERS
from scheduling.engine.settings import AcmeSettings, BadSettings, parse

WORDS = {
    "order": "order among equals",
    "aging_s": "nobody is passed by who came so much later",
    "class_s": "one step of priority is worth a wait of",
    "backfill": "backfilling",
    "reserve": "quotas kept free for",
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    policy: str
    placement: str
    settings: Mapping[str, object]

    def amounts_to(self) -> dict[str, str]:
        """Every line of it in words, those that were left to their defaults too. Raises BadSettings."""
        said = {"policy": self.policy, "placement": self.placement}
        return (
            said | {WORDS[name]: _word(name, value) for name, value in asdict(in_full(self)).items()}
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
class Difference:
    name: str
    before: str
    after: str


def in_full(choice: Choice) -> AcmeSettings:
    return parse(choice.settings, ORDERS)


def checked(choice: Choice) -> Choice:
    """As it may be used on a live cluster. Raises BadSettings, which names the field."""
    if choice.policy not in POLICIES:
        raise BadSettings(f"policy: {choice.policy!r} is none of {', '.join(POLICIES)}")
    if choice.placement not in PLACEMENTS:
        raise BadSettings(f"placement: {choice.placement!r} is none of {', '.join(PLACEMENTS)}")
    rules_of(choice.policy, choice.settings)
    return choice


def differences(before: Choice, after: Choice) -> list[Difference]:
    old, new = _told(before), _told(after)
    names = [*old, *(name for name in new if name not in old)]
    return [
        Difference(name=name, before=old.get(name, "–"), after=new.get(name, "–"))
        for name in names
        if old.get(name) != new.get(name)
    ]


def _told(choice: Choice) -> dict[str, str]:
    """What cannot be read is shown as it stands: it is what an operator comes to mend."""
    try:
        return choice.amounts_to()
    except BadSettings:
        plain = {name: json.dumps(value) for name, value in choice.settings.items()}
        return {"policy": choice.policy, "placement": choice.placement, **plain}


LONGEST_S = 10**10  # longer ones are no length that a calendar has


def _word(name: str, value: object) -> str:
    if name.endswith("_s") and isinstance(value, int | float) and value < LONGEST_S and float(value).is_integer():
        return format_duration(timedelta(seconds=value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "nobody"
    return f"{value:g}" if isinstance(value, float) else str(value)


SETTINGS = tuple(field.name for field in fields(AcmeSettings))
