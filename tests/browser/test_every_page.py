"""Every page, checked with axe-core and on a narrow screen. ACME_SHOTS=DIRECTORY also saves screenshots."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission

from bench.browser.page_visits import PAGES
from failures.actions import anomalies as anomaly_actions
from failures.actions import notices as notice_actions
from failures.actions import stacks as stack_actions
from failures.detection.findings import DetectorFinding, SymptomType
from failures.models import Channel, Incident, StackDump
from failures.recovery import decisions
from jobs.actions import maintenance as maintenance_actions
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.actions.maintenance import MaintenanceRequest
from jobs.models import (
    Checkpoint,
    ClusterMinute,
    LatestProgress,
    Maintenance,
    Node,
    Progress,
    Quota,
    Sample,
    Team,
    TeamRole,
    clock,
)
from scheduling.models import Campaign, EvaluationRule, Simulation
from scheduling.power.actions import budgets as budget_actions
from scheduling.whatif.loops import run_simulation_once
from tests import make
from tests.browser.chromium import LAYOUT_SHIFTS
from tests.failures import make as failures
from tests.failures.make import decide_and_recover_once
from tests.failures.recovery.test_resized import decided
from tests.jobs.api import api_make
from tests.scheduling.evaluation.campaign_make import campaign, suite

# A slow machine takes minutes for axe alone
pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

AXE = Path(__file__).with_name("vendor") / "axe-core-4.14.1.min.js"
SHOTS = os.environ.get("ACME_SHOTS", "")
ONLY = os.environ.get("ACME_PAGES", "").split()  # names from the table below; none: all of them
# All combinations for screenshots; for axe the two that differ most
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (1440, 1024, 390)]
LOOKS = LOOKS if SHOTS else [("light", 1440), ("dark", 390)]
MOST_SHIFT = 0.02  # while a page loads and its charts and late fragments arrive
COMES_LATER = {
    "characterization": ["#failures-plot:not([hx-get])"],
    "now": ["#ledger .aside", "#usage-plots[data-drawn]"],
    "job-metrics": ["#plots[data-drawn]"],
    "job-gpus": [".gpu-map li"],
}
# Lighthouse also takes points for these, whatever their impact
ALWAYS = ["heading-order", "label-content-name-mismatch", "skip-link", "table-duplicate-name", "target-size"]
# In one step, because the page may replace the element at any time
SCROLL_TO = """(selector) => {
  const found = document.querySelector(selector);
  found?.scrollIntoView();
  return Boolean(found);
}"""
VIOLATIONS = """async ([only, always]) => {
  const rules = only ? {runOnly: {type: "rule", values: only}} : {};
  const enabled = Object.fromEntries(always.map((name) => [name, {enabled: true}]));
  const found = await axe.run(document, {...rules, rules: enabled, resultTypes: ["violations"]});
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact) || always.includes(one.id))
    .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}"""


@pytest.fixture
def site(tmp_path):
    """A cluster with running, pending and failed jobs and drained nodes."""
    (tmp_path / "a.log").write_text("".join(f"[rank{n % 8}]: step {n} | loss 2.3\n" for n in range(3000)))
    seren = make.cluster(log_root=str(tmp_path), gpu_hour_price=2.4)
    make.team("pretraining", ada=TeamRole.ADMIN, ben=TeamRole.RESEARCHER)
    may = ("operate_cluster", "add_cluster", "change_cluster", "view_cluster", "add_team")
    make.user("ada").user_permissions.add(*Permission.objects.filter(codename__in=may))
    make.ended(make.job(by="ben", name="broken", gpus_per_node=4), state="FAILED", exit_code=1)
    one = make.running(
        make.job(by="ada", name="pretrain-7b", kind="pretrain", gpus_per_node=8),
        on=["seren-001"],
        log_path=str(tmp_path / "a.log"),
    )
    reports(one)
    make.jobs({"name": "sweep", "array": "1-3"}, by="ada", gpus_per_node=8)
    node = Node.objects.get(name="seren-004")
    node_actions.drain(node, author=make.author(), why="fan 3 is loud", now=clock.now())
    times = {"start_at": clock.now() + timedelta(hours=2), "end_at": clock.now() + timedelta(hours=6)}
    pumps = MaintenanceRequest(name="cooling-row-3", reason="new pumps", nodes="seren-[001-002]", **times)
    maintenance_actions.schedule_maintenance(seren, pumps, author=make.author(), now=clock.now())
    Quota.objects.create(team=Team.objects.get(name="pretraining"), cluster=seren, gpus=16)
    evaluations(seren)
    for row in Node.objects.all():
        Sample.objects.create(node=row, at=clock.now(), gpu_util=[50.0] * 8, gpu_temperature_c=[60.0] * 8)
    settings(seren)
    lately(seren)
    decided(tmp_path, by="ada", on=("seren-002",))
    asked(failures.diagnosed(tmp_path, failures.XID, by="ada", on=("seren-002",)))
    for _ in range(2):
        api_make.simulation(make.user("ada"), "pretraining")
        run_simulation_once(clock.now)
    return one.job


def asked(diagnosis):
    """Add stacks of the ranks, and a correction that replaces one decision by another."""
    decide_and_recover_once(clock.now())
    decisions.correct_diagnosis(diagnosis, "Hang", author=make.author("ada"), now=clock.now())
    decide_and_recover_once(clock.now())
    dump = StackDump.objects.create(attempt=diagnosis.attempt, incident=diagnosis.incident, until=clock.now())
    frame = (
        '[rank{}]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in'
    )
    text = "".join(frame.format(rank) + " all_reduce\n" for rank in range(40))
    said = ("Ranks 0-2,4-7 wait in all_reduce, reduce_gradients (train/grads.py:52).", "The others wait for rank 3.")
    stack_actions.close_dump(dump, text, 8, said, clock.now())


def settings(seren):
    """Add a faulty node without failed jobs, a notification channel, and recovery modes."""
    hot = DetectorFinding(symptom=SymptomType.NODE, since=clock.now().timestamp(), why="A GPU is at 95 °C.")
    anomaly_actions.record_finding(
        hot, seren, clock.now(), node=Node.objects.select_related("cluster").get(name="seren-003")
    )
    decide_and_recover_once(clock.now())
    recovery_actions.set_recovery_mode("act", author=make.author(), action="restart")
    notice_actions.add_channel("email", "operators@example.org", author=make.author(), scope="node")
    budget_actions.add(seren, scope="cluster", limit_kw=40, author=make.author())
    budget_actions.add(seren, scope="rack", place="r01", limit_kw=7, author=make.author())


def lately(seren):
    """Add a day of load figures, with an hour without measurements."""
    now = clock.now()
    for ago in [minutes for minutes in range(0, 1440, 5) if not 600 < minutes < 660]:
        allocated, waiting = 32 - 8 * (ago // 400), max(0, 30 - ago // 40)
        seen = {
            "gpus": 32,
            "allocated": allocated,
            "closed": 0,
            "utilization": 70 + ago % 20,
            "running": allocated // 8,
            "waiting": waiting,
        }
        ClusterMinute.objects.create(cluster=seren, at=now - timedelta(minutes=ago), requested=8 * waiting, **seen)


def evaluations(cluster):
    """Add two watched directories, and a campaign for one of them."""
    core = suite(team=Team.objects.get(name="pretraining"))
    campaign(cluster, of=core)
    plain = {"team": core.team, "user": make.user("ada"), "cluster": cluster, "suite": core.name}
    EvaluationRule.objects.create(**plain, directory="/checkpoints/pretrain-7b", looked_at=clock.now(), started=3)
    why = "2 new checkpoints wait until 14:50 UTC: the minimum interval is 1:00:00."
    paced = {"interval": timedelta(hours=1), "pattern": "step-*", "which": "every", "why": why}
    EvaluationRule.objects.create(**plain, **paced, directory="/checkpoints/sft/a-long-name-of-an-experiment")


def reports(attempt):
    """Add an hour of training progress, and a checkpoint."""
    now = clock.now()
    for step in range(60):
        told = {"loss": 2.5 - step / 60, "step_time_s": 1.2, "grad_norm": 0.8, "tokens": step * 4_000_000}
        Progress.objects.create(attempt=attempt, at=now - timedelta(minutes=60 - step), step=step * 100, **told)
    told |= {"source": "log", "steps_total": 90_000, "saved_step": 5800, "saved_at": now, "saved_path": "/ckpt/run"}
    LatestProgress.objects.create(attempt=attempt, at=now, step=5900, **told)
    saved = {"path": "/ckpt/step-3000", "saved_at": now - timedelta(minutes=30), "durable_at": now}
    Checkpoint.objects.create(job=attempt.job, attempt=attempt, step=3000, **saved)


def pages(job) -> dict[str, str]:
    runs = list(Simulation.objects.values_list("public_id", flat=True))
    return {
        "now": "/",
        "map": "/map/",
        "jobs": "/jobs/",
        "job": f"/jobs/{job}/",
        "job-metrics": f"/jobs/{job}/?tab=metrics",
        "job-gpus": f"/jobs/{job}/?tab=gpus",
        "job-events": f"/jobs/{job}/?tab=events",
        "log": f"/jobs/{job}/log/",
        "log-part": f"/jobs/{job}/log/?line=1500",
        "log-found": f"/jobs/{job}/log/?find=step+15&rank=3&context=2",
        "submit": "/jobs/new/",
        "glossary": "/glossary/",
        "health": "/health/",
        "search": "/search/?q=pre",
        "queue": "/queue/",
        "policy": "/queue/seren/policy/",
        "maintenance-declare": "/queue/seren/maintenance/",
        "maintenance": f"/queue/seren/maintenance/{Maintenance.objects.get().pk}/",
        "sleeping-nodes": "/sleeping/seren/",
        "nodes": "/nodes/",
        "node": "/nodes/seren/seren-004/",
        "failures": "/failures/",
        "rules": "/failures/rules/",
        "what-if": "/what-if/",
        "incident": f"/failures/{Incident.objects.latest('pk').pk}/",
        "too-large": f"/failures/{Incident.objects.get(root_cause='OutOfMemoryError').pk}/",
        "replay": f"/what-if/{runs[0]}/",
        "compare": f"/what-if/compare/?of={','.join(runs)}",
        "evaluations": "/evaluations/",
        "evaluation-rules": "/evaluations/rules/",
        "campaign": f"/evaluations/{Campaign.objects.get().public_id}/",
        "reports": "/reports/?by=team",
        "characterization": "/reports/characterization/",
        "team-usage": "/reports/teams/",
        "account": "/account/",
        "teams": "/settings/teams/",
        "team": "/settings/teams/of/pretraining/",
        "clusters": "/settings/clusters/",
        "cluster": "/settings/clusters/of/seren/",
        "cluster-add": "/settings/clusters/add/",
        "sick-node": "/nodes/seren/seren-003/",
        "anomaly": f"/failures/{Incident.objects.get(root_cause='NodeHealth').pk}/",
        "channels": "/settings/notifications/",
        "channel": f"/settings/notifications/{Channel.objects.get().pk}/",
        "recovery-modes": "/settings/recovery/",
        "model": "/settings/model/",
        "api-docs": "/api/v1/docs/",
    }


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_every_page_fits_is_accessible_and_logs_no_errors(visit, site, scheme, width):
    ada = visit("ada", color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    make.team("pretraining", ada=TeamRole.ADMIN)  # the login made her a researcher
    wrong: list[str] = []
    # A theme changes only colors, and a narrow screen the places of elements
    only = ["color-contrast", "link-in-text-block", *ALWAYS] if scheme == "dark" else None

    for name, path in pages(site).items():
        if ONLY and name not in ONLY:
            continue
        ada.open(path)
        for selector in COMES_LATER.get(name, ()):
            ada.page.wait_for_function(SCROLL_TO, arg=re.split(r"[ \[:]", selector)[0])
            ada.page.wait_for_selector(selector)
        if SHOTS:
            ada.page.evaluate("scrollTo(0, 0)")
            ada.page.screenshot(path=Path(SHOTS) / f"{name}-{scheme}-{width}.png", full_page=True)
        shifts = ada.page.evaluate(LAYOUT_SHIFTS)
        if sum(size for size, _ in shifts) >= MOST_SHIFT:
            wrong.append(f"{name} moves: {shifts}")
        if ada.page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{name} is wider than {width}")
        ada.page.add_script_tag(path=AXE)
        wrong += [f"{name}: {one}" for one in ada.page.evaluate(VIOLATIONS, [only, ALWAYS])]

    assert wrong == []
    assert ada.complaints == []


def test_benchmarks_visit_every_page(site):
    others = {"too-large", "sick-node", "anomaly"}  # pages of which another one is visited, about another row

    assert set(pages(site)) == set(PAGES) | others
