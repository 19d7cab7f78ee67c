"""What an operator does from the page Now: few clicks, everything important above the fold, nothing expired."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.sync_api import expect

from failures.loops.diagnose import diagnose_once
from failures.models import Decision
from jobs.actions import nodes as node_actions
from jobs.models import TeamRole, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def proposed(server, tmp_path):
    """A restart that ada may approve."""
    rows.team("pretraining", ada=TeamRole.RESEARCHER)
    attempt = make.running(tmp_path, name="pretrain-7b", kind="pretrain", on=("seren-001", "seren-002"))
    make.end(tmp_path, attempt, "step 100\n")
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    return Decision.objects.get()


def test_recovery_is_approved_with_one_click(visit, proposed):
    page = visit("ada").page

    page.click("#exceptions button.good")

    expect(page.locator(".messages .success")).to_contain_text("approved")
    assert page.url.endswith("/")
    proposed.refresh_from_db()
    assert (proposed.state, proposed.answered_by) == ("approved", "ada")
    expect(page.locator(f"#proposed-{proposed.pk}")).to_have_count(0)


def test_recovery_is_declined_with_a_reason(visit, proposed):
    page = visit("ada").page

    page.click("#exceptions .ask summary")
    expect(page.locator("#exceptions .ask[open] input[name=why]")).to_be_focused()  # it opens a moment later
    page.keyboard.type("I look myself")
    page.keyboard.press("Enter")

    expect(page.locator(".messages .success")).to_contain_text("declined")
    proposed.refresh_from_db()
    assert (proposed.state, proposed.answer_reason) == ("declined", "I look myself")


def test_cause_of_a_failure_is_one_click_away(visit, tmp_path):
    rows.team("pretraining", ada=TeamRole.RESEARCHER)
    attempt = make.running(tmp_path, name="sft-7b")
    make.end(tmp_path, attempt, make.TYPO)
    diagnose_once(clock.now())
    page = visit("ada").page
    row = page.locator(f"#job-{attempt.job.public_id}")

    expect(row).to_contain_text("TypeError")
    row.locator(".c-id a").click()

    expect(page.locator("#diagnosis .evidence")).to_be_visible()


def test_expired_proposal_disappears_when_its_time_is_over(visit, proposed):
    now = clock.now()
    Decision.objects.update(expires_at=now + timedelta(minutes=2))
    ada = visit("ada")
    page, row = ada.page, ada.page.locator(f"#proposed-{proposed.pk}")
    page.clock.install(time=now)
    ada.open_live("/")
    run_clock(page)  # what a page loads after its connection
    expect(row).to_contain_text("approve within")

    # Less time passes than until the next poll
    Decision.objects.update(expires_at=now)
    page.evaluate("document.querySelector('#exceptions time[data-until]').dataset.until = '1'")
    run_clock(page)

    expect(row).to_have_count(0)


def run_clock(page):
    for _ in range(5):
        page.clock.run_for(1000)
        page.wait_for_load_state("networkidle")


def test_figures_attention_and_capacity_are_above_the_fold(visit, proposed):
    now = clock.now()
    for number in range(3, 10):
        name = f"seren-{number:03d}"
        rows.node(name)
        node_actions.drain(rows.node(name), author=rows.LOOP, why=f"ECC errors {number}", now=now)
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.page.click("#start form button")

    assert ada.page.locator("#exceptions li[id]").count() == 5
    tops = [ada.page.locator(f"#{part}").bounding_box()["y"] for part in ("key-figures", "exceptions", "capacity")]
    capacity = ada.page.locator("#capacity").bounding_box()
    assert tops == sorted(tops) and capacity["y"] + capacity["height"] <= 900

    ada.page.click("#exceptions .aside")
    expect(ada.page.locator("#exceptions li[id]")).to_have_count(8)
    expect(ada.page.locator("#exceptions .aside")).to_have_text("Show fewer")


def test_key_figures_and_capacity_change_together(visit):
    cluster = rows.cluster()
    ada = visit("ada")
    ada.open_live("/")
    expect(ada.page.locator("#figure-allocated")).to_contain_text("0 of 32")

    rows.running(rows.job(by="ada", cluster=cluster, gpus_per_node=8))

    expect(ada.page.locator("#figure-allocated")).to_contain_text("8 of 32")
    expect(ada.page.locator("#capacity .figures dd").first).to_contain_text("8 / 32")
    assert ada.page.locator("#capacity").count() == 1
    assert ada.complaints == []


def test_phone_shows_the_panels_in_one_column_in_their_order(visit, proposed):
    page = visit("ada", viewport={"width": 390, "height": 844}).page

    boxes = [page.locator(f"#{part}").bounding_box() for part in ("key-figures", "exceptions", "capacity", "queue")]

    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    assert len({box["x"] for box in boxes}) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
