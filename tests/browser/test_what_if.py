"""What-if replays in a real browser: requested, followed without reload, compared."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.models import clock
from scheduling.loops.simulations import run_simulation_once
from tests import make

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WEEK = b"job_id,user,group_or_vc,type,submit_ts,duration_s,gpu_num,node_num,state\n" + b"".join(
    b"%d,ada,nlp,debug,%d,600,8,1,COMPLETED\n" % (n, 60 * n) for n in range(1, 31)
)
SHOTS = os.environ.get("ACME_SHOTS", "")


def test_replay_result_appears_without_reload(visit):
    make.cluster()
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.open("/what-if/")
    ada.page.select_option("[name=trace]", "acme:kalos")
    ada.page.fill("[name=jobs]", "300")
    ada.page.click("button.primary")
    ada.page.wait_for_selector("#live[data-state=live]")
    expect(ada.page.locator("#replay")).to_contain_text("Waiting for a worker.")
    address = ada.page.url.removeprefix(ada.server.url)

    run_simulation_once(clock.now)

    expect(ada.page.locator(".runs")).to_contain_text("Queue delay")
    ada.open("/what-if/")
    ada.page.set_input_files("[name=trace_file]", {"name": "week.csv", "mimeType": "text/csv", "buffer": WEEK})
    ada.page.fill("[name=nodes]", "4")
    ada.page.click("details.panel > summary")
    ada.page.select_option("[name=order]", "sjf")
    ada.page.click("button.primary")
    expect(ada.page.locator("#replay")).to_contain_text("week.csv")
    for scheme in ("light", "dark"):
        for width in (1440, 390):
            ada.page.emulate_media(color_scheme=scheme)
            ada.page.set_viewport_size({"width": width, "height": 900})
            for path, name in ((address, "replay"), ("/what-if/", "what-if")):
                ada.open(path)
                if name == "what-if":
                    ada.page.click("details.panel > summary")
                assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
                if SHOTS:
                    ada.page.screenshot(path=Path(SHOTS) / f"{name}-{scheme}-{width}.png", full_page=True)
    assert ada.complaints == []
