"""The command line against the real API, without a network in between."""

from __future__ import annotations

import json
import math
import re
import shlex
import stat

import acme_client
import httpx
import pytest
from acme_client import Acme, Refused, cli, config, job_details, script, submit_help, table
from acme_client.cli import run

from jobs.actions import jobs as job_actions
from jobs.actions import progress
from jobs.actions.journal import Author
from jobs.models import Attempt, Cluster, HoldKind, IdempotencyKey, Job, Node, TokenScope, clock
from scheduling.loops.start_estimates import estimate_starts_once
from tests.failures import make as failures
from tests.jobs.api import api_make as make

pytestmark = pytest.mark.django_db


def test_submit_applies_the_directives_of_a_script(acme, tmp_path):
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=8 -p gpu\n#ACME --kind pretrain\nsrun train\n")

    result = acme("submit", "-t", "1:00:00", path, "--lr", "3e-4")

    job = Job.objects.get()
    assert result.stdout == f"Submitted batch job {job}\n"
    assert "--partition" in result.stderr
    assert (job.name, job.nodes, job.gpus_per_node, job.kind) == ("train.sh", 2, 8, "pretrain")
    assert job.time_limit.total_seconds() == 3600
    assert "set -- --lr 3e-4" in job.command


def test_submit_accepts_a_command(acme):
    result = acme("submit", "--parsable", "--wrap", "sleep 5", "-J", "nap")

    job = Job.objects.get()
    assert (result.stdout, result.stderr) == (f"{job}\n", "")
    assert (job.name, job.command) == ("nap", "sleep 5")


def test_submit_prints_the_url_beside_the_output_of_sbatch(acme):
    result = acme("submit", "--wrap", "sleep 5")
    assert result.stderr == f"http://localhost/jobs/{Job.objects.get()}/\n"

    array = acme("submit", "--wrap", "sleep 5", "-a", "0-2")
    assert array.stderr == f"http://localhost/jobs/?array={array.stdout.split()[-1]}\n"


@pytest.mark.parametrize("option", ["--dry-run", "--test-only"])
def test_a_dry_run_shows_start_and_cost_and_submits_nothing(acme, option):
    result = acme("submit", option, "-N", "2", "--gpus-per-node", "8", "-t", "1:00:00", "--wrap", "train")

    assert result.stdout.splitlines() == [
        "Dry run: nothing was submitted to seren.",
        "Likely start: in the next scheduling turn",
        "Team quota: none",
        "Free now: 32 of 32 GPUs on matching nodes; 4 of 4 nodes have room",
        "Preemption: It is not preempted.",
        "Cost: at most 16.0 GPU-hours",
    ]
    assert not Job.objects.exists()


def test_a_dry_run_names_what_blocks_the_job_and_the_estimated_start(acme, ada):
    for number in range(1, 5):
        make.running(make.job(ada, gpus_per_node=8, time_limit=3600), f"gpu{number:03d}", tuple(range(8)))

    shown = acme("submit", "--dry-run", "--gpus-per-node", "8", "-t", "30", "--wrap", "train").stdout

    assert "Blocked by\n  1. capacity: " in shown
    assert "Likely start: " in shown and "90% likely by: " in shown


def test_a_dry_run_reports_invalid_fields_like_a_submission(acme):
    with pytest.raises(Refused) as refused:
        acme("submit", "--dry-run", "-N", "99", "--wrap", "train")

    assert "nodes" in refused.value.errors


def test_submit_help_describes_each_option_once(acme):
    described = [usage.partition(" ")[0] for group in submit_help.option_groups().values() for usage, _ in group]

    assert sorted(described) == sorted(
        {
            *script.OPTIONS,
            *script.TIME_OPTIONS,
            "--export",
            "--wrap",
            "--parsable",
            "--dry-run",
            "--test-only",
            "--help",
        }
    )
    shown = acme("submit", "--help").stdout
    assert "-N, --nodes N " in shown and "Examples:\n  acme submit " in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_examples_of_the_submit_help_are_accepted(acme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text("#!/bin/sh\ntrain\n")
    examples = [line for line in submit_help.EXAMPLES.splitlines() if line.startswith("  acme submit")]

    for line in examples:
        assert acme(*shlex.split(line)[1:]).exit_code == 0

    assert Job.objects.count() == len(examples) == 2


def test_a_script_comes_from_standard_input_too(acme):
    assert acme("submit", "-", stdin="#SBATCH -J piped\nsrun x\n").exit_code == 0
    assert Job.objects.get().name == "piped"


@pytest.mark.parametrize(
    "words",
    [["submit"], ["submit", "nowhere.sh"], ["submit", "-N", "x", "--wrap", "y"], ["submit", "--wrap", "x", "also.sh"]],
)
def test_wrong_usage_is_exit_code_2_and_a_sentence(acme, words):
    result = acme(*words)

    assert result.exit_code == 2
    assert result.stderr.startswith("acme: ")
    assert not Job.objects.exists()


def test_the_queue_as_squeue_shows_it(acme, ada):
    make.running(make.job(ada, name="live", gpus_per_node=1))
    make.job(ada, name="waits")
    done = make.job(ada, name="done")
    job_actions.cancel(done, author=Author(by="ada"))

    head, *rows = acme("jobs").stdout.splitlines()

    assert head.split() == ["JOBID", "CLUSTER", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert [row.split()[4] for row in rows] == ["PD", "R"]
    assert rows[0].endswith("(None)")
    assert rows[1].endswith("gpu001")
    assert "done" in acme("jobs", "-t", "CA").stdout
    assert len(json.loads(acme("jobs", "-t", "all", "-o", "json").stdout)) == 3
    assert len(acme("jobs", "-u", "nobody").stdout.splitlines()) == 1


def test_the_queue_as_csv(acme, ada):
    make.job(ada, name="=cmd()", comment="x")

    head, row = acme("jobs", "-o", "csv").stdout.splitlines()

    assert head.startswith("JOBID,CLUSTER,NAME")
    assert "'=cmd()" in row


class ShortPages(httpx.BaseTransport):
    """A server that returns at most two rows per page."""

    def __init__(self, door):
        self.door = door

    def handle_request(self, request):
        request.url = request.url.copy_set_param("limit", 2)
        return self.door.handle_request(request)


def test_long_lists_come_page_by_page(acme, ada, door):
    for _ in range(5):
        make.job(ada)
    client = Acme.configured(ShortPages(door))

    assert len(list(client.pages("jobs/", {}, 100))) == 5
    assert len(list(client.pages("jobs/", {}, 3))) == 3


def test_job_and_why_show_a_pending_job(acme, ada):
    job = make.job(ada, environment={"API_KEY": "hunter2"})
    job_actions.store_wait_reasons([job_actions.WaitReason(job.pk, "Resources", "It needs 8 GPUs; 3 are free.")])

    shown = acme("job", job).stdout

    assert "hunter2" not in shown
    assert "PENDING" in shown
    assert acme("why", job).stdout == f"{job} PENDING (Resources): It needs 8 GPUs; 3 are free.\n"


def test_job_shows_request_times_and_attempts(acme, ada):
    job = make.running(make.job(ada, name="train", gpus_per_node=8, command="first\nsecond\x1b[2J"))

    shown = acme("job", job).stdout

    assert shown.startswith(f"{job}  train  RUNNING\n")
    assert re.search(r"\n  Owner: +ada \(team \w+\)\n", shown)
    assert re.search(r"\n  Resources: +1 node with 8 GPUs", shown)
    assert re.search(r"\n  Started: +20\S+ \S+ UTC \(\d+ \w+ ago\)\n", shown)
    assert re.search(r"\n  Command: +first\n +second\ufffd\[2J\n", shown)
    assert re.search(r"\nAttempts\n  1\.  RUNNING  \S+  on gpu001\n", shown)
    assert shown.endswith(f"http://localhost/jobs/{job}/\n")
    assert "Cause" not in shown


def test_job_shows_the_cause_of_its_failure(acme, ada, tmp_path):
    diagnosis = failures.diagnosed(tmp_path, failures.XID, by="ada", on=("gpu001",))

    shown = acme("job", diagnosis.attempt.job).stdout

    assert re.search(rf"\nCause\n  Root cause: +{diagnosis.root_cause} \(\d+% sure\)\n  Evidence: +line \d+: ", shown)


def test_job_is_json_for_programs(acme, ada):
    job = make.job(ada)

    assert json.loads(acme("job", job, "--json").stdout) == json.loads(acme("job", job, "-o", "json").stdout)
    assert json.loads(acme("job", job, "--json").stdout)["id"] == str(job)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(45, "45 s"), (754, "12 min"), (12000, "3 h 20 min"), (187200, "2 d 4 h")]
)
def test_ages_are_written_in_words(seconds, shown):
    assert job_details.spoken_duration(seconds) == shown


def test_job_shows_known_progress(acme, ada):
    silent, job = make.running(make.job(ada, gpus_per_node=1)), make.running(make.job(ada, gpus_per_node=1), gpus=(1,))
    progress.record_attempt_heartbeats(job.attempts.get().key, [{"step": 740, "loss": 2.5}])
    assert "Last save" not in acme("job", job).stdout

    saved = [progress.CheckpointReport(path=f"/ckpt/{step}", step=step, durable=step < 700) for step in (600, 700)]
    for one in saved:
        progress.record_checkpoints(
            progress.record_attempt_heartbeats(job.attempts.get().key, []), [one], Author(by="ada")
        )
    shown = acme("job", job).stdout

    assert re.search(r"\n  Step: +740 at 20\S+ \S+ UTC\n  Loss: +2\.5\n", shown)
    assert re.search(r"\n  Last save: +step 700 at 20.+ UTC, not durable yet, in /ckpt/700\n", shown)
    assert "Step:" not in acme("job", silent).stdout


def test_job_marks_progress_from_the_log(acme, ada):
    job = make.running(make.job(ada, gpus_per_node=1))
    attempt, now = job.attempts.get(), clock.now()
    progress.record_log_step(attempt.pk, {"at": now, "step": 40, "loss": math.nan}, total=90, is_late=False)
    progress.record_log_checkpoint(attempt.pk, step=30, path="/ckpt/30", saved_at=now)

    shown = acme("job", job).stdout

    assert re.search(r"\n  Step: +40 of 90 at 20.+ UTC \(from the log\)\n", shown)
    assert re.search(r"\n  Loss: +NaN\n", shown)
    assert re.search(r"\n  Last save: +step 30 at 20.+ UTC \(from the log\), unverified\n", shown)


def test_why_names_no_reason_where_there_is_none(acme, ada):
    job = make.job(ada)

    assert acme("why", job).stdout.splitlines()[0] == f"{job} PENDING: {job.why}"


def test_why_shows_holders_and_helpful_changes(acme, ada):
    for number in range(1, 5):
        made = make.job(ada, gpus_per_node=8, time_limit=7200, name="long run")
        make.running(made, f"gpu{number:03d}", tuple(range(8)))
    job = make.job(ada, gpus_per_node=8, time_limit=3600)
    estimate_starts_once(job.cluster, clock.now())

    shown = acme("why", job).stdout

    assert "  1. capacity: It needs 8 GPUs; no node has 8 free (0 GPUs free in total)." in shown
    assert "     8 GPUs  " in shown
    assert "  time: It would start now if " in shown
    assert "  likely 20" in shown
    assert json.loads(acme("why", job, "-o", "json").stdout)["blockers"][0]["gpus"] == 8


def test_verbs_on_ids_and_filters(acme, ada):
    job, other = make.job(ada), make.job(ada, name="other")

    assert acme("hold", job, "--reason", "data").exit_code == 0
    job.refresh_from_db()
    assert job.hold == HoldKind.USER
    dry = acme("cancel", "--filter", "state=PENDING", "--dry-run")
    assert dry.stdout == "Dry run: cancel would change 2 of 2 jobs.\n"
    assert acme("release", job).exit_code == 0
    assert acme("cancel", "-f", "name=other").exit_code == 0
    other.refresh_from_db()
    assert other.state == "CANCELLED"


def test_refused_verbs_are_reported_with_exit_code_1(acme, ada):
    job = make.job(ada)

    result = acme("requeue", job, "0000000000a")

    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"acme: {job} is PENDING; requeue needs a running job",
        "acme: Job 0000000000a not found.",
    ]


def test_range_of_array_tasks_is_expanded(acme):
    array = acme("submit", "--parsable", "--wrap", "x", "-a", "0-4").stdout.strip()

    acme("cancel", f"{array}_[1-2]")

    assert Job.objects.filter(state="CANCELLED").count() == 2


def test_nodes_drain_and_resume(acme, ada):
    make.running(make.job(ada, gpus_per_node=2), gpus=(0, 1))

    assert "gpu[001-004]" in acme("nodes").stdout
    dry = acme("drain", "gpu001", "--reason", "ECC", "--dry-run")
    assert "would be drained. No new jobs; 1 running job finishes." in dry.stdout
    assert not Node.objects.filter(drain_requested=True).exists()
    acme("drain", "seren/gpu001", "--reason", "ECC")
    line = next(row for row in acme("nodes", "-N").stdout.splitlines() if "gpu001" in row)
    assert "ECC" in line
    assert "2/8" in line
    assert "gpu001: resumed." in acme("resume", "gpu001").stdout
    assert not Node.objects.filter(drain_requested=True).exists()
    assert acme("drain", "gpu001").exit_code == 2


def ends_with(door, monkeypatch, *words):
    """Run `run()` like a shell."""
    monkeypatch.setattr("sys.argv", ["acme", *words])
    with pytest.raises(SystemExit) as ended:
        run(door)
    return ended.value.code


def test_each_kind_of_failure_has_its_exit_code(acme, door, monkeypatch, capsys):
    def nobody(request):
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr("time.sleep", lambda s: None)
    assert ends_with(door, monkeypatch, "job", "0000000000a") == 1
    assert ends_with(httpx.MockTransport(nobody), monkeypatch, "jobs") == 3
    assert ends_with(httpx.MockTransport(lambda r: httpx.Response(200, text="<html>")), monkeypatch, "jobs") == 3
    monkeypatch.setenv("ACME_TOKEN", "acme_wrong")
    assert ends_with(door, monkeypatch, "jobs") == 4
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "acme: Job 0000000000a not found.",
        "acme: http://localhost is not responding (connection refused).",
        "acme: http://localhost did not return JSON (status 200). Is it an Acme server?",
        "acme: This token is unknown, expired or revoked.",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["jobs", "--nope"], "acme: No such option: --nope (Possible options: --name). See acme jobs --help"),
        (["jobs", "--limit", "many"], "acme: Invalid value for '--limit': "),
        (["job"], "acme: Missing argument 'id'. See acme job --help"),
        (["fly"], "acme: No such command 'fly'. See acme --help"),
    ],
)
def test_wrong_words_are_reported_in_one_sentence_with_exit_code_2(door, monkeypatch, capsys, words, sentence):
    assert ends_with(door, monkeypatch, *words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.lower().startswith(sentence.lower())


def test_command_without_words_shows_the_help(door, monkeypatch, capsys):
    assert ends_with(door, monkeypatch) == 2
    shown = capsys.readouterr()
    assert "Exit codes:" in shown.out + shown.err
    assert "acme: " not in shown.err


def test_login_stores_the_token_readable_only_by_the_user(acme, door, monkeypatch):
    monkeypatch.delenv("ACME_URL")
    monkeypatch.delenv("ACME_TOKEN")
    secret = make.token(make.person("ada"), TokenScope.SUBMIT)

    result = acme("login", "http://localhost", stdin=f"{secret}\n")

    assert result.exit_code == 0
    assert secret not in result.output
    assert stat.S_IMODE(config.path().stat().st_mode) == 0o600
    assert config.load() == config.Config(url="http://localhost", token=secret)
    assert acme("jobs").exit_code == 0


def test_the_sdk_submits_and_waits(acme, door):
    client = Acme.configured(door)

    id = acme_client.submit("train", gpus_per_node=8, acme=client)
    job_actions.cancel(Job.objects.get(public_id=id), author=Author(by="ada"))

    assert acme_client.wait(id, acme=client)["state"] == "CANCELLED"
    with pytest.raises(Refused, match="gpus_per_node: 12 is more than the 8 GPUs of a node"):
        acme_client.submit("train", gpus_per_node=12, acme=client)


def test_wait_times_out(acme, door):
    client = Acme.configured(door)
    id = acme_client.submit("train", acme=client)

    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        acme_client.wait(id, acme=client, timeout_s=0)


def test_a_lost_answer_does_not_submit_twice(acme, door, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda s: None)
    lost = []

    class Loses(httpx.BaseTransport):
        def handle_request(self, request):
            answer = door.handle_request(request)
            if not lost:
                lost.append(answer.read())
                raise httpx.ReadError("connection reset")
            return answer

    id = acme_client.submit("train", acme=Acme.configured(Loses()))

    assert Job.objects.get().public_id == id == json.loads(lost[0])["id"]
    assert IdempotencyKey.objects.count() == 1


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["gpu001", "gpu002", "gpu004"], "gpu[001-002,004]"),
        (["gpu9", "gpu10"], "gpu10,gpu9"),
        (["login", "gpu01"], "login,gpu01"),
    ],
)
def test_hostlists_are_formatted_like_slurm(names, short):
    assert table.format_hostlist(names) == short


def test_job_name_cannot_control_the_terminal():
    assert "\x1b" not in table.format_table([("NAME", lambda row: row["name"])], [{"name": "\x1b[2Jgone\x9b"}])


@pytest.mark.parametrize(("seconds", "shown"), [(5, "0:05"), (754, "12:34"), (3600, "1:00:00"), (183900, "2-03:05:00")])
def test_durations_are_formatted_like_squeue(seconds, shown):
    assert table.format_duration(seconds) == shown


# --- logs


@pytest.fixture
def logged(tmp_path):
    Cluster.objects.update(log_root=str(tmp_path))
    job = make.running(make.job(make.person("ada"), gpus_per_node=1))
    Attempt.objects.update(log_path="a.log")
    (tmp_path / "a.log").write_bytes(b"one\n\x1b[31mtwo\x1b[0m\nthree\n")
    return job


def test_log_is_unchanged_in_a_pipe(acme, logged):
    assert acme("logs", logged).stdout_bytes == b"one\n\x1b[31mtwo\x1b[0m\nthree\n"
    assert acme("logs", logged, "-n", "1").stdout == "three\n"


def test_log_cannot_control_the_terminal():
    assert table.clean_log_text("\x1b[31mtwo\x1b[0m\t1\n10%\r99%\x07\n\x1b]0;t\x07x") == "two\t1\n99%\ufffd\nx"


def test_log_of_a_pending_job_is_refused_with_a_sentence(acme, logged):
    with pytest.raises(Refused, match="has not started"):
        acme("logs", make.job(make.person("ada")))


@pytest.mark.django_db(transaction=True)
def test_logs_are_followed_to_the_end_of_the_attempt(acme, logged, monkeypatch):
    ended = job_actions.AttemptEnd(state="COMPLETED", at=clock.now(), exit_code=0)
    job_actions.finish(logged.attempts.get(), ended, author=Author(by="test"))

    result = acme("logs", logged, "-f", "-n", "2")

    assert result.stdout.endswith("two\x1b[0m\nthree\n")
    assert "The attempt has ended." in result.stderr


def test_broken_stream_resumes_where_it_stopped(monkeypatch):
    asked = []

    def answer(request):
        asked.append(request.headers.get("Last-Event-ID"))
        if len(asked) == 1:
            broken = ": beat\n\nevent: start\ndata: {}\n\nid: 4\ndata: a\u2028\ndata: \n\nid: 9\nda"
            return httpx.Response(200, content=broken.encode())
        if len(asked) == 2:
            return httpx.Response(200, content=b"id: 6\nevent: reconnect\ndata: x\n\n")
        return httpx.Response(200, content=b"id: 6\nevent: end\ndata: {}\n\n")

    server = Acme("http://acme.test", "t", httpx.MockTransport(answer))

    found = list(server.events("jobs/1/log/follow/", {}))

    assert asked == [None, "4", "6"]
    assert [(one.name, one.data) for one in found] == [("start", "{}"), ("", "a\u2028\n"), ("end", "{}")]


def test_node_is_drained_and_tested(acme, ada):
    dry = acme("drain", "gpu003", "--reason", "fan", "--mode", "now", "--dry-run")
    assert "would be drained. No new jobs; no job is running." in dry.stdout
    acme("drain", "gpu003", "--reason", "fan", "--mode", "now")
    assert Node.objects.get(name="gpu003").drain_mode == "now"

    assert "seren/gpu003: Waiting for the cluster." in acme("test", "gpu003", "--no-wait").stdout
    with pytest.raises(Refused, match="is already being tested"):
        acme("test", "gpu003", "--no-wait")


def test_every_group_of_the_help_names_existing_commands(acme):
    commands = (*cli.app.registered_commands, *cli.app.registered_groups)
    registered = {command.name or command.callback.__name__ for command in commands}

    grouped = [name for group in cli.COMMAND_GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(registered - {"version", "login", "completion"})
