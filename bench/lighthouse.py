"""Lighthouse scores of every page, signed in, on desktop and on mobile.

    python bench/lighthouse.py                      all pages of a demo that it starts; about half an hour on two cores
    python bench/lighthouse.py now jobs             only these pages
    python bench/lighthouse.py --form desktop --url http://127.0.0.1:8000 --password-file FILE
    python bench/lighthouse.py --json               scores as JSON on stdout; otherwise a table

Lighthouse itself comes from npm at a pinned version, into a directory for temporary files, and drives the system's
Chromium. It loads each page with an empty cache and simulates a slow network, and on mobile a slow processor. It
derives the latter from the time that the page took here, so a busy machine lowers the scores of performance.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from acmeweb.services import ports
from bench.browser.page_visits import Site, paths_of, signed_in

VERSION = "12.8.2"  # the last one that runs on Node.js 18 and 20
HOME = Path(tempfile.gettempdir()) / f"acme-lighthouse-{VERSION}"
CATEGORIES = {"performance": "perf", "accessibility": "access", "best-practices": "practices"}
FORMS = {"desktop": ["--preset=desktop"], "mobile": ["--form-factor=mobile"]}
LONGEST_S = 180


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="Names of pages; all if none is given.")
    parser.add_argument("--form", choices=FORMS, action="append", help="desktop or mobile; both if none is given.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reports", type=Path, help="A directory for the complete reports.")
    Site.add_options(parser)
    options = parser.parse_args()
    cli = install()
    rows = []
    with Site.of(options) as site:
        for row in measure(cli, site, options):
            print(line_of(row), file=sys.stderr, flush=True)
            rows.append(row)
    print(json.dumps({"lighthouse": VERSION, "load": os.getloadavg()[0], "pages": rows}, indent=1) if options.json
          else table_of(rows))  # fmt: skip


def install() -> Path:
    """Return the path of Lighthouse's command. It is installed if it is not there yet."""
    if not (shutil.which("node") and shutil.which("npm")):
        raise SystemExit("Lighthouse needs Node.js 18 or newer with npm, and node or npm is not on the PATH.")
    cli = HOME / "node_modules" / "lighthouse" / "cli" / "index.js"
    if not cli.exists():
        HOME.mkdir(exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", f"--prefix={HOME}", f"lighthouse@{VERSION}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return cli


def measure(cli: Path, site: Site, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    port = ports.pick()
    with signed_in(site, f"--remote-debugging-port={port}") as context:
        for name, path in paths_of(context, site, options.pages).items():
            for form in options.form or FORMS:
                yield {"page": name, "form": form, "path": path} | audit(cli, site.url + path, form, port, options)


def audit(cli: Path, url: str, form: str, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run Lighthouse once. A page that it cannot audit gets its error instead of scores."""
    words = ["node", str(cli), url, f"--port={port}", "--quiet", "--output=json", *FORMS[form]]
    words += [f"--only-categories={','.join(CATEGORIES)}", "--disable-full-page-screenshot"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_S)
    if found.returncode or not found.stdout:
        return {"error": found.stderr.strip()[-300:]}
    report = json.loads(found.stdout)
    if options.reports:
        options.reports.mkdir(parents=True, exist_ok=True)
        (options.reports / f"{url.rpartition('//')[2].replace('/', '_')}-{form}.json").write_text(found.stdout)
    return scores_of(report)


def scores_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return the scores from 0 to 100, the figures behind them, and the audit that costs most of each low score."""
    audits = report["audits"]
    scores = {short: round(100 * (report["categories"][name]["score"] or 0)) for name, short in CATEGORIES.items()}
    return scores | {
        "cls": round(audits["cumulative-layout-shift"]["numericValue"], 3),
        "lcp_ms": round(audits["largest-contentful-paint"]["numericValue"]),
        "tbt_ms": round(audits["total-blocking-time"]["numericValue"]),
        "server_ms": round(audits["server-response-time"]["numericValue"]),
        "kb": round(audits["total-byte-weight"]["numericValue"] / 1024),
        "worst": worst_audits(report),
    }


def worst_audits(report: dict[str, Any]) -> list[str]:
    """Return the audit with the largest loss in each category that has less than 100 points."""
    found = []
    for name in CATEGORIES:
        category, audits = report["categories"][name], report["audits"]
        losses = [
            (one["weight"] * (1 - audits[one["id"]]["score"]), one["id"])
            for one in category["auditRefs"]
            if audits[one["id"]]["score"] is not None
        ]
        loss, worst = max(losses)
        if loss > 0 and round(100 * category["score"]) < 100:
            found.append(worst)
    return found


# --- output

COLUMNS = ("perf", "access", "practices", "cls", "lcp_ms", "tbt_ms", "server_ms", "kb")


def line_of(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['page']:20} {row['form']:8} {row['error']}"
    figures = " ".join(f"{row[column]:>9}" for column in COLUMNS)
    return f"{row['page']:20} {row['form']:8} {figures}  {', '.join(row['worst'])}"


def table_of(rows: list[dict[str, Any]]) -> str:
    head = f"{'page':20} {'form':8} " + " ".join(f"{column:>9}" for column in COLUMNS) + "  worst audits"
    return "\n".join([head, *map(line_of, rows)])


if __name__ == "__main__":
    main()
