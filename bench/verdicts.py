"""Time from a failure to its diagnosis: at a steady rate, in a burst, for one log of 200 MB, and for a followed log.

    python bench/verdicts.py             about two minutes; --burst 500 --megabytes 200

It starts its own instance like `make up`, and writes ended attempts with their logs into its database; its workers do
the rest. Measures from the commit of the end to the commit of the diagnosis and of the bundle, by the database's clock.
The followed log is as large as the large one, and the workers could read it while its attempt ran. The baseline in the
same minute is the engine alone over the same logs, in one process.
Prints a table to stderr and JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.acceptance.instance import running  # noqa: E402

STEADY_ATTEMPTS, STEADY_INTERVAL_S = 40, 0.25
ERROR_TAIL = """Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in <module>
TypeError: unsupported operand type(s) for +=: 'float' and 'NoneType'
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burst", type=int, default=200, help="Number of attempts that end at once.")
    parser.add_argument("--megabytes", type=int, default=200, help="Size of the large log.")
    options = parser.parse_args()
    with running(DEMO="0") as (instance, _):
        os.environ.update(instance.surroundings())
        figures = measure_verdicts(instance.place.var.parent, options)
    print(verdict_table(figures), file=sys.stderr)
    print(json.dumps(figures, indent=1))


def measure_verdicts(home: Path, options: argparse.Namespace) -> dict[str, Any]:
    os.environ["DJANGO_SETTINGS_MODULE"] = "acmeweb.settings"
    import django

    django.setup()
    from tests.failures import make

    logs = home / "logs"
    logs.mkdir()
    make.cluster(logs, nodes=64)
    small, large = make_log_text(200_000), make_log_text(options.megabytes * 10**6)
    wait_for_workers()
    parts = {"steady": [], "burst": [], "large": []}
    for _ in range(STEADY_ATTEMPTS):
        parts["steady"].append(make.failed(logs, small, gpus_per_node=1).pk)
        time.sleep(STEADY_INTERVAL_S)
    wait_for_diagnoses()
    ready = [
        make.running(logs, gpus_per_node=1, on=(f"seren-{n % 64 + 1:03d}",), gpus=(n // 64,))
        for n in range(options.burst)
    ]
    parts["burst"] = [make.end(logs, row, small).pk for row in ready]
    wait_for_diagnoses()
    big = make.running(logs, gpus_per_node=1)
    parts["large"] = [make.end(logs, big, large).pk]
    wait_for_diagnoses()
    parts["followed"] = [run_followed_attempt(logs, large)]
    wait_for_diagnoses()
    figures = {name: verdict_latencies(pks) for name, pks in parts.items()}
    return {
        "machine": machine_info(),
        **figures,
        "bare engine": {"large_s": time_bare_engine(large), "small_s": time_bare_engine(small)},
    }


def run_followed_attempt(logs: Path, text: str) -> int:
    """Write all but the last lines while the attempt runs; end the attempt once the followers have caught up."""
    from failures.models import LogReadState
    from failures.queries.log_resume import DEFAULT_FOLLOW_PACE
    from jobs.models import Attempt
    from tests.failures import make

    attempt = make.running(logs, gpus_per_node=1)
    path = logs / f"{attempt.key}.log"
    path.write_text(text[: -len(ERROR_TAIL)])
    Attempt.objects.filter(pk=attempt.pk).update(log_path=path.name)
    deadline = time.monotonic() + 300
    while not LogReadState.objects.filter(
        pk=attempt.pk, read__gte=len(text) - DEFAULT_FOLLOW_PACE.ahead - len(ERROR_TAIL)
    ).exists():
        if time.monotonic() > deadline:
            raise SystemExit("The log was not followed to its end within five minutes.")
        time.sleep(0.2)
    with path.open("a") as log:
        log.write(ERROR_TAIL)
    return int(make.end(logs, attempt, None).pk)


def wait_for_workers() -> None:
    """Wait until the workers have compiled their rules, which is part of the start-up."""
    time.sleep(10)


def make_log_text(size: int) -> str:
    dice = random.Random(1)
    line = "[rank{}] 2026-11-21 10:00:{:02d} step {:>7} | loss {:.4f} | grad norm 0.4 | {:.0f} tokens/s/gpu\n"
    block = "".join(line.format(n % 40, n % 60, n, dice.random(), dice.uniform(3000, 4000)) for n in range(20_000))
    whole = block * (size // len(block) + 1)
    return whole[: whole.rfind("\n", 0, size) + 1] + ERROR_TAIL


def wait_for_diagnoses() -> None:
    from failures.models import Diagnosis
    from jobs.core.lifecycle import FAILURE_STATES
    from jobs.models import Attempt

    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        waiting = Attempt.objects.filter(state__in=FAILURE_STATES, diagnosis=None).exists()
        if not waiting and not Diagnosis.objects.open().exists():
            return
        time.sleep(0.2)
    raise SystemExit("Not all attempts were diagnosed within five minutes.")


def verdict_latencies(pks: list[int]) -> dict[str, Any]:
    from failures.models import Diagnosis
    from jobs.models import Event

    ended = dict(
        Event.objects.filter(attempt__in=pks, type="job.state_changed", to_state="FAILED").values_list("attempt", "at")
    )
    rows = list(
        Diagnosis.objects.filter(attempt__in=pks).values_list("attempt", "root_cause", "judged_at", "bundle_stored_at")
    )
    verdicts = sorted((judged - ended[pk]).total_seconds() for pk, _, judged, _ in rows)
    bundles = sorted((kept - ended[pk]).total_seconds() for pk, _, _, kept in rows)
    right = sum(cause == "TypeError" for _, cause, _, _ in rows)
    return {
        "attempts": len(rows),
        "right": right,
        "verdict_s": latency_summary(verdicts),
        "bundle_s": latency_summary(bundles),
    }


def latency_summary(values: list[float]) -> dict[str, float]:
    high = values[max(0, int(len(values) * 0.95) - 1)]
    return {"p50": round(statistics.median(values), 2), "p95": round(high, 2), "max": round(values[-1], 2)}


def time_bare_engine(text: str) -> float:
    from failures.diagnosis import engine

    raw = text.encode()
    engine.diagnose_text("warm")
    began = time.perf_counter()
    engine.diagnose([raw])
    return round(time.perf_counter() - began, 3)


def machine_info() -> str:
    load = os.getloadavg()[0]
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}"


def verdict_table(figures: dict[str, Any]) -> str:
    rows = [
        figures["machine"],
        f"{'':8} {'attempts':>8} {'right':>6}   verdict p50 / p95 / max     bundle p50 / p95 / max",
    ]
    for name in ("steady", "burst", "large", "followed"):
        row = figures[name]
        times = ["{p50:>8} {p95:>8} {max:>8}".format(**row[kind]) for kind in ("verdict_s", "bundle_s")]
        rows.append(f"{name:8} {row['attempts']:>8} {row['right']:>6} {times[0]} {times[1]}")
    return "\n".join([*rows, f"bare engine: large {figures['bare engine']['large_s']} s"])


if __name__ == "__main__":
    main()
