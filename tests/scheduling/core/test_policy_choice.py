"""The policy that an operator chooses for a cluster, and how two choices differ."""

import pytest

from acmeweb.common.errors import InvalidField
from scheduling.core.policy_choice import PolicyChoice, PolicyDifference, check_choice, differences, full_settings


def choice(policy="acme", placement="consolidate", **settings):
    return PolicyChoice(policy=policy, placement=placement, settings=settings)


def test_settings_of_acme_are_shown_with_their_defaults():
    assert choice(class_s=90, aging_s=0.5).setting_texts() == {
        "policy": "acme",
        "placement": "consolidate",
        "order within a class": "fifo",
        "maximum overtaking": "0.5",
        "wait equal to one priority point": "00:01:30",
        "backfilling": "easy",
        "quotas reserved for": "pretrain",
    }
    assert choice(reserve=[]).setting_texts()["quotas reserved for"] == "no kind"


def test_other_policies_have_no_settings():
    assert choice("fifo").setting_texts() == {"policy": "fifo", "placement": "consolidate"}
    assert not choice("fifo").is_acme


@pytest.mark.parametrize(
    ("policy", "placement", "settings", "message"),
    [
        ("gremlins", "consolidate", {}, "policy: 'gremlins' is not one of"),
        ("fifo", "anywhere", {}, "placement: 'anywhere' is not one of"),
        ("fifo", "consolidate", {"order": "sjf"}, "order: this policy has no settings"),
        ("acme", "consolidate", {"aging_s": -1}, "aging_s: -1 is not a number of seconds"),
    ],
)
def test_choice_that_a_live_cluster_cannot_use_is_rejected_by_its_field(policy, placement, settings, message):
    with pytest.raises(InvalidField, match=message):
        check_choice(choice(policy, placement, **settings))


def test_usable_choice_is_returned():
    wanted = choice(order="fifo")

    assert check_choice(wanted) is wanted
    assert full_settings(wanted) == full_settings(choice())


def test_setting_that_equals_its_default_is_no_difference():
    assert differences(choice(), choice(order="fifo", backfill="easy")) == []


def test_differences_are_listed_as_text():
    found = differences(choice("fifo"), choice(backfill="conservative"))

    assert PolicyDifference(name="policy", before="fifo", after="acme") in found
    assert PolicyDifference(name="backfilling", before="–", after="conservative") in found
    assert not any(difference.name == "placement" for difference in found)


def test_invalid_stored_settings_are_shown_as_they_are():
    assert differences(choice(aging_s=-1), choice("fifo", "pack")) == [
        PolicyDifference(name="policy", before="acme", after="fifo"),
        PolicyDifference(name="placement", before="consolidate", after="pack"),
        PolicyDifference(name="aging_s", before="-1", after="–"),
    ]


def test_mark_changes_with_every_part_of_the_choice_but_not_with_the_order_of_settings():
    several = [choice(), choice("fifo"), choice(placement="pack"), choice(order="sjf"), choice(order="fifo")]

    assert len({one.mark for one in several}) == len(several)
    assert choice(order="sjf", aging_s=5).mark == choice(aging_s=5, order="sjf").mark
