"""Users and teams of workloads."""

import pytest

from scheduling.backends.kubernetes.ownership import OwnerMapping, parse_owner_mapping
from tests.scheduling.backends.kubernetes.objects import workload


def test_namespace_is_user_and_team_by_default():
    owner = OwnerMapping().owner(workload())

    assert (owner.user, owner.team) == ("research", "research")


def test_first_source_with_a_value_counts_and_names_are_translated():
    mapping = parse_owner_mapping(
        {
            "user_from": ["annotation:owner", "label:user"],
            "team_from": ["label:team", "namespace"],
            "rename": {"research": "nlp"},
        }
    )

    owner = mapping.owner(workload(labels={"user": "amira"}))

    assert (owner.user, owner.team) == ("amira", "nlp")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "must be an object"),
        ({"users": []}, "users is not a setting"),
        ({"user_from": []}, "user_from must be a list"),
        ({"user_from": "namespace"}, "user_from must be a list"),
        ({"team_from": ["labels:team"]}, "team_from must be a list"),
        ({"team_from": ["label:"]}, "team_from must be a list"),
        ({"rename": ["a"]}, "rename must be an object"),
        ({"rename": {"a": 5}}, "rename must contain names only"),
    ],
    ids=["list", "unknown", "empty", "text", "kind", "no key", "rename list", "rename number"],
)
def test_invalid_mapping_is_refused_with_the_setting(settings, message):
    with pytest.raises(ValueError, match=message):
        parse_owner_mapping(settings)
