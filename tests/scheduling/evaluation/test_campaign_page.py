"""The pages of campaigns: form, display while they run, permissions."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.models import Cluster
from scheduling.models import Campaign
from tests import make as people
from tests.scheduling.evaluation.campaign_make import A, B, Played, campaign, suite

pytestmark = pytest.mark.django_db


@pytest.fixture
def played(tmp_path):
    return Played(tmp_path)


@pytest.fixture
def ada(client, played):
    client.force_login(people.user("ada"))
    return client


def page(client, name, *args, **more):
    answer = client.get(reverse(name, args=args), **more)
    assert answer.status_code == 200
    return answer.content.decode()


def test_page_without_suites_explains_how_to_define_one(ada):
    people.team(ada="researcher")

    assert "acme suite FILE.json" in page(ada, "campaigns")


def test_form_creates_a_campaign_with_one_checkpoint_per_line(ada, played):
    of = suite()

    answer = ada.post(
        reverse("campaigns"),
        {"checkpoints": f"{A}\n\n {B} \n", "suite": f"{of.team.name}/{of.name}", "cluster": "seren", "nodes": "2"},
    )

    made = Campaign.objects.get()
    assert answer.url == reverse("campaign", args=[made.public_id])
    assert made.checkpoints == [A, B]
    assert made.nodes == 2


def test_form_offers_each_suite_with_its_team(ada, played):
    of = suite()
    people.team("speech", ada="researcher")  # has no suite

    [(value, label)] = ada.get(reverse("campaigns")).context["form"].fields["suite"].choices

    assert (value, label) == (f"{of.team.name}/{of.name}", f"{of.name} of {of.team.name}")


def test_invalid_value_is_explained_beside_its_field(ada, played):
    of = suite()

    answer = ada.post(
        reverse("campaigns"), {"checkpoints": "relative", "suite": f"{of.team.name}/{of.name}", "cluster": "seren"}
    )

    assert answer.status_code == 400
    assert "&#x27;relative&#x27; is not an absolute path without .." in answer.content.decode()


def test_campaign_page_shows_plan_results_and_timeline(ada, played):
    asked = campaign(played.cluster, A, B, of=suite(stage_root="/dev/shm/models"))
    played.run_all()

    shown = page(ada, "campaign", asked.public_id)

    assert "0.5000" in shown and "accuracy" in shown
    assert "run/step-1000" in shown and "run/step-2000" in shown
    assert "GPU 0" in shown and "metrics" in shown and "copies" in shown
    assert "planned" in shown and "GPU-hours" in shown


def test_result_shows_its_change_from_the_previous_checkpoint(ada, played):
    asked = campaign(played.cluster, A, B, of=suite(datasets=[{"name": "alpha", "samples": 10, "parts": 1}]))
    for _ in range(8):
        played.turn()
        for job in played.waiting():
            played.run(job, scores={"accuracy": 0.5 if played.told(job)["model"] == A else 0.375})

    shown = page(ada, "campaign", asked.public_id)

    assert shown.index("0.5000") < shown.index("0.3750") < shown.index("-0.1250")
    assert shown.count("-0.1250") == 1


def test_failed_evaluations_are_listed_below_the_table(ada, played):
    asked = campaign(played.cluster, of=suite(metric="", datasets=[{"name": "alpha", "samples": 10, "parts": 1}]))
    for _ in range(4):
        played.turn()
        for job in played.waiting():
            played.run(job, scores={}, code=1, why="the judge does not answer")

    listed = page(ada, "campaign", asked.public_id).partition('<ul class="failed">')[2].partition("</ul>")[0]

    assert "alpha" in listed and "run/step-1000" in listed and "the judge does not answer" in listed


def test_page_reloads_only_while_the_campaign_runs(ada, played):
    asked = campaign(played.cluster)

    assert f"campaign:{asked.public_id}" in page(ada, "campaign", asked.public_id)
    played.run_all()

    assert "hx-get" not in page(ada, "campaign", asked.public_id).partition('<div id="campaign"')[2].partition(">")[0]


def test_the_fragment_alone_answers_htmx(ada, played):
    asked = campaign(played.cluster)
    shown = page(ada, "campaign", asked.public_id, headers={"HX-Request": "true", "HX-Target": "div#campaign"})

    assert shown.startswith('<div id="campaign"')
    assert "<html" not in shown


def test_other_teams_neither_see_nor_cancel_a_campaign(client, played):
    asked = campaign(played.cluster)
    people.team("speech", ben="admin")
    client.force_login(people.user("ben"))

    assert client.get(reverse("campaign", args=[asked.public_id])).status_code == 404
    assert client.post(reverse("campaign-cancel", args=[asked.public_id])).status_code == 404
    assert asked.public_id not in page(client, "campaigns")


def test_owner_cancels_a_campaign_and_a_second_time_gets_a_reason(ada, played):
    asked = campaign(played.cluster)

    first = ada.post(reverse("campaign-cancel", args=[asked.public_id]), follow=True)
    second = ada.post(reverse("campaign-cancel", args=[asked.public_id]), follow=True)

    assert "was cancelled. Existing results are kept." in first.content.decode()
    assert "has already ended: CANCELLED." in second.content.decode()


def test_checkpoint_names_and_job_messages_are_escaped(ada, played):
    asked = campaign(played.cluster, "/checkpoints/<script>alert(1)</script>")
    asked.evaluations.update(state="FAILED", why='"><script>alert(2)</script>')

    shown = page(ada, "campaign", asked.public_id)

    assert "<script>alert" not in shown


def test_campaign_page_queries_do_not_grow_with_datasets(ada, played, django_assert_max_num_queries):
    of = suite(datasets=[{"name": f"d{n}", "samples": 10} for n in range(60)])
    asked = campaign(played.cluster, *(f"/c/{n}" for n in range(8)), of=of)
    played.turn()

    with django_assert_max_num_queries(16):
        page(ada, "campaign", asked.public_id)


def test_campaign_list_queries_do_not_grow_with_campaigns(ada, played, django_assert_max_num_queries):
    of = suite()
    for _ in range(6):
        campaign(played.cluster, of=of)

    with django_assert_max_num_queries(12):
        assert page(ada, "campaigns").count("campaign-") >= 6
    assert Cluster.objects.count() == 1


def evaluate(cluster, of, scores):
    """Campaigns of one checkpoint each, with these scores of dataset alpha by step."""
    for step, score in scores.items():
        made = campaign(cluster, f"/checkpoints/run/step-{step}", of=of)
        made.evaluations.filter(dataset__name="alpha").update(state="COMPLETED", scores={"accuracy": score})
    return made


def test_scores_over_steps_come_from_all_campaigns_of_the_run(ada, played):
    of = suite()
    newest = evaluate(played.cluster, of, {3000: 0.3, 1000: 0.5, 2000: 0.55})
    evaluate(played.cluster, suite("other"), {4000: 0.9})

    shown = page(ada, "campaign", newest.public_id)

    assert "Scores over steps" in shown and "▼ 1 regression<" in shown
    assert "alpha, accuracy: from 0.5000 at step 1,000 to 0.3000 at step 3,000. Down 0.2500 since step 2,000" in shown
    table = shown.partition('id="scores-table-1"')[2]
    assert table.index("1,000") < table.index("2,000") < table.index("3,000") and "4,000" not in table
    assert table.count("▼ regression") == 1 and "± 0.1000" in table


def test_a_drop_within_the_sampling_error_is_no_regression(ada, played):
    newest = evaluate(played.cluster, suite(), {1000: 0.5, 2000: 0.45})

    shown = page(ada, "campaign", newest.public_id)

    assert "✓ No regressions" in shown and "▼ regression" not in shown


def test_result_table_highlights_a_regression_between_its_checkpoints(ada, played):
    made = campaign(played.cluster, A, B)
    for checkpoint, score in ((A, 0.9), (B, 0.2)):
        made.evaluations.filter(dataset__name="alpha", checkpoint=checkpoint).update(
            state="COMPLETED", scores={"accuracy": score}
        )

    results = page(ada, "campaign", made.public_id).partition('class="results"')[2].partition("</table>")[0]

    assert results.count("▼ regression") == 1 and results.index("0.2000") < results.index("▼ regression")


def test_scores_of_other_teams_are_not_shown(ada, played):
    made = evaluate(played.cluster, suite(), {1000: 0.5})
    of = suite(team=people.team("speech", ben="researcher"))
    evaluate(played.cluster, of, {2000: 0.1})

    assert "Scores over steps" not in page(ada, "campaign", made.public_id)


def test_a_campaign_has_a_name_on_its_pages(ada, played):
    made = campaign(played.cluster, A, B, name="Release <candidate>")
    usual = campaign(played.cluster, A)

    listed, shown = page(ada, "campaigns"), page(ada, "campaign", made.public_id)

    assert "Release &lt;candidate&gt;" in listed and "Release &lt;candidate&gt;" in shown
    assert usual.name == "run, step 1,000, core v1" and usual.name in listed
