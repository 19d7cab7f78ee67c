"""The submit form in a real browser: the preview follows the fields, and nothing moves when it arrives."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.models import Job, Quota
from scheduling.models import EstimateError, EstimateLead
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SHOTS = os.environ.get("ACME_SHOTS", "")
COUNT_SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shifted += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""


@pytest.fixture
def full():
    """Every GPU is held. ada has earlier jobs, and her team has a quota."""
    seren = make.cluster(policy="easy", gpu_hour_price=2.4)
    make.team("pretraining", ada="researcher", grace="researcher")
    make.team("speech", ben="researcher")
    for number in range(1, 5):
        job = make.job(by="ben", gpus_per_node=8, time_limit=7200, name=f"holder-{number}")
        make.running(job, on=[f"seren-00{number}"])
    make.job(by="ada", nodes=2, gpus_per_node=8, time_limit=7200, name="sft-7b", kind="sft", command="python sft.py")
    make.job(by="grace", gpus_per_node=4, time_limit=7200, name="evaluate-step-4000")
    Quota.objects.create(cluster=seren, team=make.team("pretraining"), gpus=24)
    for lead in EstimateLead.values:
        EstimateError.objects.create(
            cluster=seren, lead=lead, jobs=340, median_s=720, within_p90=0.91, updated_at=make.NOON
        )
    return seren


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_preview_arrives_without_moving_anything(visit, full, scheme, width):
    ada = visit("ada", color_scheme=scheme, viewport={"width": width, "height": 1000})
    ada.page.add_init_script(COUNT_SHIFTS)

    ada.open("/jobs/new/")

    expect(ada.page.locator("#preview")).to_contain_text("90% likely by")
    ada.page.locator("#id_command").fill("torchrun --nproc-per-node 8 train.py --config 'a b.yaml'")
    expect(ada.page.locator("#command-acme")).to_contain_text("torchrun")
    assert ada.page.evaluate("window.shifted") < 0.02
    assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert ada.complaints == []
    if SHOTS:  # last, because a screenshot of the full page resizes the window
        ada.page.screenshot(path=Path(SHOTS) / f"submit-{scheme}-{width}.png", full_page=True)


def test_errors_appear_at_the_fields_while_typing_and_disappear_when_corrected(visit, full):
    ada = visit("ada", viewport={"width": 1440, "height": 1000})
    ada.open("/jobs/new/")
    error = ada.page.locator("#id_time_limit_error")

    ada.page.locator("#id_time_limit").fill("soon")
    expect(error).to_contain_text("is not a duration")
    expect(ada.page.locator("#preview")).to_contain_text("Correct these fields first.")
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / "submit-errors.png", full_page=True)

    ada.page.locator("#id_time_limit").fill("30")
    expect(error).to_have_count(0)
    expect(ada.page.locator("#preview")).to_contain_text("After 30m")


def test_a_form_filled_from_an_earlier_job_submits_it_again(visit, full):
    ada = visit("ada", viewport={"width": 1440, "height": 1000})
    ada.open("/jobs/new/")

    ada.page.get_by_text("Start from an earlier job…").click()
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / "submit-earlier.png")
    ada.page.get_by_role("link", name="sft-7b").click()
    expect(ada.page.locator("#id_command")).to_have_value("python sft.py")
    ada.page.get_by_role("button", name="Submit", exact=True).click()

    expect(ada.page.get_by_text("Submitted as job")).to_be_visible()
    assert Job.objects.filter(name="sft-7b", kind="sft").count() == 2
