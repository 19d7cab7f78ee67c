"""The policies by the names that users type.

`RULES` makes the rules of one for an engine; `POLICIES` answers the Picture of a live cluster. There `qssf` is missing
until it is given a history to predict from, and those that preempt by rank, which is not for people's work: on live
clusters only `acme` stops anybody, and only who agreed to it. `configured` is how a cluster gets its policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from scheduling.engine.live import LivePolicy, live_policy
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.policies.conservative import ConservativeRules
from scheduling.engine.policies.drf import DrfRules
from scheduling.engine.policies.easy import EasyRules
from scheduling.engine.policies.fair import FairRules
from scheduling.engine.policies.fifo import FifoRules, FifoSkipRules
from scheduling.engine.policies.gittins import GittinsRules
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.policies.qssf_ml import QssfMlRules
from scheduling.engine.policies.sjf import SjfRules
from scheduling.engine.policies.srtf import SrtfRules
from scheduling.engine.policies.themis import ThemisRules
from scheduling.engine.policies.tiresias import TiresiasRules
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import InvalidPolicySettings

ALL_POLICY_RULES = (
    FifoRules,
    FifoSkipRules,
    SjfRules,
    SrtfRules,
    QssfRules,
    QssfMlRules,
    TiresiasRules,
    GittinsRules,
    EasyRules,
    ConservativeRules,
    FairRules,
    DrfRules,
    ThemisRules,
    AcmeRules,
)
LIVE_POLICY_RULES = (FifoRules, FifoSkipRules, SjfRules, EasyRules, ConservativeRules, FairRules, DrfRules, AcmeRules)
POLICY_RULES: dict[str, type[PolicyRules]] = {rules.name: rules for rules in ALL_POLICY_RULES}
LIVE_POLICIES: dict[str, LivePolicy] = {rules.name: live_policy(rules) for rules in LIVE_POLICY_RULES}

__all__ = ["LIVE_POLICIES", "POLICY_RULES", "InvalidPolicySettings", "LivePolicy", "configured_policy", "rules_factory"]


def rules_factory(name: str, settings: Mapping[str, object]) -> Callable[[], PolicyRules]:
    """What makes the rules of a policy as somebody set it; each engine needs its own. What is set wrong is told now."""
    rules = POLICY_RULES[name]
    rules.of(settings)
    return partial(rules.of, settings)


def configured_policy(name: str, settings: Mapping[str, object]) -> LivePolicy:
    """A policy of live clusters, as an operator set it."""
    return live_policy(rules_factory(name, settings)) if settings else LIVE_POLICIES[name]
