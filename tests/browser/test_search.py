"""The Ctrl-K search in a real browser, by keyboard only."""

import pytest
from django.contrib.auth.models import Permission
from playwright.sync_api import expect

from tests import make
from tests.browser.test_every_page import ALWAYS, AXE, VIOLATIONS

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]


def test_a_job_is_reached_by_keyboard_from_any_page(visit):
    jobs = make.jobs({"name": "train-a"}, {"name": "train-b"}, by="ada")
    ada = visit("ada")
    ada.open("/nodes/")

    ada.page.keyboard.press("Control+k")
    expect(ada.page.locator("#search-box [role=option]").first).to_be_visible()  # the list of pages, before any input
    ada.page.keyboard.type("train-")
    expect(ada.page.locator("#found[data-q='train-'] [role=option]")).to_have_count(2)
    ada.page.keyboard.press("ArrowDown")
    expect(ada.page.locator("#found [aria-selected=true]")).to_contain_text("train-a")
    ada.page.keyboard.press("Enter")

    ada.page.wait_for_url(f"**/jobs/{jobs[0]}/")
    assert ada.complaints == []


def test_the_search_changes_the_theme_and_offers_a_drain(visit):
    make.cluster()
    make.user("ada").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    ada = visit("ada", color_scheme="light")
    page = ada.page

    page.keyboard.press("Control+k")
    page.keyboard.type("theme")
    expect(page.locator("#found[data-q='theme'] [aria-selected=true]")).to_contain_text("Toggle theme")
    page.keyboard.press("Enter")
    expect(page.locator("#search-box")).to_be_hidden()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"

    page.keyboard.press("Control+k")
    page.keyboard.press("Control+a")
    page.keyboard.type("drain seren-003")
    expect(page.locator("#found[data-q='drain seren-003'] [aria-selected=true]")).to_contain_text("Drain seren-003")
    page.keyboard.press("Enter")
    expect(page.locator("#ask-drain input[name=why]")).to_be_focused()
    assert ada.complaints == []


def test_question_mark_shows_the_shortcuts_on_every_page(visit):
    ada = visit("ada")

    for path in ("/", "/queue/", "/failures/"):
        ada.open(path)
        ada.page.keyboard.press("?")
        expect(ada.page.locator("#shortcuts")).to_be_visible()
        ada.page.keyboard.press("Escape")
        expect(ada.page.locator("#shortcuts")).to_be_hidden()

    assert ada.complaints == []


def test_j_and_k_move_through_the_rows_of_the_home_page(visit):
    jobs = make.jobs({"name": "train-a"}, {"name": "train-b"}, by="ada")
    ada = visit("ada")
    page = ada.page

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(f"#job-{jobs[1]}")).to_have_attribute("data-here", "")
    page.keyboard.press("k")
    expect(page.locator(f"#job-{jobs[0]}")).to_have_attribute("data-here", "")
    page.keyboard.press("Enter")

    page.wait_for_url(f"**/jobs/{jobs[0]}/")


def test_escape_closes_the_search_and_restores_the_page(visit):
    ada = visit("ada")
    ada.open("/jobs/")

    ada.page.locator("[data-search]").click()
    expect(ada.page.locator("#search-box")).to_be_visible()
    ada.page.keyboard.press("Escape")

    expect(ada.page.locator("#search-box")).to_be_hidden()
    assert ada.page.url.endswith("/jobs/")


def test_open_search_is_accessible(visit):
    ada = visit("ada", bypass_csp=True)
    ada.page.keyboard.press("Control+k")
    expect(ada.page.locator("#search-box [role=option]").first).to_be_visible()

    ada.page.add_script_tag(path=AXE)

    assert ada.page.evaluate(VIOLATIONS, [None, ALWAYS]) == []
