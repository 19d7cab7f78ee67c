"""The policies of replays: those of live clusters, those for research only, and any class named `module:Class`.

Research policies are imported by these names when a replay runs them. Nothing else loads `scheduling.research`, and
nothing outside of it depends on it.
"""

from __future__ import annotations

from importlib import import_module

from acmeweb.common.errors import InvalidInput
from scheduling.engine.engine import PolicyRules
from scheduling.engine.policies import POLICY_RULES

RESEARCH_POLICIES = {
    "srtf": "scheduling.research.queue.srtf:SrtfRules",
    "gittins": "scheduling.research.queue.gittins:GittinsRules",
    "themis": "scheduling.research.queue.themis:ThemisRules",
    "chronus": "scheduling.research.queue.chronus:ChronusRules",
    "lucid": "scheduling.research.packing.lucid:LucidRules",
    "gandiva": "scheduling.research.packing.gandiva:GandivaRules",
    "antman": "scheduling.research.packing.antman:AntManRules",
    "salus": "scheduling.research.packing.salus:SalusRules",
}
REPLAY_POLICIES = (*POLICY_RULES, *RESEARCH_POLICIES)


def policy_rules(name: str) -> type[PolicyRules]:
    """The rules of this name, or of `module:Class`, which is imported. Raises `InvalidInput`."""
    if rules := POLICY_RULES.get(name):
        return rules
    module, colon, class_name = RESEARCH_POLICIES.get(name, name).partition(":")
    if not colon:
        raise InvalidInput(f"{name} is not one of {', '.join(REPLAY_POLICIES)}")
    try:
        outside = getattr(import_module(module), class_name, None)
    except (ImportError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be imported: {error}") from error
    if not (isinstance(outside, type) and issubclass(outside, PolicyRules)):
        raise InvalidInput(f"{name} is not a subclass of PolicyRules")
    return outside
