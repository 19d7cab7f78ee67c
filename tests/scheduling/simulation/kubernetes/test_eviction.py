"""Evictions and disruption budgets."""

from __future__ import annotations

import pytest

from .make import client, pod

PODS, BUDGETS = "/api/v1/namespaces/default/pods", "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def protected(count: int = 3, **spec):
    """A cluster with a budget and some pods that run."""
    api = client()
    selector = {"matchLabels": {"app": "web"}}
    api.call("POST", BUDGETS, {"metadata": {"name": "web"}, "spec": {"selector": selector, **spec}})
    for number in range(count):
        body = pod(f"web-{number}", node="kalos-001", gpus=1, seconds=10_000, metadata={"labels": {"app": "web"}})
        api.call("POST", PODS, body)
    return api.after(2)


def evict(api, name: str, **more):
    return api.call("POST", f"{PODS}/{name}/eviction", {"metadata": {"name": name}, **more})


def allowed(api) -> int:
    return api.call("GET", f"{BUDGETS}/web")["status"]["disruptionsAllowed"]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({"minAvailable": 2}, 1),
        ({"minAvailable": "50%"}, 1),
        ({"maxUnavailable": 1}, 1),
        ({"maxUnavailable": "100%"}, 3),
        ({"minAvailable": 3}, 0),
        ({"maxUnavailable": 0}, 0),
    ],
    ids=str,
)
def test_budget_says_how_many_disruptions_it_allows(spec, count):
    assert allowed(protected(3, **spec)) == count


def test_eviction_deletes_a_pod_within_the_budget():
    api = protected(minAvailable=2)

    evict(api, "web-0")

    assert api.after(2).pod("web-0") is None
    assert allowed(api) == 0


def test_eviction_beyond_the_budget_is_refused():
    api = protected(minAvailable=2)
    evict(api, "web-0")

    refused = api.refusal("POST", f"{PODS}/web-1/eviction", {"metadata": {"name": "web-1"}})

    assert (refused.code, refused.reason) == (429, "TooManyRequests")
    assert refused.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.details["causes"][0]["reason"] == "DisruptionBudget"
    assert "needs 2 healthy pods and has 2 currently" in refused.details["causes"][0]["message"]


def test_pod_without_a_budget_is_evicted():
    api = client()
    api.create_pod(node="kalos-001")
    api.after(2).call("POST", f"{PODS}/train/eviction", {"metadata": {"name": "train"}})

    assert api.after(2).pod() is None


def test_eviction_has_the_grace_period_of_its_options():
    api = protected(minAvailable=0)

    evict(api, "web-0", deleteOptions={"gracePeriodSeconds": 7})

    assert api.pod("web-0")["metadata"]["deletionGracePeriodSeconds"] == 7


def test_eviction_as_a_dry_run_changes_nothing():
    api = protected(minAvailable=2)

    evict(api, "web-0", deleteOptions={"dryRun": ["All"]})

    assert (api.after(5).pod("web-0")["status"]["phase"], allowed(api)) == ("Running", 1)


def test_two_budgets_for_one_pod_are_an_error():
    api = protected(minAvailable=0)
    selector = {"matchLabels": {"app": "web"}}
    api.call("POST", BUDGETS, {"metadata": {"name": "more"}, "spec": {"selector": selector}})

    assert api.refusal("POST", f"{PODS}/web-0/eviction", {"metadata": {"name": "web-0"}}).code == 500


def test_budget_with_two_limits_is_refused():
    api = client()
    body = {"metadata": {"name": "x"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}}

    assert "cannot be both set" in api.refusal("POST", BUDGETS, body).message
