"""Wait reasons in a real browser: they appear and update without reload, and disappear when the job runs."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.actions import jobs as job_actions
from jobs.models import Quota, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.schedule import schedule_once
from scheduling.loops.start_estimates import estimate_starts_once
from scheduling.models import EstimateError, EstimateLead
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SHOTS = os.environ.get("ACME_SHOTS", "")


@pytest.fixture
def waiting():
    """ada's job waits behind jobs of ben on most of the cluster; her team is at its quota."""
    seren = make.cluster(policy="easy")
    make.team("pretraining", ada="researcher")
    make.team("speech", ben="researcher")
    for number, (by, gpus) in enumerate((("ben", 8), ("ben", 8), ("ada", 6), ("ben", 6)), 1):
        job = make.job(by=by, gpus_per_node=gpus, time_limit=3600 * number, name=f"pretrain-{number}")
        make.running(job, on=[f"seren-00{number}"])
    make.job(by="ben", nodes=3, gpus_per_node=8, time_limit=7200, name="wide")
    make.job(by="ada", nodes=2, gpus_per_node=8, time_limit=7200, name="sft-7b")
    job = make.job(by="ada", nodes=1, gpus_per_node=8, time_limit=7200, name="evaluate-step-4000")
    Quota.objects.create(cluster=seren, team=job.team, gpus=12)
    schedule_once(seren, LIVE_POLICIES["easy"], clock.now(), lambda: None)
    estimate_starts_once(seren, clock.now())
    for lead in EstimateLead.values:
        EstimateError.objects.create(
            cluster=seren, lead=lead, jobs=340, median_s=720, within_p90=0.91, updated_at=clock.now()
        )
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_wait_reasons_appear_without_reload_and_fit(visit, waiting, scheme, width):
    ada = visit("ada", color_scheme=scheme, viewport={"width": width, "height": 1000})

    ada.open_live(f"/jobs/{waiting}/")

    why = ada.page.locator("#why")
    expect(why).to_contain_text("Blockers")
    expect(why).to_contain_text("It would start now if")
    expect(why).to_contain_text("90% likely by")
    expect(why).not_to_contain_text("pretrain-1")
    assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert ada.complaints == []
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / f"why-{scheme}-{width}.png", full_page=True)


def test_wait_reasons_follow_the_queue_and_disappear_when_the_job_runs(visit, waiting):
    ada = visit("ada")
    ada.open_live(f"/jobs/{waiting}/")
    why = ada.page.locator("#why")
    expect(why).to_contain_text("over the quota")

    job_actions.hold(waiting, author=make.author())
    expect(why).to_contain_text("Held by its owner.")

    job_actions.release(waiting, author=make.author())
    make.attempt(waiting, on=["seren-003"], gpus=(6, 7))
    expect(why).to_be_hidden()
