"""Why a job waits, in the API and on its page, with the names that the user may see."""

import pytest
from django.test import Client

from jobs.actions import jobs as job_actions
from jobs.actions.journal import Author
from jobs.models import ClusterMode, Quota, clock
from scheduling.loops.start_estimates import estimate_starts_once
from scheduling.models import EstimateError, EstimateLead
from tests.jobs.api import api_make as make


@pytest.fixture
def ada(db):
    return make.Caller(make.person("ada", "vision"))


@pytest.fixture
def grace(db):
    return make.Caller(make.person("grace", "speech"))


@pytest.fixture
def full(ada, grace):
    """Every GPU is held: three nodes by grace, one by ada."""
    make.cluster()
    for number, (user, team) in enumerate([*[(grace.user, "speech")] * 3, (ada.user, "vision")], 1):
        held = make.job(user, team, gpus_per_node=8, time_limit=7200, name=f"holder-of-{user}")
        make.running(held, f"gpu{number:03d}", tuple(range(8)))


def explained(door, job):
    answer = door.get(f"jobs/{job}/explain/")
    assert answer.status_code == 200
    return answer.json()


def test_explanation_names_the_missing_gpus_and_their_holders(ada, full):
    said = explained(ada, make.job(ada.user, gpus_per_node=8))

    first = said["blockers"][0]
    assert (first["kind"], first["reason"], first["gpus"], first["nodes"]) == ("capacity", "Resources", 8, 1)
    assert said["smallest_change"]["who"] == "time"


def test_jobs_of_other_teams_are_not_named(ada, grace, full):
    asked = {"gpus_per_node": 8, "nodes": 4}
    hers, his = explained(ada, make.job(ada.user, **asked)), explained(grace, make.job(grace.user, "speech", **asked))

    assert [(one["team"], one["jobs"], one["gpus"]) for one in hers["blockers"][0]["holders"]] == [
        ("vision", 1, 8),
        ("", 3, 24),
    ]
    assert "holder-of-grace" not in str(hers) and "holder-of-ada" not in str(his)
    assert "holder-of-grace" in str(his)


def test_site_administrators_see_the_names_of_all_holders(ada, full):
    root = make.Caller(make.person("root", "", is_superuser=True))

    assert "holder-of-grace" in str(explained(root, make.job(ada.user, gpus_per_node=8, nodes=4)))


def test_a_job_of_another_team_is_not_explained(ada, grace, full):
    job = make.job(ada.user, gpus_per_node=8)

    assert grace.get(f"jobs/{job}/explain/").status_code == 404


def test_expected_end_of_a_job_names_it_to_its_team_only(ada, grace, full):
    said = explained(ada, make.job(ada.user, gpus_per_node=8))
    grace_ends = [
        one["why"] for one in [said["smallest_change"], *said["other_changes"]] if "another team" in one["why"]
    ]

    assert grace_ends
    assert all("at its limit in about" in one for one in grace_ends)


def test_quota_blocker_names_its_holders_and_the_missing_gpus(ada, full):
    Quota.objects.create(team=make.team(), cluster=make.cluster(), gpus=8)

    said = explained(ada, make.job(ada.user, gpus_per_node=4))

    assert (said["blockers"][0]["kind"], said["blockers"][0]["gpus"]) == ("quota", 4)
    assert said["blockers"][0]["holders"][0]["title"] == "holder-of-ada"


def test_job_that_does_not_wait_has_no_explanation(ada):
    said = explained(ada, make.running(make.job(ada.user)))

    assert (said["blockers"], said["smallest_change"], said["estimate"]) == ([], None, None)


def test_observed_cluster_shows_the_stored_reason(ada):
    job = make.job(ada.user)
    job_actions.store_wait_reasons([job_actions.WaitReason(job.pk, "Resources", "It needs 8 GPUs.")])
    job.cluster.mode = ClusterMode.OBSERVE
    job.cluster.save()

    said = explained(ada, job)

    assert (said["why"], said["blockers"]) == ("It needs 8 GPUs.", [])


def test_estimate_is_shown_with_the_past_error_of_its_lead(ada, full):
    job = make.job(ada.user, gpus_per_node=8, time_limit=3600)
    estimate_starts_once(job.cluster, clock.now())
    estimate = job.estimate
    lead = EstimateLead.of(estimate.p50 - clock.now())
    EstimateError.objects.create(
        cluster=job.cluster, lead=lead, jobs=40, median_s=312.4, within_p90=0.875, updated_at=clock.now()
    )

    said = explained(ada, job)

    assert said["estimate"]["p50"] <= said["estimate"]["p90"]
    assert said["past_error"] == {"lead": lead, "jobs": 40, "median_s": 312, "within_p90": 0.875}


def test_hold_is_shown_at_once(ada, full):
    job = make.job(ada.user, gpus_per_node=8)
    explained(ada, job)
    job_actions.hold(job, author=Author(by="ada", user_id=ada.user.pk))

    assert explained(ada, job)["blockers"][0]["kind"] == "hold"


# the page


def page(user, job, **headers):
    client = Client()
    client.force_login(user)
    return client.get(f"/jobs/{job}/why/", **headers)


def test_the_page_shows_blockers_change_and_estimate(ada, full):
    job = make.job(ada.user, gpus_per_node=8, time_limit=3600)
    estimate_starts_once(job.cluster, clock.now())

    shown = page(ada.user, job).content.decode()

    assert "Blockers" in shown and "It would start now if" in shown and "90% likely by" in shown
    assert "holder-of-grace" not in shown


def test_the_fragment_is_one_section(ada, full):
    job = make.job(ada.user, gpus_per_node=8)

    shown = page(ada.user, job, HTTP_HX_REQUEST="true", HTTP_HX_TARGET="section#why").content.decode()

    assert shown.startswith('<section id="why"') and shown.rstrip().endswith("</section>")


def test_explanation_of_another_teams_job_is_not_found(ada, grace, full):
    assert page(grace.user, make.job(ada.user)).status_code == 404


def test_job_names_are_escaped(ada, full):
    make.running(make.job(ada.user, name="<b>x</b>", gpus_per_node=0), gpus=())
    job = make.job(ada.user, gpus_per_node=8, nodes=2)

    assert "<b>x</b>" not in page(ada.user, job).content.decode()


def test_the_job_page_asks_for_the_fragment(ada, full):
    job = make.job(ada.user, gpus_per_node=8)
    client = Client()
    client.force_login(ada.user)

    shown = client.get(f"/jobs/{job}/").content.decode()

    assert f'hx-get="/jobs/{job}/why/"' in shown and 'hx-trigger="load, ' in shown


def test_snapshot_is_shared_between_requests(ada, full, django_assert_max_num_queries):
    job = make.job(ada.user, gpus_per_node=8)
    explained(ada, job)

    with django_assert_max_num_queries(13):
        explained(ada, job)


@pytest.fixture
def one_node_free(ada, grace):
    """Three of four nodes are held by grace."""
    make.cluster()
    for number in (1, 2, 3):
        make.running(make.job(grace.user, "speech", gpus_per_node=8), f"gpu{number:03d}", tuple(range(8)))


def suggestions(user, job):
    browser = Client()
    browser.force_login(user)
    page = browser.get(f"/jobs/{job}/why/").content.decode()
    return page.partition("What would start it now")[2].partition("Start estimate")[0]


def test_the_owner_can_apply_a_suggestion(ada, one_node_free):
    job = make.job(ada.user, nodes=2, gpus_per_node=8)

    part = suggestions(ada.user, job)

    assert f'action="/jobs/{job}/resubmit/"' in part and '<input type="hidden" name="nodes" value="1">' in part
    assert explained(ada, job)["smallest_change"]["request"] == {"nodes": 1}


def test_a_suggestion_that_the_command_contradicts_can_only_be_edited(ada, one_node_free):
    job = make.job(ada.user, nodes=2, gpus_per_node=8, command="torchrun --nnodes 2 train.py")

    part = suggestions(ada.user, job)

    assert "The command contains <code>--nnodes 2</code>" in part
    assert f'href="/jobs/new/?from={job}&amp;nodes=1"' in part and "Apply and resubmit" not in part


def test_others_can_only_submit_their_own_copy(ada, one_node_free):
    job = make.job(ada.user, nodes=2, gpus_per_node=8)

    part = suggestions(make.person("bob", "vision"), job)

    assert f'href="/jobs/new/?from={job}&amp;nodes=1"' in part and "Apply and resubmit" not in part
