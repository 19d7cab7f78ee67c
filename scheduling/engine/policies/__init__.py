"""The policies by the names that users type.

`RULES` makes the rules of one for an engine; `POLICIES` answers the Picture of a live cluster. There `qssf` is missing
until it is given a history to predict from, and those that preempt by rank, which is not for people's work: on live
clusters only `acme` stops anybody, and only who agreed to it. `configured` is how a cluster gets its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from scheduling.engine.live import Policy, policy
from scheduling.engine.policies.acme import Acme
from scheduling.engine.policies.conservative import Conservative
from scheduling.engine.policies.drf import Drf
from scheduling.engine.policies.easy import Easy
from scheduling.engine.policies.fair import Fair
from scheduling.engine.policies.fifo import Fifo, FifoSkip
from scheduling.engine.policies.gittins import Gittins
from scheduling.engine.policies.qssf import Qssf
from scheduling.engine.policies.qssf_ml import QssfMl
from scheduling.engine.policies.sjf import Sjf
from scheduling.engine.policies.srtf import Srtf
from scheduling.engine.policies.themis import Themis
from scheduling.engine.policies.tiresias import Tiresias
from scheduling.engine.rules import Rules
from scheduling.engine.settings import BadSettings

EVERY = (Fifo, FifoSkip, Sjf, Srtf, Qssf, QssfMl, Tiresias, Gittins, Easy, Conservative, Fair, Drf, Themis, Acme)
LIVE = (Fifo, FifoSkip, Sjf, Easy, Conservative, Fair, Drf, Acme)
RULES: dict[str, type[Rules]] = {rules.name: rules for rules in EVERY}
POLICIES: dict[str, Policy] = {rules.name: policy(rules) for rules in LIVE}

__all__ = ["POLICIES", "RULES", "BadSettings", "Policy", "configured", "rules_of"]


def rules_of(name: str, settings: Mapping[str, object]) -> Callable[[], Rules]:
    """What makes the rules of a policy as somebody set it; each engine needs its own. What is set wrong is told now."""
    rules = RULES[name]
    rules.of(settings)
    return partial(rules.of, settings)


def configured(name: str, settings: Mapping[str, object]) -> Policy:
    """A policy of live clusters, as an operator set it."""
    return policy(rules_of(name, settings)) if settings else POLICIES[name]
