"""Verbs on many jobs from the command line, the live view, and the installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from acme_client import bulk_verbs, top
from acme_client.api import Unreachable
from acme_client.cli import app
from rich.console import Console
from typer.testing import CliRunner

from jobs.actions.bulk.background import run_bulk_actions_once
from jobs.models import HoldKind, Job, clock
from tests.jobs.api import api_make as make

CLIENT = Path(__file__).parents[2] / "client"


# --- verbs


@pytest.mark.django_db
def test_negative_priority_is_not_parsed_as_an_option(acme, ada):
    job = make.job(ada)

    assert acme("priority", "-100", job).exit_code == 0

    job.refresh_from_db()
    assert job.priority == -100


@pytest.mark.django_db
def test_a_dry_run_of_any_verb_changes_nothing(acme, ada):
    jobs = [make.job(ada, labels={"run": "7b"}), make.job(ada)]

    for verb in (["cancel"], ["hold"], ["priority", "-5"]):
        said = acme(*verb, "-f", "labels__run=7b", "--dry-run")
        assert (said.exit_code, said.stdout) == (0, f"Dry run: {verb[0]} would change 1 of 1 jobs.\n")

    assert not Job.objects.exclude(hold=HoldKind.NONE, state="PENDING", priority=0).exists()
    assert len(jobs) == Job.objects.count()


@pytest.mark.django_db
@pytest.mark.parametrize("form", ["json", "csv"])
def test_outcomes_are_machine_readable(acme, ada, form):
    job = make.job(ada)

    said = acme("hold", job, "zzzz", "-o", form)

    assert said.exit_code == 1
    if form == "json":
        assert [(one["id"], one["succeeded"]) for one in json.loads(said.stdout)] == [(str(job), True), ("zzzz", False)]
    else:
        assert said.stdout.splitlines()[:2] == ["JOBID,SUCCEEDED,ERROR", f"{job},yes,"]


@pytest.mark.django_db
def test_range_of_tasks_is_expanded_to_single_tasks(acme, ada):
    job = make.job(ada, array="0-4")

    acme("hold", f"{job.array_id}_[0-1,4]")

    assert set(Job.objects.exclude(hold=HoldKind.NONE).values_list("array_index", flat=True)) == {0, 1, 4}


@pytest.mark.django_db
def test_jobs_are_listed_by_label_and_by_any_filter(acme, ada):
    big, small = make.job(ada, labels={"run": "7b"}, nodes=2), make.job(ada, labels={"run": "1b"})

    def ids(*words):
        return [row["id"] for row in json.loads(acme("jobs", "-o", "json", *words).stdout)]

    assert ids("-l", "run=7b") == [str(big)]
    assert ids("-f", "nodes__lte=1") == [str(small)]
    assert acme("jobs", "-l", "7b").exit_code == 2


class BulkServer:
    """A fake server that performs actions on more than 1,000 jobs in the background, 1,000 per request for progress."""

    def __init__(self, count):
        self.left, self.asked = count, []

    def post(self, path, body):
        self.asked.append(body)
        if "ids" in body:
            results = [{"id": id, "succeeded": True} for id in body["ids"]]
            return {"matched": len(results), "succeeded": len(results), "remaining": 0, "results": results}
        self.matched = self.left
        return self.get("jobs/actions/7/")

    def get(self, path):
        assert path == "jobs/actions/7/"
        answer = {"id": 7, "state": "running" if self.left else "completed", "error": "", "matched": self.matched}
        answer |= {"succeeded": self.matched - self.left, "remaining": self.left, "results": []}
        self.left = max(0, self.left - 1000)
        return answer


def test_progress_of_an_action_in_the_background_is_followed_to_its_end(monkeypatch):
    server, seen, pauses = BulkServer(2500), [], []
    monkeypatch.setattr(time, "sleep", pauses.append)

    done = bulk_verbs.run_verb_on_filter(server, {"action": "cancel"}, {"user": "ada"}, lambda *at: seen.append(at))

    assert (done.matched, done.success_count, done.remaining) == (2500, 2500, 0)
    assert seen == [(0, 2500), (1000, 2500), (2000, 2500)] and pauses == [1.0] * 3


@pytest.mark.django_db
def test_cancel_of_a_large_array_waits_for_the_worker(acme, ada, monkeypatch):
    array = make.job(ada, array="0-1000")
    monkeypatch.setattr(time, "sleep", lambda seconds: run_bulk_actions_once(clock.now))

    said = acme("cancel", array.array_id)

    assert said.exit_code == 0, said.output
    assert set(Job.objects.values_list("state", flat=True)) == {"CANCELLED"}


def test_many_ids_go_in_several_requests_each_once():
    server = BulkServer(0)

    done = bulk_verbs.run_verb_on_ids(
        server, {"action": "hold"}, [f"j{n % 1200}" for n in range(2400)], lambda *at: None
    )

    assert [len(body["ids"]) for body in server.asked] == [500, 500, 200] and done.success_count == 1200


# --- top


def row(number, state="RUNNING", **fields):
    started = None if state == "PENDING" else "2026-11-21T11:00:00Z"
    base = {"id": f"j{number}", "cluster": "seren", "name": "train", "user": "ada", "code": state[0], "nodes": 1}
    return (
        base
        | {"state": state, "nodelist": "gpu001", "reason": "Resources", "started_at": started, "ended_at": None}
        | fields
    )


def drawn(seen, lines=24, width=120):
    console = Console(width=width, height=lines, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        console.print(top.render_snapshot(seen, lines))
    return console.export_text()


NODE = {"cluster": "seren", "name": "gpu001", "code": "mix", "gpus": 8, "gpus_allocated": 2}
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_live_view_shows_capacity_running_jobs_and_wait_reasons():
    nodes = [NODE, NODE | {"code": "drain", "gpus_allocated": 0}]

    shown = drawn(top.LiveSnapshot(at=NOON, nodes=nodes, running=[row(1)], waiting=[row(2, "PENDING")]))

    assert "seren        gpus 2/16 [##" in shown and "1 mix, 1 drain" in shown
    assert "1:00:00" in shown and "(Resources)" in shown


@pytest.mark.parametrize("lines", [10, 24, 50])
def test_live_view_fits_the_terminal(lines):
    many = [row(n) for n in range(100)]

    shown = drawn(
        top.LiveSnapshot(at=NOON, nodes=[NODE], running=many, waiting=[row(n, "PENDING") for n in range(100)]), lines
    )

    assert len(shown.splitlines()) <= lines
    assert "(Resources)" in shown and "gpu001" in shown


def test_job_name_cannot_control_the_live_view():
    shown = drawn(top.LiveSnapshot(at=NOON, running=[row(1, name="\x1b[2J\x07[red]x[/red]")]))

    assert "\x1b" not in shown and "\x07" not in shown and "[red]" in shown


def test_unavailable_server_keeps_the_last_view_and_is_reported():
    looks = [top.LiveSnapshot(at=NOON, running=[row(1)]), Unreachable("it does not answer")]
    looking = SimpleNamespace(look=lambda lines: looks.pop(0) if not isinstance(looks[0], Exception) else away())
    rounds = iter([False, True])

    def away():
        raise looks[0]

    console = Console(width=100, height=20, force_terminal=True, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        top.show_live_view(looking, 1.0, console, lambda seconds: next(rounds))

    assert "stale: it does not answer" in console.export_text()


def test_nodes_are_refreshed_less_often():
    asked = []
    server = SimpleNamespace(pages=lambda path, query, most: asked.append(path) or [])
    looking, clock = top.LiveStatusReader(acme=server), iter([0.0, 0.0, 2.0, 11.0, 11.0])

    for _ in range(3):
        looking.look(10, lambda: next(clock))

    assert asked.count("nodes/") == 2 and asked.count("jobs/") == 6


@pytest.mark.django_db
def test_live_view_is_printed_once_without_a_terminal(acme, ada):
    job = make.running(make.job(ada, gpus_per_node=1))

    said = acme("top")

    assert said.exit_code == 0 and str(job) in said.stdout and "gpus 1/32" in said.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell):
    assert "_ACME_COMPLETE" in CliRunner().invoke(app, ["completion", shell]).stdout


# --- the package


def test_the_wheel_installs_where_there_is_no_django(tmp_path):
    """The wheel is built without a network; dependencies come from this environment, except Django."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=CLIENT, check=True, capture_output=True)
    wheel = next(tmp_path.glob("acme_client-*.whl"))
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    place = next((home / "lib").glob("python3*")) / "site-packages"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place)
        assert any(name.endswith("entry_points.txt") for name in packed.namelist())
    lend = "import sys; sys.path.append({!r}); sys.modules['django'] = None\n".format(
        next(path for path in sys.path if path.endswith("site-packages"))
    )
    (place / "lend.pth").write_text(lend)  # Debian's Python has a sitecustomize of its own

    code = (
        "import acme_client, acme_client.cli as cli; sys = __import__('sys'); sys.argv = ['acme', 'version']; cli.run()"
    )
    said = subprocess.run(
        [home / "bin" / "python", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert said.stdout.strip() == "0.1.0", said.stderr


def test_plain_loop_runs_without_a_server_and_resumes(tmp_path):
    script = CLIENT / "examples" / "plain_loop.py"
    environment = os.environ | {"PYTHONPATH": str(CLIENT), "STEPS": "200", "CHECKPOINT_DIR": str(tmp_path)}
    environment.pop("ACME_URL", None)

    first = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    second = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)

    assert "first start" in first.stdout and "after step 199" in second.stdout


def test_the_lightning_callback_reports_and_stops_when_asked(monkeypatch):
    monkeypatch.syspath_prepend(str(CLIENT / "examples"))
    import lightning as example

    said, saved = [], []
    run = SimpleNamespace(
        stop_state="",
        step=lambda step, **values: said.append((step, values)),
        checkpoint_saved=lambda path, step: saved.append((path, step)),
        close=lambda: None,
    )
    trainer = SimpleNamespace(
        global_step=7,
        callback_metrics={"grad_norm": 1.5},
        optimizers=[SimpleNamespace(param_groups=[{"lr": 3e-4}])],
        checkpoint_callback=SimpleNamespace(dirpath="/ckpt"),
        should_stop=False,
    )
    callback = example.AcmeProgress(run, tokens_per_step=4096)

    callback.on_train_batch_start(trainer, None, None, 0)
    callback.on_train_batch_end(trainer, None, {"loss": 2.5}, None, 0)
    callback.on_save_checkpoint(trainer, None, {})
    run.stop_state = "PREEMPTED"
    callback.on_train_batch_end(trainer, None, {"loss": 2.4}, None, 1)

    assert said[0][0] == 7 and said[0][1]["loss"] == 2.5 and said[0][1]["learning_rate"] == 3e-4
    assert said[0][1]["tokens"] == 7 * 4096 and saved == [("/ckpt", 7)]
    assert trainer.should_stop
