"""Progress plots of a job in a real browser: numbers on axes and in legends."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.actions import progress
from jobs.models import clock
from tests import make

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
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


@pytest.fixture
def training():
    make.cluster()
    job = make.job(by="ada", gpus_per_node=8, kind="pretrain", name="pretrain-7b")
    attempt = make.running(job)
    now = clock.now()
    beats = [
        {"step": n, "loss": 3 - n / 100, "learning_rate": 3e-4 - n * 2e-6, "at": now - timedelta(seconds=60 - n)}
        for n in range(60)
    ]
    progress.record_attempt_heartbeats(attempt.key, beats)
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
