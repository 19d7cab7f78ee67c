"""The command for jobs whose speed depends on their GPUs: its files, its options and its figures."""

import io
import json
import shlex

import pytest
from django.core.management import CommandError, call_command

from acmeweb.common.env import ROOT
from scheduling.research.rounds.values import RoundPolicy
from scheduling.research.speed_policies import NAMES
from scheduling.research.widths.values import WidthPolicy

JOBS = "submit_s,model,gpus,steps,deadline_s\n0,net,1,400,\n0,net,2,800,700\n"
SPEEDS = "model,gpu_type,gpus,steps_per_s\nnet,A100,1,1\nnet,A100,4,4\nnet,T4,1,0.5\nnet,T4,4,2\n"
PAIRS = "model1,model2,speed1,speed2\nnet,net,0.8,0.8\n"
EXAMPLE = ROOT / "docs" / "examples" / "speeds"


@pytest.fixture
def files(tmp_path):
    for name, text in {"jobs": JOBS, "speeds": SPEEDS, "pairs": PAIRS}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def output(folder, policy="widths tiresias", *, nodes="A100=1x4", options=""):
    out = io.StringIO()
    paths = str(folder / "jobs.csv"), str(folder / "speeds.csv")
    call_command(
        "simulate_speeds", *paths, "--nodes", nodes, "--policy", policy, *shlex.split(options), stdout=out, stderr=out
    )
    return out.getvalue()


def runs(*given, **options):
    options["options"] = options.get("options", "") + " --json -"
    return json.loads(output(*given, **options))["runs"]


def refused(folder, *given, **options):
    with pytest.raises(CommandError) as error:
        output(folder, *given, **options)
    return str(error.value).replace(f"{folder}/", "")


# Figures


def test_widths_run_at_the_speed_of_their_table(files):
    """A start takes 30 s. The second job runs on two GPUs at 2 steps per second, which is between 1 and 4."""
    (run,) = runs(files)

    assert run["completion_s"] == {"mean": 430.0, "p50": 430.0, "p90": 430.0, "max": 430.0}
    assert (run["deadlines"], run["deadlines_met"], run["refused"], run["restarts"]) == (1, 1, 0, 0)
    assert run["gpu_utilization"] == pytest.approx(3 / 4)


def test_rounds_run_at_the_speed_of_their_type(files):
    (alone,) = runs(files, "rounds las-aware", nodes="A100=1x4")
    (slow,) = runs(files, "rounds las-aware", nodes="T4=1x4")

    assert (alone["completion_s"]["max"], slow["completion_s"]["max"]) == (400.0, 800.0)


def test_two_jobs_share_gpus_with_the_speeds_of_pairs(files):
    """Two jobs on one GPU: in turns they need 8,000 s, together 5,000 s."""
    (files / "jobs.csv").write_text("submit_s,model,gpus,steps\n0,net,1,4000\n0,net,1,4000\n")

    options = {"nodes": "A100=1x1", "options": f"--pair-speeds {files / 'pairs.csv'}"}
    (packed,) = runs(files, "rounds las-packed", **options)
    (turns,) = runs(files, "rounds las-aware", nodes="A100=1x1")

    assert packed["completion_s"]["max"] == pytest.approx(5000.0)
    assert turns["completion_s"]["max"] == pytest.approx(8000.0)


def test_restart_and_round_are_options(files):
    (run,) = runs(files, options="--restart-s 5 --round-s 10")

    assert run["completion_s"]["max"] == 405.0


def test_refused_job_is_counted_and_misses_its_deadline(files):
    (files / "jobs.csv").write_text("submit_s,model,gpus,steps,deadline_s\n0,net,1,400,20\n0,net,1,400,\n")

    (run,) = runs(files, "widths elasticflow")

    assert (run["refused"], run["deadlines"], run["deadlines_met"], run["jobs"]) == (1, 1, 0, 2)


def test_workload_of_which_all_jobs_are_refused_has_no_completion_times(files):
    (files / "jobs.csv").write_text("submit_s,model,gpus,steps,deadline_s\n5,net,1,400,20\n")

    (run,) = runs(files, "widths elasticflow")

    assert (run["completion_s"], run["makespan_s"], run["gpu_utilization"]) == (None, 0.0, 0.0)
    assert "refused" in output(files, "widths elasticflow")


def test_jobs_are_replayed_in_order_of_submission(files):
    rows = JOBS.splitlines()
    (files / "jobs.csv").write_text("\n".join([rows[0], "900,net,4,40,", *rows[1:]]))

    assert runs(files)[0]["makespan_s"] == 940.0


def test_table_has_a_row_per_policy(files):
    lines = output(files, "widths optimus, rounds las").splitlines()

    assert [line.split("  ")[0] for line in lines] == ["policy", "widths optimus", "rounds las"]
    assert "deadlines met" in lines[0] and "1 of 1" in lines[1]


def test_report_is_written_to_a_file(files):
    text = output(files, options=f"--json {files / 'report.json'}")

    assert "widths tiresias" in text
    assert json.loads((files / "report.json").read_text())["runs"][0]["policy"] == "widths tiresias"


# Policies


def test_every_policy_of_both_replays_can_be_named():
    defined = {f"widths {policy.name}" for policy in subclasses(WidthPolicy)}
    defined |= {f"rounds {policy.name}" for policy in subclasses(RoundPolicy)}

    assert defined == set(NAMES)


def test_every_policy_has_one_line_in_the_help(capsys):
    with pytest.raises(SystemExit):
        call_command("simulate_speeds", "--help")

    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1, name


def subclasses(base):
    for found in base.__subclasses__():
        if found.__module__.startswith("scheduling."):
            yield from [found] if hasattr(found, "name") else []
            yield from subclasses(found)


@pytest.fixture
def example(tmp_path):
    """The first jobs of the example."""
    (tmp_path / "jobs.csv").write_text("".join((EXAMPLE / "jobs.csv").read_text().splitlines(keepends=True)[:13]))
    (tmp_path / "speeds.csv").write_text((EXAMPLE / "speeds.csv").read_text())
    return tmp_path


@pytest.mark.parametrize("policy", NAMES)
def test_every_policy_ends_all_jobs_of_the_example(example, policy):
    if policy not in ("rounds las", "rounds max-sum"):
        pytest.importorskip("scipy")
    if policy == "rounds allox":
        (example / "jobs.csv").write_text("submit_s,model,gpus,steps\n0,vision,1,4000\n50,speech,1,9000\n")
    pairs = f"--pair-speeds {EXAMPLE / 'pair_speeds.csv'}" if policy in ("rounds las-packed", "rounds gandiva") else ""

    (run,) = runs(example, policy, nodes="A100=2x8", options=pairs)

    assert run["refused"] == 0 or policy == "widths elasticflow"
    assert run["completion_s"]["max"] > 0 and 0 < run["gpu_utilization"] <= 1


def test_policies_for_several_types_use_all_of_them(files):
    pytest.importorskip("scipy")
    both = "A100=1x1,T4=1x1"
    (files / "jobs.csv").write_text("submit_s,model,gpus,steps\n0,net,1,400\n0,net,1,400\n")

    widths, rounds = runs(files, "widths sia,rounds las-aware", nodes=both)

    assert widths["completion_s"]["max"] <= 900.0
    assert rounds["completion_s"]["max"] <= 800.0


def test_model_without_speeds_on_a_type_runs_on_the_other(files):
    pytest.importorskip("scipy")
    (files / "speeds.csv").write_text("model,gpu_type,gpus,steps_per_s\nnet,A100,1,1\nnet,A100,4,4\n")

    found = runs(files, "widths sia,rounds las,rounds las-aware", nodes="T4=1x4,A100=1x4")

    assert all(run["completion_s"]["max"] < 1000 for run in found)


# Bad input


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("jobs", "a,b\n1,2\n", "jobs.csv must be a CSV with the columns submit_s,model,gpus,steps."),
        ("jobs", "submit_s,model,gpus,steps\n", "jobs.csv contains no job."),
        ("jobs", "submit_s,model,gpus,steps\n0,net,1\n", "jobs.csv line 2: expected 4 values, found 3."),
        ("jobs", "submit_s,model,gpus,steps\n0,net,1,0\n", "jobs.csv line 2: steps must be above 0."),
        ("jobs", "submit_s,model,gpus,steps\n0,net,1.5,9\n", "jobs.csv line 2: gpus '1.5' is not a whole number."),
        ("jobs", "submit_s,model,gpus,steps\nnan,net,1,9\n", "jobs.csv line 2: submit_s 'nan' is not a number from 0"),
        ("jobs", "submit_s,model,gpus,steps\n0,,1,9\n", "jobs.csv line 2: model '' is not a name."),
        (
            "jobs",
            "submit_s,model,gpus,steps\n0,net,1,9\n0,other,1,9\n",
            "jobs.csv line 3: speeds.csv has no speed of the model 'other'.",
        ),
        (
            "jobs",
            "submit_s,model,gpus,steps\n0,net,8,9\n",
            "jobs.csv line 2: the job requests 8 GPUs, and no type in nodes has so many.",
        ),
        (
            "jobs",
            "submit_s,model,gpus,steps\n0,net,1,1e15\n",
            "jobs.csv line 2: the job would run longer than 1e+08 s.",
        ),
        (
            "jobs",
            "submit_s,model,gpus,steps,deadline_s\n50,net,1,9,50\n",
            "jobs.csv line 2: deadline_s 50 is not after submit_s 50.",
        ),
        ("speeds", "model,gpus\n", "speeds.csv must be a CSV with the columns model,gpu_type,gpus,steps_per_s."),
        (
            "speeds",
            SPEEDS + "net,A100,4,9\n",
            "speeds.csv line 6: the speed of this model on 4 GPUs of this type is there twice.",
        ),
        (
            "speeds",
            "model,gpu_type,gpus,steps_per_s\nnet,A100,2,1\n",
            "speeds.csv has no speed of 'net' on one GPU A100.",
        ),
        (
            "speeds",
            "model,gpu_type,gpus,steps_per_s\nnet,A100,1,1\n",
            "jobs.csv line 3: speeds.csv has no speed of the model 'net' on 2 GPUs A100.",
        ),
        (
            "speeds",
            'model,gpu_type,gpus,steps_per_s\nnet,A100,1,"1\n',
            "speeds.csv line 2: unexpected end of data.",
        ),
        ("jobs", "submit_s,model,gpus,steps\n0,net,1,9,5\n", "jobs.csv line 2: expected 4 values, found 5."),
        ("jobs", "submit_s,model,gpus,steps,gpus\n0,net,1,9,5\n", "jobs.csv names the column gpus twice."),
    ],
)
def test_bad_line_is_refused_in_one_sentence(files, file, text, says):
    (files / f"{file}.csv").write_text(text)

    assert refused(files).startswith(says)


def test_pair_of_a_model_without_speeds_is_refused(files):
    (files / "pairs.csv").write_text("model1,model2,speed1,speed2\nnet,nett,0.8,0.8\n")

    said = refused(files, policy="rounds las-packed", options=f"--pair-speeds {files / 'pairs.csv'}")

    assert said == "pairs.csv line 2: speeds.csv has no speed of the model 'nett'."


def test_job_of_too_many_rounds_is_refused(files):
    (files / "jobs.csv").write_text("submit_s,model,gpus,steps\n0,net,1,9e6\n")

    said = refused(files, options="--round-s 1 --restart-s 0")

    assert said == "jobs.csv line 2: the job would run for more than 1,000,000 rounds of 1 s."


def test_file_that_cannot_be_read_is_named(files):
    (files / "jobs.csv").write_bytes(b"submit_s,model,gpus,steps\n\xff\n")
    assert refused(files) == "jobs.csv is not a text file in UTF-8."

    (files / "jobs.csv").unlink()
    assert refused(files) == "jobs.csv: No such file or directory."


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"policy": "widths best"}, "policy: 'widths best' is not one of widths tiresias, "),
        ({"policy": ","}, "policy: must be at least one of widths tiresias, "),
        ({"nodes": "A100"}, "nodes: 'A100' is not TYPE=NODESxGPUS, such as A100=4x8."),
        ({"nodes": "A100=0x8"}, "nodes: 'A100=0x8' is not TYPE=NODESxGPUS, such as A100=4x8."),
        ({"nodes": "A100=1x8,A100=2x8"}, "nodes: 'A100=1x8,A100=2x8' names a GPU type twice."),
        ({"nodes": "A100=99999x8"}, "nodes: 'A100=99999x8' are more than 100,000 GPUs."),
        ({"nodes": "A100=1x4,T4=1x4"}, "policy: widths tiresias knows GPUs of one type only, and nodes has several."),
        ({"policy": "widths elasticflow", "nodes": "A100=1x6"}, "elasticflow needs nodes with a power of two of GPUs"),
        ({"policy": "rounds gandiva"}, "policy: rounds gandiva needs the speeds of pairs (--pair-speeds)."),
        ({"policy": "rounds allox"}, "jobs.csv line 3: rounds allox plans jobs of one GPU, and this one has 2."),
        ({"options": "--round-s 0"}, "round_s: 0 is not from 1 to 86400."),
        ({"options": "--restart-s nan"}, "restart_s: nan is not from 0 to less than 60 (round_s)."),
        ({"options": "--round-s 30"}, "restart_s: 30 is not from 0 to less than 30 (round_s)."),
        (
            {"policy": "rounds las", "options": "--restart-s 5"},
            "restart_s: has an effect only with policies for widths.",
        ),
        ({"options": "--json /nowhere/report.json"}, "json: /nowhere/report.json: No such file or directory."),
    ],
)
def test_bad_option_is_refused_in_one_sentence(files, given, says):
    assert refused(files, **given).startswith(says)


def test_step_that_does_not_fit_into_a_round_is_refused(files):
    """Half a step per second in rounds of 2 s is enough, beside another job it is not."""
    assert runs(files, "rounds las", nodes="T4=1x4", options="--round-s 2")
    assert refused(files, "rounds las", nodes="T4=1x4", options="--round-s 1").startswith(
        "jobs.csv line 2: a step takes longer than a round of 1 s."
    )
    paired = f"--round-s 2 --pair-speeds {files / 'pairs.csv'}"
    assert "a step takes longer" in refused(files, "rounds las-packed", nodes="T4=1x4", options=paired)


def test_speeds_of_pairs_without_a_policy_for_pairs_are_refused(files):
    says = refused(files, options=f"--pair-speeds {files / 'pairs.csv'}")

    assert says == "pair_speeds: has an effect only with rounds las-packed and rounds gandiva."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("net,net,0.8,0.8\nnet,net,0.7,0.7\n", "pairs.csv line 3: the pair 'net' and 'net' is there twice."),
        ("net,net,0.8,\n", "pairs.csv line 2: speed2 '' is not a number from 0 to 10."),
    ],
)
def test_bad_pair_is_refused_in_one_sentence(files, text, says):
    (files / "pairs.csv").write_text("model1,model2,speed1,speed2\n" + text)

    assert refused(files, "rounds gandiva", options=f"--pair-speeds {files / 'pairs.csv'}") == says
