"""Suites and campaigns in the API: permissions, refusals, progress."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.models import Cluster, Job, TeamRole, clock
from scheduling.evaluation.loops.campaigns import coordinate_campaigns_once
from scheduling.models import Campaign, Evaluation, Shard
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db

SUITE = {
    "name": "core",
    "output_root": "/shared/out",
    "infer": "answer",
    "metric": "score",
    "datasets": [{"name": "alpha", "samples": 100}, {"name": "beta", "samples": 50, "parts": 1}],
}
WISH = {"checkpoints": ["/checkpoints/a", "/checkpoints/b"], "suite": "core", "nodes": 1}


@pytest.fixture
def ada():
    make.cluster()
    Cluster.objects.update(log_root="/nonexistent")
    return Caller(make.person("ada"))


@pytest.fixture
def asked(ada):
    assert ada.post("suites/", SUITE).status_code == 201
    return ada.post("campaigns/", WISH)


def test_a_suite_is_defined_and_read_again_with_its_datasets(ada):
    made = ada.post("suites/", SUITE)

    assert made.status_code == 201
    told = ada.get(f"suites/{made.json()['id']}/").json()
    assert [one["name"] for one in told["datasets"]] == ["alpha", "beta"]
    assert (told["name"], told["version"], told["framework"]) == ("core", 1, "plain")
    assert "datasets" not in ada.get("suites/").json()["results"][0]


def test_changed_suite_is_a_new_version_and_an_identical_one_is_not(ada):
    first = ada.post("suites/", SUITE).json()
    same = ada.post("suites/", SUITE).json()
    other = ada.post("suites/", SUITE | {"metric": "score --strict"}).json()

    assert (first["version"], same["id"], other["version"]) == (1, first["id"], 2)


def test_campaign_is_created_and_shows_its_progress(asked, ada):
    assert asked.status_code == 201
    told = asked.json()
    assert (told["state"], told["suite"], told["plan"]) == ("PENDING", "core@1", None)
    assert told["progress"] == {"evaluations": 4, "done": 0, "failed": 0, "cancelled": 0, "percent": 0}

    coordinate_campaigns_once(clock.now())

    told = ada.get(f"campaigns/{told['id']}/").json()
    assert told["state"] == "RUNNING"
    assert told["plan"]["makespan_s"] >= told["plan"]["lower_bound_s"] > 0
    assert Job.objects.filter(kind="evaluation", user=ada.user).exists()


def test_campaigns_have_names_and_are_found_by_them(asked, ada):
    named = ada.post("campaigns/", WISH | {"name": "Release candidate"}).json()

    assert (asked.json()["name"], named["name"]) == ("checkpoints, core v1", "Release candidate")
    found = ada.get("campaigns/", {"name__contains": "candidate"}).json()["results"]
    assert [one["id"] for one in found] == [named["id"]]


@pytest.mark.parametrize("name", ["x" * 121, "a\nb", 7])
def test_an_invalid_name_of_a_campaign_is_refused(asked, ada, name):
    answer = ada.post("campaigns/", WISH | {"name": name})

    assert answer.status_code == 400 and list(answer.json()) == ["name"]


def test_inferred_samples_count_half_in_the_progress(asked, ada):
    name = asked.json()["id"]
    coordinate_campaigns_once(clock.now())
    Evaluation.objects.filter(checkpoint="/checkpoints/b").update(state="COMPLETED", scores={"accuracy": 0.5})
    Shard.objects.filter(evaluation__checkpoint="/checkpoints/a").update(state="INFERRED")
    whole = sum(Shard.objects.filter(evaluation__checkpoint="/checkpoints/a").values_list("samples", flat=True))

    told = ada.get(f"campaigns/{name}/").json()

    assert told["progress"]["percent"] == pytest.approx(100 * (150 + whole / 2) / 300)


def test_results_are_read_as_they_arrive(asked, ada):
    name = asked.json()["id"]
    Evaluation.objects.filter(checkpoint="/checkpoints/b", dataset__name="alpha").update(
        state="COMPLETED", scores={"accuracy": 0.25}
    )

    rows = ada.get(f"campaigns/{name}/evaluations/", {"state": "COMPLETED"}).json()["results"]

    assert [(row["checkpoint"], row["dataset"], row["scores"]) for row in rows] == [
        ("/checkpoints/b", "alpha", {"accuracy": 0.25})
    ]


def test_within_sets_a_deadline_relative_to_now(ada):
    ada.post("suites/", SUITE)
    before = clock.now()

    made = ada.post("campaigns/", {"checkpoints": ["/a"], "suite": "core", "within": "2:00:00"})

    deadline = Campaign.objects.get(public_id=made.json()["id"]).deadline_at
    assert before + timedelta(hours=2) <= deadline <= clock.now() + timedelta(hours=2)


@pytest.mark.parametrize(
    ("wish", "field", "sentence"),
    [
        ({"suite": "nope"}, "suite", "vision has no suite 'nope'; available: core"),
        ({"suite": "core@9"}, "suite", "vision has no suite 'core@9'; available: core"),
        ({"suite": "core@x"}, "suite", "'x' is not a version; use NAME or NAME@2"),
        ({"suite": 7}, "suite", "is missing"),
        ({"checkpoints": []}, "checkpoints", "has 0 entries; between 1 and 1000 are allowed"),
        ({"checkpoints": ["a"]}, "checkpoints", "'a' is not an absolute path without .."),
        ({"color": 1}, "color", "is not a field of a campaign"),
        ({"within": "1:00"}, "nodes", "and deadline_at exclude each other; give only one of them"),
        ({"nodes": None, "deadline_at": "2001-01-01T00:00:00Z"}, "deadline_at", "is in the past"),
        ({"within": 0}, "within", "is zero"),
        ({"cluster": "nope"}, "cluster", "there is no cluster 'nope'"),
    ],
)
def test_invalid_campaign_is_refused_with_its_field(ada, wish, field, sentence):
    ada.post("suites/", SUITE)

    refused = ada.post("campaigns/", WISH | wish)

    assert refused.status_code == 400
    assert refused.json() == {field: [sentence]}
    assert not Campaign.objects.exists()


def test_cluster_without_readable_logs_is_refused(ada):
    ada.post("suites/", SUITE)
    Cluster.objects.update(log_root="")

    refused = ada.post("campaigns/", WISH)

    assert refused.json() == {"cluster": ["seren has no job log directory, from which Acme reads the results"]}


def test_suite_whose_trials_fit_no_node_is_refused(ada):
    ada.post("suites/", SUITE | {"gpus": 16})

    refused = ada.post("campaigns/", WISH)

    assert refused.status_code == 400
    assert "gpus_per_node" in refused.json()


def test_other_teams_see_neither_suite_nor_campaign(asked, ada):
    grace = Caller(make.person("grace", in_team="speech"))
    name = asked.json()["id"]

    assert grace.get(f"campaigns/{name}/").status_code == 404
    assert grace.get(f"campaigns/{name}/evaluations/").status_code == 404
    assert grace.post(f"campaigns/{name}/cancel/").status_code == 404
    assert grace.get("campaigns/").json()["results"] == []
    assert grace.get("suites/").json()["results"] == []
    assert grace.post("campaigns/", WISH).json() == {"suite": ["speech has no suite 'core'"]}


def test_viewer_cannot_start_and_colleague_cannot_cancel_a_campaign(asked, ada):
    viewer = Caller(make.person("vera", role=TeamRole.VIEWER))
    colleague = Caller(make.person("carl"))
    name = asked.json()["id"]

    assert viewer.post("campaigns/", WISH).status_code in (400, 403)
    assert colleague.post(f"campaigns/{name}/cancel/").status_code == 403
    assert Campaign.objects.get().state == "PENDING"


def test_owner_cancels_a_campaign_once(asked, ada):
    name = asked.json()["id"]

    assert ada.post(f"campaigns/{name}/cancel/").json()["state"] == "CANCELLED"
    again = ada.post(f"campaigns/{name}/cancel/")

    assert again.status_code == 409
    assert ada.post(f"campaigns/{name}/retry/").status_code == 409


def test_idempotency_key_creates_one_campaign(ada):
    ada.post("suites/", SUITE)
    first = ada.post("campaigns/", WISH, Idempotency_Key="k1")
    second = ada.post("campaigns/", WISH, Idempotency_Key="k1")

    assert first.json() == second.json()
    assert Campaign.objects.count() == 1


def test_number_of_queries_does_not_grow_with_the_campaigns(ada, django_assert_max_num_queries):
    for _ in range(5):
        make.campaign(ada.user)

    with django_assert_max_num_queries(8):
        assert len(ada.get("campaigns/").json()["results"]) == 5
