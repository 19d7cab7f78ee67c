"""Progress plots of a job in a real browser: numbers on axes and in legends."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.actions.jobs import AttemptEnd
from jobs.core.lifecycle import State
from jobs.models import Attempt, Checkpoint, clock
from tests import make
from tests.scheduling.evaluation import campaign_make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]
SHOTS = os.environ.get("ACME_SHOTS", "")
LABELS = {
    (0.0001, 0.0001): "1e-4",
    (0.00025, 0.00005): "2.5e-4",
    (0.00030000000000000003, 0.0001): "3e-4",
    (0.00025, 0.00025): "2.5e-4",
    (0.00075, 0.00025): "7.5e-4",
    (0.00125, 0.00025): "0.00125",
    (2.5e-7, 2.5e-7): "2.5e-7",
    (1.25e-6, 2.5e-7): "1.25e-6",
    (0.0025, 0.0025): "0.0025",
    (0.025, 0.025): "0.025",
    (0.0015, 0.0005): "0.0015",
    (1.2e-9, 2e-10): "1.2e-9",
    (-0.0002, 0.0001): "-2e-4",
    (0, 0.0001): "0",
    (2.5, 0.5): "2.5",
    (0.995, 0.001): "0.995",
    (12000, 1000): "12,000",
}


def report(attempt, steps, began):
    """Report a step per second."""
    beats = [
        {
            "step": n,
            "loss": 3 - n / 100,
            "learning_rate": 3e-4 - n * 2e-6,
            "at": began + timedelta(seconds=n - steps[0]),
        }
        for n in steps
    ]
    progress.record_attempt_heartbeats(attempt.key, beats)


@pytest.fixture
def training():
    make.cluster()
    job = make.job(by="ada", gpus_per_node=8, kind="pretrain", name="pretrain-7b")
    report(make.running(job), range(60), clock.now() - timedelta(seconds=60))
    return job


@pytest.fixture
def restarted():
    """A job whose second attempt repeats the steps from 40 on, after a failed node."""
    make.cluster()
    now = clock.now()
    job = make.job(by="ada", gpus_per_node=8, kind="pretrain", name="pretrain-7b")
    first = make.running(job)
    report(first, range(60), now - timedelta(seconds=240))
    Checkpoint.objects.create(job=job, attempt=first, step=40, path="/c/40", saved_at=now - timedelta(seconds=200))
    job_actions.finish(
        first, AttemptEnd(state=State.NODE_FAIL, at=now - timedelta(seconds=170), exit_code=1), author=make.LOOP
    )
    second = make.running(job)
    report(second, range(40, 120), now - timedelta(seconds=100))
    Attempt.objects.filter(pk=first.pk).update(confirmed_at=now - timedelta(seconds=250))
    Attempt.objects.filter(pk=second.pk).update(confirmed_at=now - timedelta(seconds=101))
    return job


def test_a_small_figure_keeps_its_digits(visit, training):
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.open(f"/jobs/{training}/?tab=metrics")
    expect(ada.page.locator("#plots[data-drawn='2']")).to_be_visible()

    said = ada.page.evaluate("asked => asked.map(([value, apart]) => drawing.label(value, apart))", list(LABELS))
    assert dict(zip(LABELS, said, strict=True)) == LABELS
    assert ada.page.evaluate("[null, 0.0002345678, 2.80412].map(drawing.short)") == ["–", "0.0002346", "2.804"]

    plot = ada.page.locator("#plots .uplot").nth(1)
    plot.locator(".u-over").hover(position={"x": 3, "y": 20})
    expect(plot.locator(".u-legend .u-series").nth(1).locator(".u-value")).to_have_text("0.0003")
    drawn_height = plot.locator(".u-over").bounding_box()["height"]
    assert drawn_height >= 220
    ada.page.get_by_role("button", name="log", exact=True).click()
    ada.page.get_by_role("button", name="strong", exact=True).click()
    expect(ada.page.locator("#plots[data-drawn='2']")).to_be_visible()
    assert ada.complaints == []
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / "plots.png", full_page=True)


def test_charts_of_a_restarted_job_show_its_history(visit, restarted):
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.open(f"/jobs/{restarted}/?tab=metrics")
    expect(ada.page.locator("#plots[data-drawn='2']")).to_be_visible()
    loss = ada.page.locator("[data-metric=loss] .uplot")

    # The steps from 40 on are repeated: the first attempt's line of them is a line of its own
    assert loss.locator(".u-legend .u-series").count() == 3
    loss.locator(".u-over").hover(position={"x": 2, "y": 40})
    expect(loss.locator(".tip")).to_have_text("Attempt 1 started.")
    values = ada.page.locator("[data-metric=learning_rate] .u-legend .u-value")
    expect(values.nth(0)).to_have_text("0")
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / "restarted.png", full_page=True)

    ada.page.get_by_text("Events on the charts").click()
    expect(ada.page.locator("#chart-events tbody tr")).to_have_count(3)
    expect(ada.page.locator("#chart-events")).to_contain_text("Attempt 1 ended as NODE_FAIL")
    ada.page.get_by_text("Values as a table").click()
    expect(ada.page.locator(".chart-values tbody tr").first).to_contain_text("loss31.8131.81")
    assert ada.complaints == []


def test_a_zoom_applies_to_all_charts_until_it_is_reset(visit, restarted):
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.open(f"/jobs/{restarted}/?tab=metrics")
    expect(ada.page.locator("#plots[data-drawn='2']")).to_be_visible()
    reset = ada.page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_disabled()

    area = ada.page.locator("[data-metric=loss] .u-over").bounding_box()
    ada.page.mouse.move(area["x"] + area["width"] / 2, area["y"] + 50)
    ada.page.mouse.down()
    ada.page.mouse.move(area["x"] + area["width"] - 2, area["y"] + 50, steps=4)
    ada.page.mouse.up()
    expect(reset).to_be_enabled()
    other = ada.page.locator("[data-metric=learning_rate] .uplot")
    other.locator(".u-over").hover(position={"x": 2, "y": 40})
    expect(other.locator(".u-legend .u-value").first).to_have_text("60")

    reset.click()
    other.locator(".u-over").hover(position={"x": 2, "y": 40})
    expect(other.locator(".u-legend .u-value").first).to_have_text("0")
    ada.page.get_by_role("button", name="time", exact=True).click()
    ada.page.get_by_role("button", name="elapsed", exact=True).click()
    other.locator(".u-over").hover(position={"x": 2, "y": 40})
    expect(other.locator(".u-legend .u-value").first).to_have_text(re.compile("[01]s"))
    assert ada.complaints == []


def test_two_runs_are_compared_on_the_same_charts(visit, restarted):
    other = make.job(by="ada", gpus_per_node=8, kind="pretrain", name="pretrain-7b")
    report(make.running(other, on=("seren-002",)), range(90), clock.now() - timedelta(seconds=90))
    ada = visit("ada", viewport={"width": 390, "height": 844})
    ada.open(f"/jobs/{restarted}/?tab=metrics")
    expect(ada.page.locator("#plots[data-runs='1']")).to_be_visible()

    ada.page.get_by_text("Compare runs").click()
    ada.page.get_by_role("link", name="Add pretrain-7b").click()
    expect(ada.page.locator("#plots[data-runs='2']")).to_be_visible()
    labels = ada.page.locator("[data-metric=loss] .u-legend .u-series:not(.repeated) .u-label")
    assert labels.all_text_contents() == ["step", "pretrain-7b", "pretrain-7b"]
    assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / "compared-390.png", full_page=True)
        ada.page.set_viewport_size({"width": 1440, "height": 900})
        ada.page.emulate_media(color_scheme="dark")
        ada.page.screenshot(path=Path(SHOTS) / "compared-dark.png", full_page=True)

    ada.page.get_by_role("link", name="Remove pretrain-7b").click()
    expect(ada.page.locator("#plots[data-runs='1']")).to_be_visible()
    assert ada.complaints == []


def test_scores_over_steps_fit_a_phone(visit, tmp_path):
    cluster = make.cluster(log_root=str(tmp_path))
    of = campaign_make.suite(
        datasets=[{"name": name, "samples": 500} for name in ("mmlu", "gsm8k", "humaneval", "arc_challenge")]
    )
    for number in range(1, 9):
        newest = campaign_make.campaign(cluster, f"/checkpoints/llama-7b/step-{number * 1000}", of=of)
        for place, row in enumerate(newest.evaluations.order_by("id")):
            score = 0.2 + 0.05 * number * (1 + place / 10) - (0.3 if (number, place) == (7, 1) else 0)
            newest.evaluations.filter(pk=row.pk).update(state="COMPLETED", scores={"accuracy": score})
    ada = visit("ada", viewport={"width": 390, "height": 844})
    ada.open(f"/evaluations/{newest.public_id}/")

    charts = ada.page.locator(".score-charts figure")
    expect(charts).to_have_count(4)
    expect(charts.first).to_contain_text("gsm8k")  # the one with a regression comes first
    expect(charts.first).to_contain_text("▼ 1 regression")
    assert charts.first.locator("polygon.drop").count() == 1
    assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ada.page.get_by_text("Scores as a table").click()
    expect(ada.page.get_by_role("cell", name="▼ regression")).to_have_count(1)
    if SHOTS:
        ada.page.screenshot(path=Path(SHOTS) / "scores-390.png", full_page=True)
        ada.page.set_viewport_size({"width": 1440, "height": 900})
        ada.page.screenshot(path=Path(SHOTS) / "scores.png", full_page=True)
        ada.page.emulate_media(color_scheme="dark")
        ada.page.screenshot(path=Path(SHOTS) / "scores-dark.png", full_page=True)
    assert ada.complaints == []
