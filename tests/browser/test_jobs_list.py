"""The list of jobs by keyboard only, and several jobs cancelled after a preview."""

import pytest
from playwright.sync_api import expect

from jobs.core.lifecycle import State
from jobs.models import Job
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]


def test_two_jobs_are_cancelled_by_keyboard_after_a_preview(visit):
    for number in range(3):
        make.job(by="ada", name=f"train-{number}", gpus_per_node=8)
    ada = visit("ada")
    ada.open_live("/jobs/")
    page = ada.page

    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("2")
    page.evaluate("document.body.dispatchEvent(new CustomEvent('queue'))")
    expect(page.locator("#jobs input:checked")).to_have_count(2)
    page.locator("#many button[value=cancel]").press("Enter")

    expect(page.locator("h1")).to_contain_text("would apply to 2 of 2 jobs")
    assert set(Job.objects.values_list("state", flat=True)) == {State.PENDING}
    page.keyboard.press("Escape")
    page.locator("form.submit button.bad").press("Enter")

    expect(page.locator("h1")).to_contain_text("requested for 2 of 2 jobs")
    states = dict(Job.objects.values_list("name", "state"))
    assert states == {"train-0": State.PENDING, "train-1": State.CANCELLED, "train-2": State.CANCELLED}
    assert ada.complaints == []


def test_keys_filter_open_and_explain(visit):
    job = make.job(by="ada", name="train", gpus_per_node=8)
    ada = visit("ada")
    ada.open("/jobs/")
    page = ada.page

    page.keyboard.press("?")
    expect(page.locator("#shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator(".filters input[name=q]")).to_be_focused()
    page.keyboard.type("jx?")  # in a text field, keys are text
    expect(page.locator(".filters input[name=q]")).to_have_value("jx?")
    page.keyboard.press("Tab")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    page.wait_for_url(f"**/jobs/{job}/")


def test_the_table_for_spreadsheets_is_streamed_by_the_real_server(visit):
    job = make.job(by="ada", name="train", gpus_per_node=8)
    ada = visit("ada")

    answer = ada.page.request.get(f"{ada.server.url}/jobs/export.csv")

    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text().splitlines()[1].startswith(f"{job},train,ada,")
