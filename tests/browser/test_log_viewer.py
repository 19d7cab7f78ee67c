"""A long log in a real browser: bounded number of lines; wheel, keys and slider; follow mode; evidence."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jobs.models import TeamRole
from tests import make
from tests.browser.test_every_page import ALWAYS, AXE, VIOLATIONS
from tests.patience import until

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True)]

SHOTS = os.environ.get("ACME_SHOTS", "")
LINES = 60_000
MOST = 1500  # lines of a page, as in static/log.js
SEEN = """() => {
  const pre = document.querySelector(".log pre"), box = pre.getBoundingClientRect();
  const rows = [...pre.children].filter((row) => {
    const one = row.getBoundingClientRect();
    return one.top >= box.top - 1 && one.bottom <= box.bottom + 1;
  });
  return rows.map((row) => Number(row.textContent.match(/step (\\d+)/)[1]));
}"""

BOXES = """() => [...document.querySelectorAll(".log, .log pre, .place, .place input")].map((one) =>
  JSON.stringify(one.getBoundingClientRect()))"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("".join(f"[rank{n % 8}]: step {n} | loss 2.31\n" for n in range(LINES)))
    make.cluster(log_root=str(tmp_path))
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    job = make.job(by="ada", name="pretrain-7b", kind="pretrain", gpus_per_node=8)
    make.running(job, log_path=str(path))
    return job, path


def opened(visit, job, asked="", **options):
    ada = visit("ada", **options)
    ada.open(f"/jobs/{job}/log/{asked}")
    ada.page.wait_for_selector(".log pre span")
    return ada, ada.page


def settled(page, what):
    """Return the visible lines once the condition holds: consecutive, and not more than a page holds."""
    until(lambda: what(page.evaluate(SEEN) or [-1]), what=f"seen: {page.evaluate(SEEN)}")
    seen = page.evaluate(SEEN)
    assert seen == list(range(seen[0], seen[-1] + 1))
    assert page.locator(".log pre > span").count() <= MOST
    return seen


def test_keys_scroll_the_log_to_both_ends(visit, log):
    ada, page = opened(visit, log[0])
    settled(page, lambda seen: seen[-1] == LINES - 1)
    page.focus(".log pre")

    page.keyboard.press("Home")
    settled(page, lambda seen: seen[0] == 0)
    for _ in range(60):
        page.keyboard.press("PageDown")
        page.wait_for_timeout(30)
    settled(page, lambda seen: seen[0] > 500)
    page.keyboard.press("End")
    settled(page, lambda seen: seen[-1] == LINES - 1)
    assert ada.complaints == []


def test_wheel_scrolls_up_through_pieces_without_jumps(visit, log):
    ada, page = opened(visit, log[0])
    last = settled(page, lambda seen: seen[-1] == LINES - 1)
    box = page.locator(".log pre").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)

    for _ in range(80):
        page.mouse.wheel(0, -600)
        page.wait_for_timeout(20)
        seen = page.evaluate(SEEN)
        assert seen == list(range(seen[0], seen[-1] + 1))
        assert seen[0] <= last[0]  # scrolling up continues when a piece was prepended
        last = seen

    settled(page, lambda seen: seen[0] < LINES - 1000)
    assert ada.complaints == []


def test_slider_jumps_to_a_place_in_the_log(visit, log):
    job, path = log
    _, page = opened(visit, job)
    slider = page.locator(".place input")
    expect(slider).to_have_attribute("max", str(path.stat().st_size))

    slider.fill(str(path.stat().st_size // 2))

    settled(page, lambda seen: abs(seen[0] - LINES // 2) < LINES // 50)
    expect(slider).to_have_attribute("aria-valuetext", f"50 % of {path.stat().st_size / 1024**2:.1f} MiB")


def test_growing_log_is_followed_only_at_its_end(visit, log):
    job, path = log
    _, page = opened(visit, job)
    settled(page, lambda seen: seen[-1] == LINES - 1)

    with path.open("a") as out:
        out.write(f"[rank0]: step {LINES} | lo")
    settled(page, lambda seen: seen[-1] == LINES)
    with path.open("a") as out:
        out.write(f"ss 2.30\n[rank1]: step {LINES + 1} | loss 2.29\n")
    settled(page, lambda seen: seen[-1] == LINES + 1)
    assert page.locator(".log pre > span", has_text=f"step {LINES} ").all_inner_texts() == [
        f"{LINES + 1}[rank0]: step {LINES} | loss 2.30\n"
    ]
    page.evaluate("document.querySelector('.log pre').scrollTop -= 400")
    there = settled(page, lambda seen: seen[-1] < LINES)
    with path.open("a") as out:
        out.write(f"[rank2]: step {LINES + 2} | loss 2.28\n")
    expect(page.locator(".log pre > span").last).to_contain_text(f"step {LINES + 2}")
    assert page.evaluate(SEEN) == there


def test_evidence_is_marked_and_line_numbers_continue(visit, log):
    ada, page = opened(visit, log[0], "?line=30000")
    expect(page.locator(".log pre .hit")).to_be_in_viewport()
    settled(page, lambda seen: 29_999 in seen)
    page.focus(".log pre")

    for _ in range(30):
        page.keyboard.press("PageDown")
        page.wait_for_timeout(30)

    seen = settled(page, lambda seen: seen[0] > 30_200)
    row = page.locator(".log pre > span", has_text=f"step {seen[0]} ").first
    assert row.locator(".no").inner_text() == str(seen[0] + 1)  # the first line has the number 1, and step 0
    assert ada.complaints == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_log_viewer_fits_is_stable_and_accessible(visit, log, scheme, width):
    ada, page = opened(visit, log[0], color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    settled(page, lambda seen: seen[-1] == LINES - 1)
    page.focus(".log pre")  # which may scroll the page to it
    before = page.evaluate(BOXES)

    page.keyboard.press("Home")
    settled(page, lambda seen: seen[0] == 0)

    assert page.evaluate(BOXES) == before
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.add_script_tag(path=AXE)
    assert page.evaluate(VIOLATIONS, [None, ALWAYS]) == []
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"log-{scheme}-{width}.png", full_page=True)
    assert ada.complaints == []
