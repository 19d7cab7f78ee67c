"""Failures in a real browser: the panel updates without reload, a correction takes two clicks, pages fit."""

from __future__ import annotations

import pytest

from failures.loops.diagnose import diagnose_once
from failures.models import Decision
from jobs.models import TeamRole, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def running(server, tmp_path):
    make.cluster(tmp_path)
    rows.team("pretraining", ada=TeamRole.RESEARCHER)
    return make.running(tmp_path, name="sft-7b")


def test_diagnosis_appears_without_reload_and_is_corrected_in_two_clicks(visit, running, tmp_path):
    ada = visit("ada")
    ada.open_live(f"/jobs/{running.job}/")
    assert not ada.page.is_visible("#diagnosis")

    make.end(tmp_path, running, make.TYPO + "RuntimeError: worker 3 is gone\n")
    diagnose_once(clock.now())
    ada.page.wait_for_selector("#diagnosis .evidence")
    ada.page.click("#ask-correct summary")
    ada.page.click("#ask-correct .quick:not(.all) button >> nth=0")

    ada.page.wait_for_selector("#diagnosis :text('corrected')")
    assert make.of(running).review == "corrected"
    assert ada.complaints == []


def test_failure_pages_fit_a_phone(visit, running, tmp_path):
    make.end(tmp_path, running, ("x" * 4000 + "\n") * 3 + make.TYPO)
    diagnose_once(clock.now())
    row = make.of(running)
    ada = visit("ada", viewport={"width": 390, "height": 844})

    for path in (
        "/failures/",
        f"/failures/{row.incident_id}/",
        f"/jobs/{running.job}/",
        f"/jobs/{running.job}/log/?line=2",
        "/failures/paste/",
    ):
        ada.open(path)
        assert ada.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
    assert ada.complaints == []


def test_proposal_is_approved_with_one_click_and_the_page_fits(visit, server, tmp_path):
    rows.team("pretraining", ada=TeamRole.RESEARCHER)
    attempt = make.running(tmp_path, name="pretrain-7b", kind="pretrain", on=("seren-001", "seren-002"))
    make.end(tmp_path, attempt, "step 100\n")
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    decision = Decision.objects.get()
    ada = visit("ada")

    ada.open(f"/failures/{decision.incident_id}/")
    for width in (1440, 390):
        ada.page.set_viewport_size({"width": width, "height": 900})
        assert ada.page.evaluate("document.documentElement.scrollWidth") <= width
    ada.page.click(".decision .good")
    ada.page.wait_for_selector(".decision :text('approved')")

    decision.refresh_from_db()
    assert (decision.state, decision.answered_by) == ("approved", "ada")
    assert ada.complaints == []
