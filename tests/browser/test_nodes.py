"""Nodes in a real browser: two are drained by keyboard after a preview of the cost."""

import pytest
from django.contrib.auth.models import Permission
from playwright.sync_api import expect

from jobs.actions import journal
from jobs.models import Node, TeamRole
from tests import make
from tests.browser.test_every_page import ALWAYS, AXE, VIOLATIONS

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def olga(visit):
    make.cluster()
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.running(make.job(by="ada", name="pretrain-7b", gpus_per_node=8), on=["seren-002"])
    make.user("olga").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    return visit("olga", bypass_csp=True)


def test_two_nodes_are_drained_by_keyboard_after_a_preview(olga):
    olga.open_live("/nodes/")
    page = olga.page

    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("[data-picked]")).to_have_text("2")
    page.get_by_role("button", name="Drain…").press("Enter")

    expect(page.locator("h1")).to_have_text("Drain: would apply to 2 of 2 nodes")
    expect(page.locator("main")).to_contain_text("pretrain-7b")
    assert not Node.objects.filter(drain_requested=True).exists()
    page.add_script_tag(path=AXE)
    assert page.evaluate(VIOLATIONS, [None, ALWAYS]) == []

    page.get_by_role("radio", name="Requeue now").press("Space")
    page.locator("input[name=why]").fill("row 7 warms up")
    page.locator("input[name=why]").press("Enter")

    expect(page.locator("h1")).to_have_text("Drain: requested for 2 of 2 nodes")
    drained = Node.objects.filter(drain_requested=True, drain_mode="now", reason="row 7 warms up")
    assert sorted(drained.values_list("name", flat=True)) == ["seren-001", "seren-002"]
    assert olga.complaints == []


def test_node_shows_the_cost_of_a_drain_before_it(olga):
    olga.open_live("/nodes/seren/seren-002/")
    page = olga.page

    page.locator("#ask-drain summary").click()
    expect(page.locator("#ask-drain")).to_contain_text("1 running job")
    expect(page.locator("#ask-drain .consequence")).to_contain_text("pretrain-7b")
    page.locator("#ask-drain input[name=why]").fill("fan 3 is loud")
    page.get_by_role("button", name="Drain seren-002").click()

    expect(page.locator("#node .headline")).to_contain_text("DRAIN")
    assert Node.objects.get(name="seren-002").reason == "fan 3 is loud"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_drain_preview_of_many_nodes_fits_a_phone(visit, olga, scheme):
    phone = visit("olga", color_scheme=scheme, viewport={"width": 390, "height": 900})
    phone.open("/nodes/")

    for box in phone.page.locator("input[name=id]").all():
        box.check()
    phone.page.get_by_role("button", name="Drain…").click()

    phone.page.wait_for_selector("text=would apply to 4 of 4 nodes")
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_unreliable_nodes_are_one_click_from_the_home_page(olga):
    node = Node.objects.select_related("cluster").get(name="seren-003")
    for _ in range(5):
        journal.node_event("node.state_changed", make.LOOP, node, from_state="UP", to_state="DOWN").save()
    olga.open_live("/")

    olga.page.get_by_role("link", name="Unreliable nodes").click()

    expect(olga.page.locator("#nodes tbody tr")).to_have_count(1)
    expect(olga.page.locator("#nodes tbody tr")).to_contain_text("seren-003")
    expect(olga.page.locator("#nodes tbody tr")).to_contain_text("unreliable 5.0")
    assert olga.complaints == []


def test_lists_are_sorted_and_their_columns_chosen_without_scripts(visit):
    make.cluster()
    ada = visit("ada", java_script_enabled=False)
    ada.open("/nodes/?state=idle")
    names = ada.page.locator("#nodes td.c-node a")
    expect(names.first).to_have_text("seren-001")

    ada.page.locator("#nodes").get_by_role("link", name="Node", exact=True).click()
    expect(names.first).to_have_text("seren-004")
    expect(ada.page.locator("th[aria-sort=descending]")).to_contain_text("Node")

    ada.page.locator("#columns-nodes summary").click()
    ada.page.get_by_label("Rack").uncheck()
    ada.page.get_by_label("CPUs").check()
    ada.page.get_by_role("button", name="Apply").click()

    expect(ada.page.locator("#nodes thead")).to_contain_text("CPUs")
    expect(ada.page.locator("#nodes thead")).not_to_contain_text("Rack")
    expect(names.first).to_have_text("seren-004")
    assert "state=idle" in ada.page.url
