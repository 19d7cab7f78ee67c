"""The product beside a busy machine: what is late, and whether anything is lost.

    python bench/pressure.py             about half an hour; --minutes 15 --loops 16 --only busy

It starts the demo with both of its clusters, and jobs that fail all the time: two per second are submitted over the
API, half of them to the Kubernetes cluster; some that run long are cancelled. First the machine is quiet, then as many
busy loops as named run beside it with normal priority; they are processes of this program, which ends them by pid.
Times are those of the database. A loop's gap is the longest time without an end of it. Prints a table to stderr and
JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.isolation import BenchUser  # noqa: E402
from tests.acceptance.instance import running  # noqa: E402

SUBMIT_INTERVAL_S = 0.5
PARTS = ("quiet", "busy")
CANCEL_EVERY = 10  # submissions
LONG_JOBS = 2  # that run before the oldest is cancelled
PAGE_EVERY = 4
DRAIN_S = 120.0  # after the last submission, so that what failed then counts too
REASONS = ("cuda_error", "attribute_error", "network_error", "connection_error")
GOALS_S = {
    "failure to verdict": 60.0,
    "verdict to decision": 20.0,
    "end to copied log": 30.0,
    "cancel to end": 20.0,
    "home page": 3.0,
    "longest gap of recovery": 30.0,
    "longest gap of outcomes": 30.0,
}
COUNTS = ("logs lost", "cancelled after their end", "failures without a verdict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="Duration of each part.")
    parser.add_argument("--loops", type=int, default=16, help="Busy loops of the second part.")
    parser.add_argument("--only", choices=PARTS, help="One part; prints its JSON only.")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(run_part(options.only, options), indent=1))
        return
    figures: dict[str, Any] = {"machine": f"{platform.platform()}, {os.cpu_count()} cores, {options.loops} busy loops"}
    for part in PARTS:  # each in a process of its own, because Django is set up for one instance
        words = ["--only", part, "--minutes", str(options.minutes), "--loops", str(options.loops)]
        done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, check=True, text=True)
        figures[part] = json.loads(done.stdout)
    print(pressure_table(figures), file=sys.stderr)
    print(json.dumps(figures, indent=1))


def run_part(part: str, options: argparse.Namespace) -> dict[str, Any]:
    with running(DEMO="1", DEMO_CLUSTERS="seren,kalos", DEMO_SPEED="20") as (instance, _):
        os.environ.update(instance.surroundings(), DJANGO_SETTINGS_MODULE="acmeweb.settings")
        import django

        django.setup()
        from tests.jobs.api import api_make

        api_make.team("bench")
        person = api_make.person("bench", "bench", is_superuser=True)
        user = PressureUser(BenchUser(instance.port, api_make.token(person), person))
        with busy_loops(options.loops if part == "busy" else 0):
            return measure_pressure(user, 60 * options.minutes)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@dataclass
class Observed:
    """What is not in the database afterwards."""

    log_copied_s: dict[int, float] = field(default_factory=dict)  # by attempt
    gaps_s: dict[str, float] = field(default_factory=dict)  # by loop
    pages_s: list[float] = field(default_factory=list)
    late: set[str] = field(default_factory=set)


def measure_pressure(user: PressureUser, seconds: float) -> dict[str, Any]:
    """Submit, cancel and look, in this process; measure from the rows afterwards."""
    from jobs.models import clock

    since, seen, submitted = clock.now(), Observed(), 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline + DRAIN_S:
        due = time.monotonic() + SUBMIT_INTERVAL_S
        if time.monotonic() < deadline:
            submitted += 1
            user.submit(submitted)
        if submitted % PAGE_EVERY == 0:
            seen.pages_s.append(user.user.page("/"))
        observe(since, seen)
        time.sleep(max(0.0, due - time.monotonic()))
    return pressure_figures(since, seen, user.cancelled_at) | {"submitted": submitted}


class PressureUser:
    """Submits jobs that fail after some seconds, and cancels some that would run long."""

    def __init__(self, user: BenchUser) -> None:
        self.user, self.long_jobs = user, list[str]()
        self.cancelled_at: dict[str, datetime] = {}

    def submit(self, number: int) -> None:
        from jobs.models import clock

        hints = {"SIM_DURATION_S": "5", "SIM_END": f"FAILED:1:{REASONS[number % len(REASONS)]}"}
        is_long = number % CANCEL_EVERY == 0
        if is_long:
            hints = {"SIM_DURATION_S": "3600"}
        body = {"name": "pressure", "team": "bench", "cluster": ("seren", "kalos")[number % 2], "environment": hints}
        answer = self._call("/api/v1/jobs/", body | {"nodes": 1, "gpus_per_node": 1, "command": "true"})
        if is_long:
            self.long_jobs.append(str(answer["id"]))
        if len(self.long_jobs) > LONG_JOBS:
            job = self.long_jobs.pop(0)
            self.cancelled_at[job] = clock.now()
            self._call(f"/api/v1/jobs/{job}/cancel/", {})

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.user.token}"}
        status, raw, _ = self.user.request("POST", path, headers, body)
        assert status < 300, (path, status, raw[:500])
        return dict(json.loads(raw))


def observe(since: datetime, seen: Observed) -> None:
    """Look at what changes: gaps of the loops, logs that were copied, and which loops the product calls late."""
    from acmeweb.loops.health import read_health
    from jobs.models import Attempt, clock

    now = clock.now()
    health = read_health(now)
    for row in health.loops:
        if row.has_run:
            seen.gaps_s[row.loop.name] = max(seen.gaps_s.get(row.loop.name, 0.0), row.age.total_seconds())
    seen.late |= {row.loop.name for row in health.late}
    ended = Attempt.objects.filter(ended_at__gte=since, log_pending=False, job__cluster__name="kalos")
    for pk, ended_at in ended.exclude(pk__in=seen.log_copied_s).values_list("pk", "ended_at"):
        seen.log_copied_s[pk] = (now - ended_at).total_seconds()


def pressure_figures(since: datetime, seen: Observed, cancelled_at: dict[str, datetime]) -> dict[str, Any]:
    from django.db.models import Exists, OuterRef

    from failures.models import Decision, Diagnosis
    from jobs.core.lifecycle import FINAL_STATES
    from jobs.models import Attempt, ClusterCommand, ClusterCommandKind, Event

    diagnoses = Diagnosis.objects.filter(failed_at__gte=since, judged_at__isnull=False)
    decisions = Decision.objects.filter(diagnosis__in=diagnoses)
    stops = ClusterCommand.objects.filter(kind=ClusterCommandKind.CANCEL, created_at__gte=since)
    recorded_ends = Event.objects.filter(
        attempt=OuterRef("attempt"), type="job.state_changed", to_state__in=FINAL_STATES, at__lt=OuterRef("created_at")
    )
    ends = dict(Attempt.objects.filter(ended_at__gte=since).values_list("job__public_id", "ended_at"))
    times = {
        "failure to verdict": _seconds(diagnoses.values_list("failed_at", "judged_at")),
        "verdict to decision": _seconds(decisions.values_list("diagnosis__judged_at", "at")),
        "end to copied log": list(seen.log_copied_s.values()),
        "cancel to end": _seconds((at, ends[job]) for job, at in cancelled_at.items() if job in ends),
        "home page": seen.pages_s,
    }
    return {
        "times": {name: {"count": len(all_), "p50": _percentile(all_, 0.5), "p95": _percentile(all_, 0.95)}
                  for name, all_ in times.items()},
        "longest gap of recovery": seen.gaps_s.get("recovery", 0.0),
        "longest gap of outcomes": seen.gaps_s.get("outcomes", 0.0),
        "gaps": seen.gaps_s,
        "shown as late": sorted(seen.late),
        "cancelled after their end": stops.filter(Exists(recorded_ends)).count(),
        "failures without a verdict": Diagnosis.objects.filter(failed_at__gte=since, judged_at=None).count(),
        "logs lost": diagnoses.filter(notes__icontains="deleted before").count(),
    }  # fmt: skip


def _seconds(pairs: Iterable[tuple[datetime, datetime]]) -> list[float]:
    return [max(0.0, (later - earlier).total_seconds()) for earlier, later in pairs]


def _percentile(values: Sequence[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def pressure_table(figures: dict[str, Any]) -> str:
    parts = [part for part in PARTS if part in figures]
    heads = "".join(f"{part + ' p50':>12}{'p95':>8}{'n':>6}" for part in parts)
    lines = [figures["machine"], f"{'':28}{heads}{'goal':>8}"]
    for name in figures[parts[0]]["times"]:
        cells = (figures[part]["times"][name] for part in parts)
        row = "".join(
            f"{_seconds_text(cell['p50']):>12}{_seconds_text(cell['p95']):>8}{cell['count']:>6}" for cell in cells
        )
        lines.append(f"{name:28}{row}{GOALS_S[name]:>8.0f}")
    for name in ("longest gap of recovery", "longest gap of outcomes"):
        row = "".join(f"{_seconds_text(figures[part][name]):>26}" for part in parts)
        lines.append(f"{name:28}{row}{GOALS_S[name]:>8.0f}")
    for name in COUNTS:
        lines.append(f"{name:28}" + "".join(f"{figures[part][name]:>26}" for part in parts) + f"{0:>8}")
    lines += [f"late while {part}: {', '.join(figures[part]['shown as late']) or 'nothing'}" for part in parts]
    return "\n".join(lines)


def _seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


if __name__ == "__main__":
    main()
