"""Label and field selectors."""

from __future__ import annotations

import pytest

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.selectors import (
    matches_all,
    object_matcher,
    parse_fields,
    parse_label_selector,
    parse_labels,
)

LABELS = {"team": "nlp", "acme/attempt": "k3.1", "size": "8"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("team=nlp", True),
        ("team==nlp,size=8", True),
        ("team=vision", False),
        ("team!=vision", True),
        ("missing!=x", True),
        ("team", True),
        ("missing", False),
        ("!missing", True),
        ("!team", False),
        ("team in (nlp, vision)", True),
        ("team in (vision)", False),
        ("team notin (vision),acme/attempt", True),
        ("missing notin (x)", True),
        ("acme/attempt=k3.1", True),
        ("size>7", True),
        ("size<8", False),
        ("team in (nlp) , size=8", True),
        ("team=", False),
    ],
)
def test_label_selector(selector, matches):
    assert matches_all(parse_labels(selector), LABELS) is matches


@pytest.mark.parametrize("selector", ["=x", "a b", "a in x", "a=b;c", ",", "a in (x", "a=b c=d"])
def test_label_selector_that_cannot_be_parsed_is_refused(selector):
    with pytest.raises(ApiError) as refused:
        parse_labels(selector)

    assert refused.value.code == 400


def test_selector_object_without_terms_matches_everything_and_none_matches_nothing():
    assert matches_all(parse_label_selector({}), LABELS)
    assert not matches_all(parse_label_selector(None), LABELS)


def test_selector_object_needs_all_of_its_terms():
    selector = {
        "matchLabels": {"team": "nlp"},
        "matchExpressions": [{"key": "size", "operator": "In", "values": ["8", "16"]}],
    }

    assert matches_all(parse_label_selector(selector), LABELS)
    assert not matches_all(parse_label_selector(selector), {**LABELS, "size": "4"})


def pod(phase: str, node: str = "") -> dict:
    return {"metadata": {"name": "a", "namespace": "x"}, "spec": {"nodeName": node}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("spec.nodeName=kalos-001", True),
        ("spec.nodeName!=kalos-001", False),
        ("status.phase=Running,metadata.namespace=x", True),
        ("status.phase!=Succeeded,status.phase!=Failed", True),
        ("status.phase==Pending", False),
    ],
)
def test_field_selector(selector, matches):
    assert object_matcher("pods", "", selector)(pod("Running", "kalos-001")) is matches


def test_field_without_an_index_is_refused():
    with pytest.raises(ApiError, match=r"field label not supported: status\.phase"):
        parse_fields("jobs.batch", "status.phase=x")


def test_unscheduled_nodes_are_selected_by_a_missing_field():
    matches = object_matcher("nodes", "", "spec.unschedulable=false")

    assert matches({"metadata": {"name": "a"}, "spec": {}})
    assert not matches({"metadata": {"name": "a"}, "spec": {"unschedulable": True}})
