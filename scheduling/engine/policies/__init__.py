"""The policies that live clusters offer, by the names that users type.

`POLICY_RULES` has the rules for any engine; `LIVE_POLICIES` decide on snapshots of live clusters, where only
preemptible jobs are stopped, within their contracts. `configured_policy` is how a cluster gets its policy. Replays have
more policies (`scheduling.whatif.replay.policies`), which need what only a replay knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from scheduling.engine.engine import PolicyRules
from scheduling.engine.live import LivePolicy, live_policy
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.policies.conservative import ConservativeRules
from scheduling.engine.policies.drf import DrfRules
from scheduling.engine.policies.easy import EasyRules
from scheduling.engine.policies.edf import EdfRules
from scheduling.engine.policies.fair import FairRules
from scheduling.engine.policies.fifo import FifoRules, FifoSkipRules
from scheduling.engine.policies.las_aware import LasAwareRules
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.policies.qssf_ml import QssfMlRules
from scheduling.engine.policies.sjf import SjfRules
from scheduling.engine.policies.srtf_predicted import SrtfPredictedRules
from scheduling.engine.policies.tiresias import TiresiasRules

POLICY_RULES: dict[str, type[PolicyRules]] = {
    rules.name: rules
    for rules in (
        FifoRules,
        FifoSkipRules,
        SjfRules,
        SrtfPredictedRules,
        QssfRules,
        QssfMlRules,
        TiresiasRules,
        LasAwareRules,
        EasyRules,
        ConservativeRules,
        FairRules,
        DrfRules,
        EdfRules,
        AcmeRules,
    )
}
LIVE_POLICIES: dict[str, LivePolicy] = {name: live_policy(rules) for name, rules in POLICY_RULES.items()}

__all__ = [
    "LIVE_POLICIES",
    "POLICY_RULES",
    "InvalidField",
    "LivePolicy",
    "configured_policy",
    "live_rules_factory",
    "rules_factory",
]


def rules_factory(name: str, settings: Mapping[str, object]) -> Callable[[], PolicyRules]:
    """A function that creates the rules with these settings; each engine needs its own. Raises if a setting is
    invalid.
    """
    rules = POLICY_RULES[name]
    rules.of(settings)
    return partial(rules.of, settings)


def live_rules_factory(name: str, settings: Mapping[str, object]) -> Callable[[], PolicyRules]:
    """As `rules_factory`, for live clusters. Raises also if a setting is only for replays."""
    rules = rules_factory(name, settings)
    rules().refuse_live()
    return rules


def configured_policy(name: str, settings: Mapping[str, object]) -> LivePolicy:
    """The policy of a live cluster with the settings of an operator."""
    return live_policy(live_rules_factory(name, settings)) if settings else LIVE_POLICIES[name]
