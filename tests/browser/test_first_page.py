"""The main pages in a real browser: they update without reload, fit a phone, and show when they are stale."""

import pytest
from playwright.sync_api import expect

from jobs.actions import jobs as job_actions
from jobs.core.lifecycle import State
from jobs.models import clock
from tests import make

pytestmark = pytest.mark.django_db(transaction=True)

PHONE = {"viewport": {"width": 390, "height": 844}}


def mark(page):
    """Set a mark that only a reload removes."""
    page.evaluate("window.notReloaded = true")


def is_marked(page):
    return page.evaluate("window.notReloaded === true")


def test_open_page_shows_a_job_change_without_reload(visit):
    job = make.job(by="ada", name="train", gpus_per_node=8)
    ada = visit("ada")
    ada.open_live("/")
    mark(ada.page)
    state = ada.page.locator(f"#job-{job.public_id} .badge .word")
    expect(state).to_have_text("PENDING")

    attempt = make.attempt(job)
    expect(state).to_have_text("CONFIGURING")
    job_actions.confirm_start(attempt, started_at=clock.now(), author=make.LOOP)
    expect(state).to_have_text("RUNNING")
    attempt.refresh_from_db()
    job_actions.finish(
        attempt, job_actions.AttemptEnd(state=State.FAILED, at=clock.now(), exit_code=1), author=make.LOOP
    )
    expect(state).to_have_text("FAILED")

    assert is_marked(ada.page)
    assert ada.complaints == []


def test_a_job_page_follows_state_and_log(visit, tmp_path):
    make.cluster(log_root=str(tmp_path))
    job = make.job(by="ada", name="train", gpus_per_node=8)
    ada = visit("ada")
    ada.open_live(f"/jobs/{job}/log/")
    mark(ada.page)
    expect(ada.page.locator("#log")).to_contain_text("The job has not started yet")

    make.running(job, log_path="a.log")
    (tmp_path / "a.log").write_text("step 1\n")
    expect(ada.page.locator("#log pre")).to_contain_text("step 1")
    with (tmp_path / "a.log").open("a") as log:
        log.write("step 2\n")
    expect(ada.page.locator("#log pre")).to_contain_text("step 2")

    assert is_marked(ada.page)
    assert ada.complaints == []


def test_submitting_in_the_browser_leads_to_the_job(visit):
    make.cluster()
    ada = visit("ada")
    ada.open("/jobs/new/")

    ada.page.fill("[name=command]", "train")
    ada.page.fill("[name=gpus_per_node]", "12")
    ada.page.click("form.submit button.primary")
    expect(ada.page.locator(".field.gpus_per_node .error")).to_contain_text("12 is more than the 8 GPUs of a node")
    ada.page.fill("[name=gpus_per_node]", "8")
    ada.page.click("form.submit button.primary")

    expect(ada.page.locator("h1")).to_have_text("train")
    expect(ada.page.locator(".headline > .badge .word")).to_have_text("PENDING")


def test_dialog_stays_open_during_updates_and_works_by_keyboard(visit):
    job = make.job(by="ada", name="train", gpus_per_node=8)
    ada = visit("ada")
    ada.open_live(f"/jobs/{job}/")
    page = ada.page

    page.locator("#ask-cancel summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#ask-cancel input[name=why]")).to_be_focused()
    page.keyboard.type("wrong ")
    job_actions.store_wait_reasons([job_actions.WaitReason(job.pk, "Resources", "Waits for a free node.")])
    job_actions.set_priority(job, 7, author=make.LOOP)
    expect(page.locator("#job")).to_contain_text("Waits for a free node.")
    page.keyboard.type("data")
    page.keyboard.press("Enter")

    expect(page.locator(".headline > .badge .word")).to_have_text("CANCELLED")
    page.locator(".tabs a", has_text="Events").click()
    expect(page.locator("#events")).to_contain_text("wrong data")


def test_page_shows_that_it_is_stale_and_catches_up(visit, server):
    job = make.job(by="ada", name="train", gpus_per_node=8)
    ada = visit("ada")
    ada.open_live("/")
    mark(ada.page)

    server.kill()
    expect(ada.page.locator("#live")).to_contain_text("stale since")
    make.running(job)
    server.start()

    expect(ada.page.locator("#live")).to_have_text("live")
    expect(ada.page.locator(f"#job-{job.public_id} .badge .word")).to_have_text("RUNNING")
    assert is_marked(ada.page)


def test_login_form_leads_to_the_home_page(visit, server):
    ada = visit("ada")
    ada.page.context.clear_cookies()
    ada.open("/")
    expect(ada.page).to_have_url(server.url + "/login/?next=/")

    ada.page.fill("[name=username]", "ada")
    ada.page.fill("[name=password]", make.PASSWORD)
    ada.page.click("button.primary")

    ada.page.wait_for_url(server.url + "/")
    expect(ada.page.locator("#queue")).to_be_visible()
    assert ada.complaints == []


def test_page_reports_an_ended_session(visit):
    ada = visit("ada")
    ada.open_live("/")
    ada.page.context.clear_cookies()

    ada.page.evaluate("document.body.dispatchEvent(new CustomEvent('queue'))")

    expect(ada.page.locator("#live")).to_have_text("signed out")
    expect(ada.page.locator("#queue")).to_be_visible()


def paths():
    job = make.job(by="ada", name="a-very-long-name-of-an-experiment-" * 3)
    make.running(job)
    job_actions.hold(make.job(by="ada"), author=make.LOOP, why="https://tickets/" + "x" * 90)
    return ["/", "/jobs/", f"/jobs/{job}/", f"/jobs/{job}/log/", "/jobs/new/", "/nodes/", "/nodes/seren/seren-001/"]


@pytest.mark.system
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_pages_fit_the_screen_and_log_no_errors(visit, width, scheme):
    wanted = paths()
    ada = visit("ada", color_scheme=scheme, viewport={"width": width, "height": 844})

    for path in wanted:
        ada.open(path)
        assert ada.page.evaluate("document.documentElement.scrollWidth") <= width, path

    assert ada.complaints == []


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_theme_follows_the_system(visit, scheme, is_dark):
    page = visit("ada", color_scheme=scheme).page

    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(","))

    assert (brightness < 3 * 60) == is_dark


def test_a_chosen_theme_stays(visit):
    ada = visit("ada", color_scheme="light")
    switch = ada.page.locator("[data-theme-switch]")

    switch.click()
    switch.click()
    ada.open("/jobs/")

    assert ada.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_skip_link_leads_to_the_content(visit):
    ada = visit("ada")

    ada.page.keyboard.press("Tab")
    ada.page.keyboard.press("Enter")

    assert ada.page.evaluate("document.activeElement.id") == "main"
