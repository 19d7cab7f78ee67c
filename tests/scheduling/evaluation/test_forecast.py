"""The plan of a campaign: how many nodes, and whether it meets the deadline."""

import pytest

from scheduling.evaluation.rules import forecast
from scheduling.evaluation.rules.forecast import DEFAULT_NODES, CampaignWorkload
from scheduling.evaluation.rules.work import SliceCost

COSTS = {
    "arc": SliceCost(prepare=20.0, infer=400.0, score=10.0),
    "gsm8k": SliceCost(prepare=10.0, infer=2000.0, score=60.0),
}


def workload(checkpoints=4, most_nodes=16, **fields):
    work = [(f"step-{number}", name, 1000, 8) for number in range(checkpoints) for name in COSTS]
    usual = {"work": work, "costs": COSTS, "checkpoint_gb": 14.0, "most_nodes": most_nodes}
    return CampaignWorkload(**(usual | {"slots_per_node": 2, "metric_jobs": 4} | fields))


@pytest.mark.parametrize(
    ("nodes", "within_s", "most_nodes", "planned"),
    [(3, None, 16, 3), (None, None, 16, DEFAULT_NODES), (9, None, 2, 2), (None, None, 2, 2), (3, 1.0, 0, 1)],
)
def test_number_of_nodes_is_the_requested_or_a_default_within_the_cluster(nodes, within_s, most_nodes, planned):
    document = forecast.plan(workload(most_nodes=most_nodes), nodes, within_s)

    assert document["nodes"] == planned and document["meets_deadline"] is None


def test_deadline_is_met_with_the_fewest_nodes():
    work = workload()
    two = forecast.plan(work, 2, None)["makespan_s"]

    document = forecast.plan(work, None, two + 0.1)

    assert (document["nodes"], document["meets_deadline"]) == (2, True)
    assert forecast.plan(work, 1, None)["makespan_s"] > two


def test_deadline_that_cannot_be_met_uses_all_nodes_and_says_so():
    document = forecast.plan(workload(most_nodes=3), None, 1.0)

    assert (document["nodes"], document["meets_deadline"]) == (3, False)


def test_plan_is_not_shorter_than_its_bound_and_every_trial_has_a_bar():
    document = forecast.plan(workload(), 2, None)

    assert 0 < document["lower_bound_s"] <= document["makespan_s"]
    assert len(document["bars"]) >= document["trials"] > 0
    assert document["gpu_hours"] <= document["makespan_s"] * 2 * 2 / 3600 + 0.001


def test_each_node_scores_at_least_one_result():
    assert [workload(metric_jobs=4).site(nodes).scorers_per_node for nodes in (1, 2, 3, 16)] == [4, 2, 1, 1]
