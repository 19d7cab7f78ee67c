"""The map's slider in a real browser: the past by mouse, keyboard and replay; stable and accessible."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from failures.actions import anomalies as anomaly_actions
from failures.detection.findings import DetectorFinding, Severity, SymptomType
from jobs.actions import journal
from jobs.core.telemetry_math import interval_start
from jobs.models import Node, Resolution, Sample, TeamRole, clock
from tests import make
from tests.browser.test_every_page import ALWAYS, AXE, VIOLATIONS
from tests.jobs.pages.test_map_history import ran

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SHOTS = os.environ.get("ACME_SHOTS", "")
BOXES = """() => ["#map .headline", "#map .when", "#map-at", "#map-moment", "#map-words", "#map-canvas"].map((one) => {
  const box = document.querySelector(one).getBoundingClientRect();
  return [one, box.left, box.top, box.width, box.height].join(" ");
})"""


@pytest.fixture
def past():
    """Ada's job ran for a day until five hours ago; a node was down two days ago, and one shows an Xid."""
    seren = make.cluster(created_at=clock.now() - timedelta(days=40))
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    now = interval_start(clock.now(), 300)
    job = make.job(by="ada", nodes=2, gpus_per_node=8, name="pretrain-7b", kind="pretrain")
    ran(job, now - timedelta(days=1, hours=5), now - timedelta(hours=5))
    for days, before, after in ((3, "UP", "DOWN"), (2, "DOWN", "UP")):
        row = Node.objects.get(name="seren-003")
        event = journal.node_event("node.state_changed", make.LOOP, row, from_state=before, to_state=after)
        event.at = now - timedelta(days=days)
        event.save()
    xid = DetectorFinding(
        symptom=SymptomType.NODE, since=now.timestamp(), severity=Severity.BAD, why="Xid 79: it fell off the bus."
    )
    anomaly_actions.record_finding(
        xid, seren, clock.now(), node=Node.objects.select_related("cluster").get(name="seren-004")
    )
    for row in Node.objects.all():
        for hours in (0, 6):
            at = interval_start(now - timedelta(hours=hours), 300)
            busy, hot = [90.0 - hours * 10] * 8, [50.0 + 5 * gpu for gpu in range(8)]
            rows = {"gpu_util": busy, "gpu_temperature_c": hot, "resolution": Resolution.FIVE_MINUTES}
            Sample.objects.create(node=row, at=at, **rows)
    return job


def shown(page, at="now"):
    expect(page.locator(f"#map-canvas[data-at='{at}']")).to_have_count(1)


def at_of(page):
    return int(page.locator("#map-canvas").get_attribute("data-at"))


def point(page, gpu=0):
    """Return the text for the first GPU of the first node."""
    canvas = page.locator("#map-canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    return page.locator("#map-words")


def test_slider_keys_move_by_the_selected_step(visit, past):
    ada = visit("ada")
    ada.open("/map/")
    page = ada.page
    shown(page)
    page.focus("#map-at")

    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#map-canvas:not([data-at=now])")
    first = at_of(page)
    page.keyboard.press("ArrowLeft")
    shown(page, first - 3600)
    page.select_option("#map-step", "300")
    page.focus("#map-at")
    page.keyboard.press("ArrowRight")
    shown(page, first - 3300)
    page.keyboard.press("PageDown")
    shown(page, first - 3300 - 86400)

    expect(page).to_have_url(re.compile(r"\?at=20.*Z$"))
    page.click("#map-now")
    shown(page)
    expect(page).to_have_url(re.compile(r"^[^=]*$"))
    assert ada.complaints == []


def test_past_map_names_and_opens_the_job_of_that_time(visit, past):
    ada = visit("ada")
    ada.open("/map/")
    page = ada.page
    shown(page)
    words = point(page)
    expect(words).to_contain_text("seren-001 GPU 0 · IDLE · free")

    for _ in range(6):
        page.click("#map-back")

    expect(words).to_contain_text("ALLOCATED · pretrain-7b of pretraining")
    expect(page.locator("#racks")).to_contain_text("UTC")
    expect(page.locator("#racks td[data-label=Held]")).to_have_text("16")
    page.reload()  # the URL keeps the moment
    page.wait_for_selector("#map-canvas[data-cells]")
    expect(point(page)).to_contain_text("pretrain-7b")
    page.locator("#map-canvas").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{past.public_id}/")
    assert ada.complaints == []


def test_replay_runs_to_the_present_and_continues_live(visit, past):
    ada = visit("ada")
    ada.open("/map/")
    page = ada.page
    shown(page)
    for _ in range(2):
        page.click("#map-back")

    page.click("#map-play")

    expect(page.locator("#map-play")).to_have_attribute("aria-pressed", "true")
    shown(page)
    expect(page.locator("#map-play")).to_have_attribute("aria-pressed", "false")
    make.running(make.job(by="ada", gpus_per_node=8, name="just-begun"))
    expect(point(page)).to_contain_text("just-begun")


def test_colors_show_the_age_of_the_last_error(visit, past):
    ada = visit("ada")
    ada.open("/map/")
    page = ada.page
    shown(page)
    page.select_option("#map-by", "error")

    canvas, words = page.locator("#map-canvas"), page.locator("#map-words")
    expect(page.locator("#map-legend")).to_contain_text("within a week")
    canvas.focus()
    seen = []
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        seen.append(words.inner_text())

    assert any("seren-001 GPU" in one and "no error in 30 days" in one for one in seen)
    assert any("seren-003 GPU" in one and "last error 3d earlier: went down" in one for one in seen)
    assert any("seren-004 GPU" in one and ": Xid 79" in one for one in seen)
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / "map-errors.png", full_page=True)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_past_map_is_stable_and_accessible(visit, past, scheme, width):
    ada = visit("ada", color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    ada.open("/map/")
    page = ada.page
    shown(page)
    before = page.evaluate(BOXES)
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"map-now-{scheme}-{width}.png", full_page=True)

    for _ in range(6):
        page.click("#map-back")
    page.wait_for_selector("#map-canvas:not([data-at=now])")
    expect(page.locator("#racks")).to_contain_text("UTC")

    assert page.evaluate(BOXES) == before
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.add_script_tag(path=AXE)
    assert page.evaluate(VIOLATIONS, [None, ALWAYS]) == []
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"map-then-{scheme}-{width}.png", full_page=True)
    assert ada.complaints == []


def test_unavailable_moment_is_reported(visit, past, server):
    ada = visit("ada")
    ada.open("/map/")
    page = ada.page
    shown(page)
    page.route("**/map/seren/data/?at=*", lambda route: route.abort())

    page.click("#map-back")

    expect(page.locator("#map-words")).to_contain_text("could not be loaded")


def test_card_of_a_gpu_follows_pointer_and_keyboard(visit, past):
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.open_live("/map/")
    page = ada.page
    shown(page)
    card, canvas = page.locator("#map-card"), page.locator("#map-canvas")
    expect(card).to_be_hidden()

    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(card).to_contain_text("seren-001 GPU 0")
    expect(card).to_contain_text("none in 30 days")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(card).to_contain_text("seren-001 GPU 3")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()

    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 30)
    expect(card).to_contain_text("Utilization")
    inside = card.bounding_box()
    assert inside["x"] >= 0 and inside["x"] + inside["width"] <= 1440
    page.mouse.move(box["x"] + 20, box["y"] - 200)
    expect(card).to_be_hidden()
    assert ada.complaints == []


def test_card_names_the_user_and_the_job_of_a_past_moment(visit, past):
    ada = visit("ada")
    at = interval_start(clock.now(), 300) - timedelta(hours=6)
    ada.open_live(f"/map/?at={at:%Y-%m-%dT%H:%M:%SZ}")
    shown(ada.page, int(at.timestamp()))

    ada.page.locator("#map-canvas").focus()
    ada.page.keyboard.press("ArrowRight")

    expect(ada.page.locator("#map-card")).to_contain_text(f"pretrain-7b ({past.public_id})")
    expect(ada.page.locator("#map-card")).to_contain_text("ada, pretraining")


def went_down(node, at):
    row = Node.objects.get(name=node)
    for later, before, after in ((0, "UP", "DOWN"), (600, "DOWN", "UP")):
        event = journal.node_event("node.state_changed", make.LOOP, row, from_state=before, to_state=after)
        event.at = at + timedelta(seconds=later)
        event.save()


def test_events_that_are_close_share_a_button_which_shows_one_after_the_other(visit, past):
    begin = interval_start(clock.now(), 300) - timedelta(days=10)
    went_down("seren-001", begin)
    went_down("seren-002", begin + timedelta(hours=1))
    ada = visit("ada")
    ada.open_live("/map/")

    shared = ada.page.locator("#map-events button").first
    expect(shared).to_have_text("▼2")
    expect(shared).to_have_attribute("title", re.compile("node down: seren-001.*; node down: seren-002"))
    box = shared.bounding_box()
    assert min(box["width"], box["height"]) >= 24
    for hours in (0, 1, 0):
        shared.click()
        shown(ada.page, int((begin + timedelta(hours=hours, seconds=300)).timestamp()))


def test_events_are_reached_by_keyboard_and_show_the_map_of_their_time(visit, past):
    ada = visit("ada")
    ada.open_live("/map/")
    page = ada.page
    expect(page.locator("#map-events[data-count='1']")).to_have_count(1)  # the outage; the incident is not hers to see
    outage = page.locator("#map-events button")

    page.locator("#map-at").focus()
    page.keyboard.press("Tab")
    expect(outage).to_be_focused()
    expect(page.locator("#map-words")).to_contain_text("node down: seren-003")
    page.keyboard.press("Enter")

    expect(page.locator("#map-moment")).not_to_have_text("now")
    expect(page.locator("#map-canvas:not([data-at='now'])")).to_have_count(1)
    assert ada.complaints == []
