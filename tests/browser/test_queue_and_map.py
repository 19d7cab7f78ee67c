"""Queue, policy and map in a real browser: live updates, keyboard, and layout."""

import os
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission
from playwright.sync_api import expect

from jobs.actions import nodes as node_actions
from jobs.models import Cluster, Node, Quota, Sample, Team, TeamRole, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.loops.schedule import schedule_once
from tests import make

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SHOTS = os.environ.get("ACME_SHOTS", "")
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1440, 390)]


@pytest.fixture
def busy():
    seren = make.cluster(policy="acme")
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    make.user("ada").user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    for number, (by, gpus) in enumerate((("ben", 8), ("ada", 8), ("ada", 6)), 1):
        job = make.job(by=by, gpus_per_node=gpus, time_limit=3600 * number, name=f"pretrain-{number}", kind="pretrain")
        make.running(job, on=[f"seren-00{number}"])
    make.job(by="ada", nodes=2, gpus_per_node=8, time_limit=7200, name="sft-7b-long-context-second-try", kind="sft")
    make.jobs({"name": "b1"}, {"name": "b2"}, by="ben", gpus_per_node=8)
    make.job(by="ada", gpus_per_node=8, name="evaluate", preemptible=True, kind="evaluation")
    make.job(by="ada", gpus_per_node=8, name="patient", hold=True)
    node = Node.objects.get(name="seren-004")
    node_actions.drain(node, author=make.author(), why="fan 3 is loud", now=clock.now())
    for name, kind, gpus in (("pretraining", "pretrain", 16), ("speech", "", 8)):
        Quota.objects.create(team=Team.objects.get(name=name), cluster=seren, kind=kind, gpus=gpus)
    busy, hot = [12.0 * gpu for gpu in range(8)], [35.0 + 6 * gpu for gpu in range(8)]
    for row in Node.objects.all():
        Sample.objects.create(node=row, at=clock.now(), gpu_util=busy, gpu_temperature_c=hot)
    schedule_once(seren, LIVE_POLICIES["acme"], clock.now(), lambda: None)
    return seren


def shot(page, name):
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_queue_policy_and_map_fit_in_both_themes(visit, busy):
    for scheme, width in LOOKS:
        ada = visit("ada", color_scheme=scheme, viewport={"width": width, "height": 900})
        for path, name in (("/queue/", "queue"), ("/queue/seren/policy/", "policy"), ("/map/", "map"), ("/", "now")):
            ada.open(path)
            if name == "map":
                ada.page.wait_for_selector("#map-canvas[data-cells='32']")
            shot(ada.page, f"{name}-{scheme}-{width}")
            assert fits(ada.page), (name, width)
        assert ada.complaints == []


def test_queue_updates_without_reload(visit, busy):
    ada = visit("ada")
    ada.open_live("/queue/")
    expect(ada.page.locator("#line")).not_to_contain_text("another-one")

    make.job(by="ada", gpus_per_node=8, name="another-one")

    expect(ada.page.locator("#line")).to_contain_text("another-one")


def test_a_policy_is_changed_in_three_steps(visit, busy):
    ada = visit("ada")
    ada.open("/queue/")
    ada.page.click("text=Change")
    ada.page.select_option("[name=order]", "sjf")
    ada.page.fill("[name=why]", "short ones first")
    ada.page.click("text=Preview changes")
    expect(ada.page.locator(".diff")).to_contain_text("sjf")
    assert Cluster.objects.get().policy_settings == {}
    shot(ada.page, "policy-diff")

    ada.page.click("text=Apply changes")

    expect(ada.page.locator("#policy")).to_contain_text("short ones first")
    assert Cluster.objects.get().policy_settings["order"] == "sjf"


def test_map_describes_cells_in_text_and_works_by_keyboard(visit, busy):
    ada = visit("ada")
    ada.open_live("/map/")
    canvas, words = ada.page.locator("#map-canvas"), ada.page.locator("#map-words")
    ada.page.wait_for_selector("#map-canvas[data-cells='32']")

    canvas.focus()
    ada.page.keyboard.press("ArrowRight")
    expect(words).to_contain_text("seren-001 GPU 0")
    expect(words).to_contain_text("another team")
    ada.page.keyboard.press("ArrowRight")
    expect(words).to_contain_text("GPU 1")
    for way in ("team", "busy", "hot", "job"):
        ada.page.select_option("#map-by", way)
        shot(ada.page, f"map-by-{way}")

    for _ in range(7):
        ada.page.keyboard.press("ArrowRight")
    canvas.focus()
    for _ in range(6):
        ada.page.keyboard.press("ArrowRight")
    expect(words).to_contain_text("seren-00")
    ada.page.keyboard.press("Enter")
    ada.page.wait_for_url(lambda url: "/map/" not in url)
    assert ada.complaints == []


def test_map_draws_ten_thousand_gpus_quickly(visit, busy):
    rows = [
        Node(cluster=busy, name=f"big-{n:04d}", gpus=8, rack=f"r{n // 16}", leaf=f"l{n // 32}", state="IDLE")
        for n in range(1246)
    ]
    Node.objects.bulk_create(rows)
    ada = visit("ada", viewport={"width": 1440, "height": 900})

    ada.open("/map/")
    ada.page.wait_for_selector("#map-canvas[data-cells='10000']")
    shot(ada.page, "map-10000")
    print("drawn in", ada.page.locator("#map-canvas").get_attribute("data-drawn-ms"), "ms")
