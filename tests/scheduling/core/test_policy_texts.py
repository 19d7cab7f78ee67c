"""Each policy and each placement that a form offers is described, in the group of what it needs to know."""

from scheduling.core.policy_texts import (
    LEARNED_RUN_TIMES,
    PLACEMENT_GROUPS,
    POLICY_GROUPS,
    POLICY_SUMMARIES,
    TEAM_RESOURCES,
    grouped_choices,
)
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.whatif.replay.policies import REPLAY_POLICIES, policy_rules
from scheduling.whatif.replay.requests import PLACEMENT_NAMES


def test_every_policy_and_placement_has_a_summary_in_one_group():
    policies = [name for group in POLICY_GROUPS.values() for name in group]
    placements = [name for group in PLACEMENT_GROUPS.values() for name in group]

    assert sorted(policies) == sorted(REPLAY_POLICIES) == sorted(POLICY_SUMMARIES)
    assert sorted(placements) == sorted(PLACEMENT_NAMES)


def test_groups_agree_with_what_the_policies_say_about_themselves():
    rules = {name: policy_rules(name)() for name in REPLAY_POLICIES}

    assert set(POLICY_GROUPS[LEARNED_RUN_TIMES]) == {name for name in rules if rules[name].needs_run_times}
    assert set(POLICY_GROUPS[TEAM_RESOURCES]) == {name for name in rules if rules[name].queues_by_account}


def test_choices_leave_out_empty_groups_and_give_the_default_no_value():
    groups = {"Nothing": {"fifo": "in order", "lifo": "in reverse"}, "Luck": {"lottery": "a ticket wins"}}

    assert grouped_choices(["fifo", "lifo"], groups, default="fifo") == [
        ("Nothing", [("", "fifo – in order"), ("lifo", "lifo – in reverse")])
    ]


def test_live_form_offers_every_live_policy():
    offered = [name for _, choices in grouped_choices(LIVE_POLICIES, POLICY_GROUPS) for name, _ in choices]

    assert sorted(offered) == sorted(LIVE_POLICIES)
