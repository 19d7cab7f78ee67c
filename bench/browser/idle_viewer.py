"""What a viewer costs who only looks: requests and bytes per 10 s, and the layout shift over 15 s, for every page.

    python bench/browser/idle_viewer.py                     all pages of a demo that it starts; about fifteen minutes
    python bench/browser/idle_viewer.py now jobs --json
    python bench/browser/idle_viewer.py --url http://127.0.0.1:8000 --password-file FILE

Each page is opened in its own tab and left alone. Its layout shift counts from the first paint, as in Lighthouse.
Requests and bytes (as transferred, with headers, without the websocket) count from five seconds later.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.browser.page_visits import Site, paths_of, signed_in
from tests.browser.chromium import LAYOUT_SHIFTS

SETTLE_S, MEASURED_S = 5, 10
WIDTHS = {"desktop": 1440, "mobile": 390}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="Names of pages; all if none is given.")
    parser.add_argument("--form", choices=WIDTHS, default="desktop")
    parser.add_argument("--json", action="store_true")
    Site.add_options(parser)
    options = parser.parse_args()
    rows = []
    look = {"viewport": {"width": WIDTHS[options.form], "height": 900}}
    with Site.of(options) as site, signed_in(site, **look) as context:
        for name, path in paths_of(context, site, options.pages).items():
            row = {"page": name} | watch(context, site.url + path)
            print(line_of(row), file=sys.stderr, flush=True)
            rows.append(row)
    result = {"load": os.getloadavg()[0], "form": options.form, "pages": rows}
    print(json.dumps(result, indent=1) if options.json else "\n".join(map(line_of, rows)))


def watch(context: Any, url: str) -> dict[str, Any]:
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")
    sent: Counter[str] = Counter()
    received = [0]
    began = time.monotonic()
    is_counted = lambda: time.monotonic() - began > SETTLE_S  # noqa: E731

    def count_request(event: dict[str, Any]) -> None:
        if is_counted():
            headers = {name.lower(): value for name, value in event["request"]["headers"].items()}
            sent[headers.get("hx-target") or event["request"]["url"]] += 1

    def count_bytes(event: dict[str, Any]) -> None:
        if is_counted():
            received[0] += event["encodedDataLength"]

    devtools.on("Network.requestWillBeSent", count_request)
    devtools.on("Network.loadingFinished", count_bytes)
    page.goto(url)
    began = time.monotonic()
    page.wait_for_timeout(1000 * (SETTLE_S + MEASURED_S))
    shifts = page.evaluate(LAYOUT_SHIFTS)
    page.close()
    worst = max(shifts, default=[0, []])
    return {
        "requests": sent.total(),
        "kb": round(received[0] / 1024, 1),
        "most_fetched": max(sent.values(), default=0),
        "cls": round(sum(value for value, _ in shifts), 4),
        "worst_shift": [round(worst[0], 4), *worst[1]],
    }


def line_of(row: dict[str, Any]) -> str:
    figures = f"{row['requests']:>4} requests {row['kb']:>7} KB  most {row['most_fetched']}  CLS {row['cls']:<7}"
    return f"{row['page']:20} {figures} {' '.join(map(str, row['worst_shift']))}"


if __name__ == "__main__":
    main()
