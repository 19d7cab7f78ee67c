"""The policies by the names that users type.

`RULES` makes the rules of one for an engine; `POLICIES` answers the Picture of a live cluster. There `qssf` is missing
until it is given a history to predict from, and the preempting ones until the loop carries out stops.
"""

from __future__ import annotations

from scheduling.engine.live import Policy, policy
from scheduling.engine.policies.drf import Drf
from scheduling.engine.policies.easy import Easy
from scheduling.engine.policies.fair import Fair
from scheduling.engine.policies.fifo import Fifo, FifoSkip
from scheduling.engine.policies.qssf import Qssf
from scheduling.engine.policies.sjf import Sjf
from scheduling.engine.policies.srtf import Srtf
from scheduling.engine.policies.tiresias import Tiresias
from scheduling.engine.rules import Rules

RULES: dict[str, type[Rules]] = {
    rules.name: rules for rules in (Fifo, FifoSkip, Sjf, Srtf, Qssf, Tiresias, Easy, Fair, Drf)
}
POLICIES: dict[str, Policy] = {rules.name: policy(rules) for rules in (Fifo, FifoSkip, Sjf, Easy, Fair, Drf)}

__all__ = ["POLICIES", "RULES", "Policy"]
