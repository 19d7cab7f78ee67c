"""All policies by the names that users type.

`POLICY_RULES` has the rules for any engine; `LIVE_POLICIES` decide on snapshots of live clusters. The latter exclude
the policies that need what only a replay knows: true run times, or the service of all ended jobs. On live clusters only
preemptible jobs are stopped, within their contracts.
`configured_policy` is how a cluster gets its policy. `policy_rules` also imports a policy from outside, named
`module:Class`, for replays on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from scheduling.engine.live import LivePolicy, live_policy
from scheduling.engine.policies.acme import AcmeRules
from scheduling.engine.policies.antman import AntManRules
from scheduling.engine.policies.chronus import ChronusRules
from scheduling.engine.policies.conservative import ConservativeRules
from scheduling.engine.policies.drf import DrfRules
from scheduling.engine.policies.easy import EasyRules
from scheduling.engine.policies.edf import EdfRules
from scheduling.engine.policies.fair import FairRules
from scheduling.engine.policies.fifo import FifoRules, FifoSkipRules
from scheduling.engine.policies.gandiva import GandivaRules
from scheduling.engine.policies.gittins import GittinsRules
from scheduling.engine.policies.las_aware import LasAwareRules
from scheduling.engine.policies.lucid import LucidRules
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.policies.qssf_ml import QssfMlRules
from scheduling.engine.policies.salus import SalusRules
from scheduling.engine.policies.sjf import SjfRules
from scheduling.engine.policies.srtf import SrtfRules
from scheduling.engine.policies.srtf_predicted import SrtfPredictedRules
from scheduling.engine.policies.themis import ThemisRules
from scheduling.engine.policies.tiresias import TiresiasRules
from scheduling.engine.rules import PolicyRules
from scheduling.engine.settings import InvalidPolicySettings

ALL_POLICY_RULES = (
    FifoRules,
    FifoSkipRules,
    SjfRules,
    SrtfRules,
    SrtfPredictedRules,
    QssfRules,
    QssfMlRules,
    TiresiasRules,
    LasAwareRules,
    GittinsRules,
    EasyRules,
    ConservativeRules,
    FairRules,
    DrfRules,
    ThemisRules,
    EdfRules,
    ChronusRules,
    LucidRules,
    GandivaRules,
    AntManRules,
    SalusRules,
    AcmeRules,
)
LIVE_POLICY_RULES = (
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
POLICY_RULES: dict[str, type[PolicyRules]] = {rules.name: rules for rules in ALL_POLICY_RULES}
LIVE_POLICIES: dict[str, LivePolicy] = {rules.name: live_policy(rules) for rules in LIVE_POLICY_RULES}

__all__ = [
    "LIVE_POLICIES",
    "POLICY_RULES",
    "InvalidPolicySettings",
    "LivePolicy",
    "UnknownPolicy",
    "configured_policy",
    "live_rules_factory",
    "policy_rules",
    "rules_factory",
]


class UnknownPolicy(ValueError):
    """No policy has this name, in one sentence without the name of the field."""


def policy_rules(name: str) -> type[PolicyRules]:
    """The rules of this name, or of `module:Class`, which is imported. Raises `UnknownPolicy`."""
    if rules := POLICY_RULES.get(name):
        return rules
    module, colon, class_name = name.partition(":")
    if not colon:
        raise UnknownPolicy(f"{name} is not one of {', '.join(POLICY_RULES)}")
    try:
        outside = getattr(import_module(module), class_name, None)
    except (ImportError, ValueError) as error:
        raise UnknownPolicy(f"{name} cannot be imported: {error}") from error
    if not (isinstance(outside, type) and issubclass(outside, PolicyRules)):
        raise UnknownPolicy(f"{name} is not a subclass of PolicyRules")
    return outside


def rules_factory(name: str, settings: Mapping[str, object]) -> Callable[[], PolicyRules]:
    """A function that creates the rules with these settings; each engine needs its own. Raises if a setting is
    invalid.
    """
    rules = policy_rules(name)
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
