"""The pages that the browser benchmarks visit, and a signed-in Chromium to visit them with."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.acceptance.instance import Instance, running
from tests.browser.chromium import CHROMIUM, FLAGS

HISTORY_DAYS = "2"
JOB = r"/jobs/[0-9a-z]{11}/"
RUNNING_TRAINING = ("/", JOB)

# The name of a page as in tests/browser/test_every_page.py: its path, or a page and the first link on it that matches;
# then what is added to the link
PAGES: dict[str, tuple[str, ...]] = {
    "now": ("/",),
    "map": ("/map/",),
    "jobs": ("/jobs/",),
    "job": RUNNING_TRAINING,
    "job-metrics": (*RUNNING_TRAINING, "?tab=metrics"),
    "job-gpus": (*RUNNING_TRAINING, "?tab=gpus"),
    "job-events": (*RUNNING_TRAINING, "?tab=events"),
    "log": (*RUNNING_TRAINING, "log/"),
    "log-part": (*RUNNING_TRAINING, "log/?line=20"),
    "log-found": (*RUNNING_TRAINING, "log/?find=step&context=2"),
    "submit": ("/jobs/new/",),
    "glossary": ("/glossary/",),
    "health": ("/health/",),
    "search": ("/search/?q=pre",),
    "queue": ("/queue/",),
    "policy": ("/queue/", r"/queue/[^/]+/policy/"),
    "maintenance-declare": ("/queue/", r"/queue/[^/]+/maintenance/"),
    "maintenance": ("/queue/", r"/queue/[^/]+/maintenance/\d+/"),
    "sleeping-nodes": ("/settings/clusters/of/seren/", r"/sleeping/[^/]+/"),
    "nodes": ("/nodes/",),
    "node": ("/nodes/", r"/nodes/[^/]+/[^/]+/"),
    "failures": ("/failures/",),
    "rules": ("/failures/rules/",),
    "incident": ("/failures/", r"/failures/\d+/"),
    "what-if": ("/what-if/",),
    "replay": ("/what-if/", r"/what-if/[0-9a-z]{11}/"),
    "compare": ("/what-if/", r"/what-if/compare/\?of=.+"),
    "evaluations": ("/evaluations/",),
    "evaluation-rules": ("/evaluations/rules/",),
    "campaign": ("/evaluations/", r"/evaluations/[0-9a-z]{11}/"),
    "reports": ("/reports/?by=team",),
    "characterization": ("/reports/characterization/",),
    "team-usage": ("/reports/teams/",),
    "account": ("/account/",),
    "teams": ("/settings/teams/",),
    "team": ("/settings/teams/", r"/settings/teams/of/[^/]+/"),
    "clusters": ("/settings/clusters/",),
    "cluster": ("/settings/clusters/", r"/settings/clusters/of/[^/]+/"),
    "cluster-add": ("/settings/clusters/add/",),
    "channels": ("/settings/notifications/",),
    "channel": ("/settings/notifications/", r"/settings/notifications/\d+/"),
    "recovery-modes": ("/settings/recovery/",),
    "model": ("/settings/model/",),
    "api-docs": ("/api/v1/docs/",),
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A running instance, and who signs in. `paths` are those of pages whose rows were created for the measurement."""

    url: str
    user: str
    password: str
    paths: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def add_options(cls, parser: Any) -> None:
        parser.add_argument("--url", help="A running instance. Without it the benchmark starts a demo of its own.")
        parser.add_argument("--user", default="admin")
        parser.add_argument("--password-file", type=Path, help="A file with the user's password.")

    @classmethod
    @contextmanager
    def of(cls, options: Any) -> Iterator[Site]:
        if options.url:
            password = options.password_file.read_text().strip()
            yield cls(url=options.url.rstrip("/"), user=options.user, password=password)
            return
        with running(DEMO="1", DEMO_HISTORY_DAYS=HISTORY_DAYS, DEMO_SPEED="4") as (instance, password):
            paths = _create_rows(instance)
            yield cls(url=f"http://127.0.0.1:{instance.port}", user=options.user, password=password, paths=paths)


def _create_rows(instance: Instance) -> dict[str, str]:
    """Create the rows that some pages need; return the paths of these pages."""
    said = instance.command("shell", "-v", "0", "-c", "from bench.browser.page_rows import main; main()")
    paths: dict[str, str] = json.loads(said)
    return paths


@contextmanager
def signed_in(site: Site, *flags: str, **look: Any) -> Iterator[BrowserContext]:
    """A Chromium whose default profile is signed in, so that other programs that use the profile are signed in too."""
    if not CHROMIUM:
        raise SystemExit("Chromium is not installed.")
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=[*FLAGS, *flags], **look
        )
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto(f"{site.url}/login/")
        page.fill("[name=username]", site.user)
        page.fill("[name=password]", site.password)
        page.click("button.primary")
        page.wait_for_url(f"{site.url}/")
        page.close()
        yield context
        context.close()


def paths_of(context: BrowserContext, site: Site, names: list[str]) -> dict[str, str]:
    """Return the path of each page; pages that this instance does not have (no maintenance, say) are left out."""
    unknown = set(names) - set(PAGES)
    if unknown:
        raise SystemExit(f"Unknown pages: {', '.join(sorted(unknown))}. Known are: {', '.join(PAGES)}.")
    found = {name: site.paths.get(name) or _path_of(context, site, PAGES[name]) for name in names or PAGES}
    return {name: path for name, path in found.items() if path}


def _path_of(context: BrowserContext, site: Site, where: tuple[str, ...]) -> str:
    start, *link = where
    if not link:
        return start
    text = context.request.get(site.url + start).text()
    match = re.search(rf'href="({link[0]})"', text)
    return match[1].replace("&amp;", "&") + "".join(link[1:]) if match else ""
