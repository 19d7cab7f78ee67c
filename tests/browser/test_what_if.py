"""What-if replays in a real browser: requested, followed without reload, compared."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.models import clock
from scheduling.whatif.loops import run_simulation_once
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

WEEK = b"job_id,user,group_or_vc,type,submit_ts,duration_s,gpu_num,node_num,state\n" + b"".join(
    b"%d,ada,nlp,debug,%d,600,8,1,COMPLETED\n" % (n, 60 * n) for n in range(1, 31)
)
POWER = "details.panel:has([name=sleep])"
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
    ada.page.uncheck("[name=best_effort][value=evaluation]")
    ada.page.click(f"{POWER} > summary")
    ada.page.fill("[name=power_budget_kw]", "12")
    ada.page.fill("[name=price_per_kwh]", "0.2")
    ada.page.check("[name=sleep]")
    ada.page.click("button.primary")
    expect(ada.page.locator("#replay")).to_contain_text("week.csv")
    limited = ada.page.url.removeprefix(ada.server.url)
    run_simulation_once(clock.now)
    expect(ada.page.locator(".runs")).to_contain_text("unplanned wake-ups")
    expect(ada.page.locator(".verdict")).to_contain_text("energy costs")
    for scheme in ("light", "dark"):
        for width in (1440, 390):
            ada.page.emulate_media(color_scheme=scheme)
            ada.page.set_viewport_size({"width": width, "height": 900})
            for path, name in ((address, "replay"), (limited, "power"), ("/what-if/", "what-if")):
                ada.open(path)
                if name == "what-if":
                    ada.page.click("details.panel > summary")
                    ada.page.click(f"{POWER} > summary")
                assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
                if SHOTS:
                    ada.page.screenshot(path=Path(SHOTS) / f"{name}-{scheme}-{width}.png", full_page=True)
    assert ada.complaints == []


def test_fair_share_on_the_own_history_takes_three_clicks(visit):
    for _ in range(3):
        make.ended(make.job(by="ada", gpus_per_node=8))
    ada = visit("ada", viewport={"width": 1440, "height": 900})
    ada.open("/")

    ada.page.click("nav >> text=What if")
    ada.page.check("[name=policies][value=fair]")
    ada.page.click("button.primary")
    ada.page.wait_for_selector("#live[data-state=live]")
    run_simulation_once(clock.now)

    expect(ada.page.locator(".verdict")).to_contain_text("wait")
    expect(ada.page.locator(".runs thead")).to_contain_text("as it really was")
    expect(ada.page.locator(".runs thead")).to_contain_text("fair")
    ada.page.select_option("[name=baseline]", "fair")
    ada.page.wait_for_url("**/?baseline=fair")
    assert ada.complaints == []


def test_slider_shows_the_load_that_is_replayed(visit):
    make.ended(make.job(by="ada", gpus_per_node=8))
    ada = visit("ada", viewport={"width": 390, "height": 900})
    ada.open("/what-if/")
    slider = ada.page.locator("[name=load]")

    expect(ada.page.locator(".field.load output")).to_have_text("100%")
    slider.focus()
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    expect(ada.page.locator(".field.load output")).to_have_text("120%")
    ada.page.click("button.primary")
    expect(ada.page.locator("#replay")).to_contain_text("load 120")
    assert ada.complaints == []


@pytest.mark.parametrize("width", [1440, 390])
def test_characterization_is_as_wide_as_the_screen_and_completes_without_moving(visit, width):
    make.ended(make.job(by="ada", gpus_per_node=8))
    ada = visit("ada", viewport={"width": width, "height": 900})
    ada.open("/reports/characterization/")

    ada.page.wait_for_selector("#failures-plot:not([hx-get]) .chart")
    assert ada.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert ada.page.locator("svg.chart").count() == 7
    assert ada.complaints == []
