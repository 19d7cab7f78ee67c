"""Each policy and each placement that a form offers is described."""

from scheduling.core.policy_texts import PLACEMENT_SUMMARIES, POLICY_SUMMARIES
from scheduling.engine.placements import PLACEMENTS
from scheduling.engine.policies import POLICY_RULES


def test_every_policy_and_placement_has_a_summary():
    assert set(POLICY_SUMMARIES) == set(POLICY_RULES)
    assert set(PLACEMENT_SUMMARIES) == set(PLACEMENTS)
