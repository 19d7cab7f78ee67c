"""Pictures of every page of a living demo, and those of the documents among them.

    .venv/bin/python docs/pictures.py [--into DIRECTORY] [--after MINUTES]

It starts an instance of its own, as `make up` does, lets its datacenter work for a while (8 minutes unless told
otherwise), and visits the pages in light and dark. Those that documents show are put beside this file too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.acceptance.instance import running  # noqa: E402
from tests.browser.chromium import CHROMIUM, FLAGS  # noqa: E402

VIEWPORT = {"width": 1440, "height": 900}
PAGE_TIMEOUT_MS = 60_000
RENDER_WAIT_MS = 2_500  # plots and the map are drawn after their data have come
DOCUMENT_PICTURES = {"now-light", "map-dark", "job-light"}

PAGES = {
    "now": "/",
    "map": "/map/",
    "jobs": "/jobs/",
    "submit": "/jobs/new/",
    "queue": "/queue/",
    "what-if": "/what-if/",
    "failures": "/failures/",
    "nodes": "/nodes/",
    "evaluations": "/evaluations/",
    "reports": "/reports/",
    "settings": "/settings/",
}
# The page of one of them: a list, and what its links look like; the first that is there
DETAIL_LINKS = {
    "job": ("/jobs/?kind=pretrain&state=RUNNING", "main a[href^='/jobs/'][href$='/']:not([href='/jobs/new/'])"),
    "incident": ("/failures/", "main a[href^='/failures/']:is([href$='/'])"),
    "node": ("/nodes/", "main table a[href^='/nodes/']"),
    "campaign": ("/evaluations/", "main a[href^='/evaluations/']"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=HERE.parent / "var" / "pictures")
    parser.add_argument("--after", type=float, default=8, help="minutes for which the demo works first")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("Chromium is not installed")
    options.into.mkdir(parents=True, exist_ok=True)
    with running(DEMO="1", DEMO_CLUSTERS="seren,kalos") as (instance, password):
        time.sleep(60 * options.after)
        take_screenshots(f"http://127.0.0.1:{instance.port}", password, options.into)
    for name in sorted(DOCUMENT_PICTURES):
        shutil.copy(options.into / f"{name}.png", HERE / f"{name.rpartition('-')[0]}.png")


def take_screenshots(url: str, password: str, into: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            page = log_in(browser, scheme, url, password)
            for name, address in (PAGES | detail_pages(page, url)).items():
                page.goto(url + address, wait_until="load")
                page.wait_for_timeout(RENDER_WAIT_MS)
                page.screenshot(path=into / f"{name}-{scheme}.png")
                print(f"{name}-{scheme}.png  {address}", flush=True)
        browser.close()


def log_in(browser: Browser, scheme: str, url: str, password: str) -> Page:
    context = browser.new_context(viewport=VIEWPORT, color_scheme=scheme)
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    page = context.new_page()
    page.goto(f"{url}/login/")
    page.fill("[name=username]", "admin")
    page.fill("[name=password]", password)
    page.click("button.primary")
    page.wait_for_url(f"{url}/")
    return page


def detail_pages(page: Page, url: str) -> dict[str, str]:
    """The pages of one job, incident and so on, as far as there are any."""
    pages = {}
    for name, (listing, link) in DETAIL_LINKS.items():
        page.goto(url + listing, wait_until="load")
        page.wait_for_timeout(RENDER_WAIT_MS)
        hrefs = [one.get_attribute("href") or "" for one in page.locator(link).all()]
        numbered = [href for href in hrefs if any(letter.isdigit() for letter in href) and "?" not in href]
        if numbered:
            pages[name] = numbered[0]
    return pages


if __name__ == "__main__":
    main()
