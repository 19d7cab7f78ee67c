"""The report of a replay, the command that prints it, and traces drawn from the Acme distributions."""

import io
import json
import re

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from jobs.traces.files import write_trace
from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.resources import NodeResources
from scheduling.engine.turns.strict import strict_turn
from scheduling.management.commands.simulate import _ProgressBar, policy_error_text
from scheduling.whatif.replay import acme_trace, report
from scheduling.whatif.replay.kernel import replay
from scheduling.whatif.replay.run import arrivals, replay_nodes, run_policy
from tests.scheduling.whatif.replay.replaying import COUNT, SMALL, trace

KEYS = [
    *("policy", "jobs", "jct_s", "queue_s", "makespan_s", "utilisation", "preemptions"),
    *("wall_s", "events_per_s", "peak_rss_mb", "by_kind"),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "week.csv"
    with path.open("w") as out:
        write_trace(trace((0, 100, 8), (1, 10, 8), (2, 20, 4), (3, 1, 12), kinds=["sft", "debug", "debug", ""]), out)
    return str(path)


def simulate(*words, **given):
    out, err = io.StringIO(), io.StringIO()
    call_command("simulate", *words, stdout=out, stderr=err, **given)
    return out.getvalue(), err.getvalue()


def runs(*words):
    return json.loads(simulate(*words, "--json", "-")[0])["runs"]


# custom policies


class Walkless(PolicyRules):
    name = "walkless"


class Broken(PolicyRules):
    name = "broken"

    def turn(self, engine, now):
        strict_turn(engine, now)

    def key(self, job, now):
        return 1 / (job.submitted - now)


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (Walkless, "policy walkless: it does not define `turn`, which decides the order of the queue"),
        (Broken, "policy broken: ZeroDivisionError: float division by zero, in `key` ("),
    ],
)
def test_unusable_policy_is_reported_by_name_in_one_sentence(rules, says):
    engine = Engine(NodeResources(replay_nodes(SMALL, SMALL.nodes)), rules())
    with pytest.raises((NotImplementedError, ZeroDivisionError)) as wrong:
        replay(engine, arrivals(trace((0, 100, 8), (1, 10, 8)), engine, SMALL))

    sentence = policy_error_text(rules, wrong.value)
    assert sentence.startswith(says) and "\n" not in sentence
    assert rules is Walkless or "test_simulate.py:" in sentence


class OutsideFifo(PolicyRules):
    name = "outside"
    single_queue = True

    def turn(self, engine, now):
        strict_turn(engine, now)


def test_policy_outside_acme_is_replayed_by_module_and_class(file):
    ours, outside = runs(file, "--nodes", "1", "--policy", f"fifo,{__name__}:OutsideFifo")

    assert outside["policy"] == f"{__name__}:OutsideFifo"
    assert outside["queue_s"] == ours["queue_s"]


# the report


def summary(policy="fifo", setting=COUNT, **columns):
    done = run_policy(trace((0, 100, 8), (1, 10, 8), (2, 20, 4), (3, 1, 12), **columns), policy, setting)
    return report.summary(done, wall_s=0.5, peak_rss_mb=50) | {"engine": "interpreted"}


def test_report_matches_the_golden_values():
    result = summary(kinds=["sft", "debug", "debug", ""])

    assert result["jobs"] == 4
    assert result["jct_s"] == pytest.approx({"mean": 111.25, "p50": 113.5, "p90": 118, "p99": 118, "max": 118})
    assert result["queue_s"] == pytest.approx({"mean": 78.5, "p50": 98.5, "p90": 111.6, "p99": 116.46, "max": 117})
    assert result["makespan_s"] == 121
    assert result["utilisation"] == pytest.approx((800 + 80 + 80 + 12) / (12 * 121))
    assert result["by_kind"]["debug"]["jobs"] == 2
    assert result["by_kind"]["unknown"]["jct_s"]["mean"] == 118
    assert list(result["by_size"]) == ["2-4", "5-8", "9-64"]


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_gpu_hours_add_up_to_the_capacity(policy):
    result = summary(policy)

    assert sum(result["gpu_hours"].values()) == pytest.approx(12 * result["makespan_s"] / 3600)


def test_evenly_treated_users_have_a_jain_index_of_one():
    even = summary(users=["a"] * 4)["fairness"]
    uneven = summary(users=["a", "b", "c", "d"])["fairness"]

    assert even["jain"] == pytest.approx(1)
    assert uneven["jain"] < 0.8
    assert uneven["worst_user_slowdown"] == pytest.approx(11.8)


def test_table_has_one_column_per_policy():
    lines = report.table([summary("fifo"), summary("sjf")]).splitlines()

    assert lines[0].split() == ["policy", "fifo", "sjf"]
    assert len({len(line) for line in lines}) == 1


def test_load_above_one_is_reported():
    assert report.offered_load(run_policy(trace((0, 100, 12), (10, 100, 12)), "fifo", COUNT)) == pytest.approx(20)


# the command


def test_json_on_stdout_has_exactly_the_documented_keys(file):
    result = runs(file, "--policy", "fifo,easy", "--nodes", "3", "--gpus-per-node", "4")

    assert [one["policy"] for one in result] == ["fifo", "easy"]
    assert list(result[0])[: len(KEYS)] == KEYS
    assert list(result[0]["jct_s"]) == ["mean", "p50", "p90", "p99", "max"]


def test_table_goes_to_stdout_and_json_to_its_file(file, tmp_path):
    out, _ = simulate(file, "--nodes", "3", "--gpus-per-node", "4", "--json", str(tmp_path / "report.json"))

    assert out.startswith("policy")
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["jobs"] == 4


def test_bad_rows_and_excluded_jobs_are_reported(file):
    with open(file, "a") as out:
        out.write("9,,,,0,soon,1" + 9 * "," + "\n")

    _, err = simulate(file, "--nodes", "1", "--gpus-per-node", "8", "--policy", "sjf")

    assert "1 rows are not jobs" in err
    assert "line 6: 'soon' cannot be read" in err
    assert "1 jobs skipped: wider than the pool" in err
    assert "the queue grows without limit" in err


def test_jobs_of_a_virtual_cluster_stay_on_its_nodes(file, tmp_path):
    pools = tmp_path / "vcs.csv"
    pools.write_text("vc,nodes\na,2\n")

    _, err = simulate(file, "--vcs", str(pools))

    assert "4 jobs skipped: of no pool" in err


@pytest.fixture
def named_jobs(tmp_path):
    path = tmp_path / "named.csv"
    with path.open("w") as out:
        write_trace(trace((0, 100, 8), (0, 100, 8), (0, 30, 8), names=["bert-1", "bert-2", "other"]), out)
    return str(path)


@pytest.fixture
def profiles_file(tmp_path):
    def write_rows(*rows, columns="name,gpu_percent,memory_mb"):
        path = tmp_path / "profiles.csv"
        path.write_text("\n".join((columns, *rows)) + "\n")
        return str(path)

    return write_rows


ONE_NODE = ("--nodes", "1", "--json", "-")


def test_jobs_with_profiles_share_gpus_at_the_speeds_of_the_table(named_jobs, profiles_file, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("name1,name2,speed1,speed2\nbert-1,bert-1,0.8,0.8\n")
    words = (*ONE_NODE, "--policy", "fifo,gandiva,lucid", "--profiles", profiles_file("bert-1,40,2000"))

    estimated = json.loads(simulate(named_jobs, *words)[0])["runs"]
    measured = json.loads(simulate(named_jobs, *words, "--pair-speeds", str(pairs))[0])["runs"]

    assert [run["makespan_s"] for run in estimated] == [230, 130, 130]
    assert [run["makespan_s"] for run in measured] == [230, 155, 230]  # at 0.8 they are jumbo for lucid
    assert [run["packing"] and run["packing"]["packed_jobs"] for run in measured] == [None, 2, 0]


def test_table_of_results_says_how_many_jobs_shared_gpus(named_jobs, profiles_file):
    words = ("--nodes", "1", "--policy", "fifo,salus", "--profiles", profiles_file("x,40,2000"), "--draw-profiles")
    found = {line.rpartition("  ")[0].strip(): line.split() for line in simulate(named_jobs, *words)[0].splitlines()}

    rows = [cells for cells in found.values() if "profile" in cells or "shared" in cells]
    assert rows == [["jobs", "with", "a", "profile", "(drawn)", "-", "3"], ["jobs", "that", "shared", "GPUs", "-", "3"]]


@pytest.mark.parametrize(
    ("rows", "words", "sentence"),
    [
        (["x,40,2000"], ["--policy", "lucid"], "profiles: none of the 3 jobs of the trace has one of these names"),
        (["bert-1,40,2000"], ["--policy", "sjf"], "profiles: no policy of sjf lets jobs share GPUs"),
        (["bert-1,140,2000"], ["--policy", "lucid"], "line 2: gpu_percent '140' is not a number from 0 to 100"),
        (["bert-1,40"], ["--policy", "lucid"], "line 2: expected 3 values, found 2"),
        ([",40,2000"], ["--policy", "lucid"], "line 2: name '' is not a name"),
        (["a,4,2", "a,4,2"], ["--policy", "lucid"], "line 3: duplicate entry 'a'"),
        (["bert-1,40,2000"], ["--policy", "lucid", "--energy", "--best-effort", ""], "lucid packs jobs, which energy"),
        ([], ["--policy", "lucid"], "profiles: is needed with pair_speeds"),
    ],
)
def test_unusable_profiles_are_one_sentence_that_names_the_field(named_jobs, profiles_file, rows, words, sentence):
    drawn = [] if rows else ["--draw-profiles"]

    with pytest.raises(CommandError, match=re.escape(sentence)):
        simulate(named_jobs, "--nodes", "1", *words, "--profiles", profiles_file(*rows), *drawn)


def test_profiles_without_their_columns_or_file_are_refused(named_jobs, profiles_file, tmp_path):
    words = ("--nodes", "1", "--policy", "lucid", "--profiles")

    with pytest.raises(CommandError, match="must be a CSV with the columns name,gpu_percent,memory_mb"):
        simulate(named_jobs, *words, profiles_file("x,1", columns="name,gpu"))
    with pytest.raises(CommandError, match=r"profiles: .*No such file"):
        simulate(named_jobs, *words, str(tmp_path / "absent.csv"))


@pytest.fixture
def quota_file(tmp_path):
    def write_rows(*rows):
        path = tmp_path / "quota.csv"
        path.write_text("\n".join(("team,kind,gpus", *rows)) + "\n")
        return str(path)

    return write_rows


@pytest.fixture
def teams(tmp_path):
    path = tmp_path / "teams.csv"
    jobs = trace((0, 100, 8), (1, 10, 8), kinds=["debug", "pretrain"], pools=["a", "b"])
    with path.open("w") as out:
        write_trace(jobs, out)
    return str(path)


def test_gpus_reserved_for_pretraining_are_not_used_by_others(teams, quota_file):
    size = "--nodes", "3", "--gpus-per-node", "4"

    free = runs(teams, "--policy", "acme", *size)[0]
    with_quota = runs(teams, "--policy", "acme", *size, "--quota", quota_file("b,pretrain,8"))[0]

    assert free["by_kind"]["pretrain"]["queue_s"]["mean"] == 99
    assert with_quota["by_kind"]["pretrain"]["queue_s"]["mean"] == 0
    assert with_quota["set_aside"]["never_ended"] == 1  # it needs 8 GPUs, but only 4 are ever available to others


@pytest.mark.parametrize("policy", ["fifo", "easy", "fair", "conservative"])
def test_team_holds_no_more_than_its_quota(file, quota_file, policy):
    words = "--policy", policy, "--nodes", "8", "--gpus-per-node", "4"

    result = runs(file, *words, "--quota", quota_file(",,12"))[0]

    assert result["queue_s"]["mean"] > 0 == runs(file, *words)[0]["queue_s"]["mean"]


def test_settings_apply_to_the_policy_they_name(file):
    words = "--policy", "fifo,acme", "--nodes", "3", "--gpus-per-node", "4"

    result = runs(file, *words, "--policy-settings", '{"acme": {"order": "sjf", "aging_s": 1000}}')

    assert [one["jct_s"] == other["jct_s"] for one, other in zip(result, runs(file, *words), strict=True)] == [
        True,
        False,
    ]


def test_borrowing_kinds_can_be_chosen(file):
    words = file, "--policy", "acme", "--nodes", "3", "--gpus-per-node", "4"

    assert runs(*words, "--best-effort", "")[0]["preemptions"] == 0
    assert runs(*words, "--best-effort", "sft")[0]["preemptions"] > 0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("z,,8", "line 2: the trace has no team 'z'"),
        ("a,naps,8", "line 2: naps is not one of pretrain"),
        ("a,,many", "line 2: 'many' is not a number of GPUs"),
        ("a,,8\na,,9", "line 3: 'a' with all kinds is a duplicate entry"),
    ],
)
def test_invalid_quota_is_rejected_with_its_line(teams, quota_file, row, sentence):
    with pytest.raises(CommandError, match=sentence):
        simulate(teams, "--nodes", "3", "--quota", quota_file(row))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{file}"], "give the number of nodes"),
        (["{file}", "--nodes", "0"], "nodes: must be at least 1"),
        (["acme:kalos", "--jobs", "5", "--nodes", "0"], "nodes: must be at least 1"),
        (["{file}", "--nodes", "3", "--policy", "lottery"], "lottery is not one of"),
        (["{file}", "--nodes", "3", "--policy", "fifo,no_such_module:Rules"], "policy: no_such_module:Rules cannot be"),
        (["{file}", "--nodes", "3", "--policy", ":Rules"], "policy: :Rules cannot be imported: "),
        (["{file}", "--nodes", "3", "--policy", "json:loads"], "policy: json:loads is not a subclass of PolicyRules"),
        (["{file}", "--nodes", "3", "--policy", "json:none"], "policy: json:none is not a subclass of PolicyRules"),
        (["/nowhere", "--nodes", "3"], "cannot be read"),
        (["acme:mars"], "not one of acme:seren, acme:kalos"),
        (["acme:kalos", "--jobs", "0"], "jobs: must be at least 1"),
        (["{file}", "--vcs", "{file}"], "must be a CSV with the columns vc,nodes"),
        (["{file}", "--vcs", "/nowhere"], "vcs: "),
        (["{file}", "--nodes", "3", "--checkpoint-s", "-1"], "checkpoint_s: -1.0 is not a number of seconds"),
        (
            ["{file}", "--nodes", "3", "--checkpoint-s", "60", "--faults", "checkpoint_s=90"],
            "checkpoint_s: 60 here and 90 in faults: give only one of them",
        ),
        (["{file}", "--nodes", "3", "--best-effort", "naps"], "best_effort: naps is not one of pretrain"),
        (["{file}", "--nodes", "3", "--quota", "/nowhere"], "quota: "),
        (["{file}", "--nodes", "3", "--quota", "{file}"], "must be a CSV with the columns team,kind,gpus"),
        (
            ["{file}", "--nodes", "3", "--quota", "{file}", "--policy", "fifo,srtf"],
            "quota: srtf does not support quotas",
        ),
        (["{file}", "--nodes", "3", "--policy-settings", "fast"], "policy_settings: is not valid JSON"),
        (["{file}", "--nodes", "3", "--policy-settings", "[1]"], "policy_settings: must be an object per policy"),
        (
            ["{file}", "--nodes", "3", "--policy-settings", '{"acme": {}}'],
            "acme is not one of the replayed policies",
        ),
        (
            ["{file}", "--nodes", "3", "--policy", "acme", "--policy-settings", '{"acme": {"order": "luck"}}'],
            "policy_settings: acme: order: 'luck' is not one of",
        ),
    ],
)
def test_invalid_replay_is_rejected_in_one_sentence(file, words, sentence):
    with pytest.raises(CommandError, match=sentence):
        simulate(*[word.replace("{file}", file) for word in words])


def test_progress_bar_starts_late_and_erases_itself(capsys):
    times = iter([0, 1, 3])
    bar = _ProgressBar("fifo", 100, clock=lambda: next(times))

    bar(10)
    assert capsys.readouterr().err == ""
    bar(50)
    assert "50% of 100 jobs" in capsys.readouterr().err
    bar.clear()
    assert capsys.readouterr().err.endswith("\r")


# Acme


@pytest.mark.parametrize("name", acme_trace.PUBLISHED_CLUSTERS)
def test_drawn_jobs_match_the_published_curves(name):
    site = acme_trace.PUBLISHED_CLUSTERS[name]

    gaps = acme_trace.distances(acme_trace.draw_trace(site, name, jobs=40_000, seed=1), site)

    assert {gap.of for gap in gaps} >= {"sizes of all", "pretrain, run times", "evaluation, share of GPU time"}
    for gap in gaps:
        # Tolerance for a sample of this size (Kolmogorov-Smirnov); GPU time depends on a few wide jobs
        assert gap.points < (15 if "GPU time" in gap.of else 100 * 2.2 / gap.jobs**0.5 + 1), str(gap)


def test_drawn_trace_is_reproducible_and_depends_on_the_seed():
    first, again, other = (
        acme_trace.draw_trace(acme_trace.PUBLISHED_CLUSTERS["kalos"], "kalos", jobs=500, seed=seed)
        for seed in (1, 1, 2)
    )

    assert first.runtime_s.tolist() == again.runtime_s.tolist() != other.runtime_s.tolist()


def test_pretraining_takes_most_gpu_time_and_evaluation_most_jobs():
    drawn = acme_trace.draw_trace(acme_trace.PUBLISHED_CLUSTERS["seren"], "seren", jobs=50_000, seed=1)
    kinds = np.array(drawn.kinds.words)[drawn.kinds.codes]
    work = drawn.gpus * drawn.runtime_s

    assert 0.6 < work[kinds == "pretrain"].sum() / work.sum() < 0.8
    assert 0.6 < (kinds == "evaluation").mean() < 0.7


def test_drawn_trace_can_be_replayed_by_name():
    result = runs("acme:kalos", "--jobs", "300", "--policy", "fifo-skip")[0]

    assert result["jobs"] + sum(result["set_aside"].values()) == 300


def test_load_is_a_percentage_that_labels_the_report(file):
    faster = runs(file, "--policy", "fifo", "--nodes", "3", "--gpus-per-node", "4", "--load", "200")[0]

    assert faster["load"] == 200
    assert "load %" in simulate(file, "--nodes", "3", "--gpus-per-node", "4", "--load", "200")[0]
    with pytest.raises(CommandError, match="load: must be at least 10"):
        simulate(file, "--nodes", "3", "--load", "5")


def test_report_counts_missed_deadlines_of_a_trace_that_has_some(tmp_path):
    path = tmp_path / "deadlines.csv"
    with path.open("w") as out:
        write_trace(trace((0, 100, 12), (1, 10, 12), (2, 10, 12), deadline_s=[200, 20, float("nan")]), out)

    words = [str(path), "--policy", "fifo,edf", "--nodes", "1", "--gpus-per-node", "12"]
    lines = simulate(*words)[0].splitlines()

    assert [line.split()[-2:] for line in lines if line.startswith("deadlines missed")] == [["1", "0"]]
    assert [run["deadlines"] for run in runs(*words)] == [{"jobs": 2, "missed": 1}, {"jobs": 2, "missed": 0}]


# GPU models

SPEEDS = "pattern,gpu_model,speed\nlong,h100,4\nlong,a100,1\n"


@pytest.fixture
def two_models(tmp_path):
    """One node of each model. The second long job comes an hour before the first ends."""
    path, speeds = tmp_path / "types.csv", tmp_path / "speeds.csv"
    with path.open("w") as out:
        write_trace(trace((0, 7200, 8), (3600, 7200, 8), names=["long", "long"]), out)
    speeds.write_text(SPEEDS)
    return str(path), "--nodes", "2", "--gpu-types", "h100=1,a100=1", "--gpu-speeds", str(speeds)


def test_job_that_ends_earlier_after_a_wait_for_h100_waits(two_models):
    (waited,) = runs(*two_models, "--policy", "fifo")
    (took,) = runs(*two_models[:-2], "--policy", "fifo")
    (slow,) = runs(*two_models, "--policy", "fifo", "--gpu-model", "a100")

    assert waited["queue_s"]["max"] == 3600
    assert (took["queue_s"]["max"], took["makespan_s"]) == (0, 10800)
    assert slow["makespan_s"] == 14400


def test_job_runs_longer_on_a_slower_model(two_models, tmp_path):
    speeds = tmp_path / "near.csv"
    speeds.write_text(SPEEDS.replace("long,h100,4", "long,h100,1.25"))

    (run,) = runs(*two_models[:-1], str(speeds), "--policy", "fifo")

    assert (run["queue_s"]["max"], run["makespan_s"]) == (0, 3600 + 9000)


BAD_TYPES = {
    "no number": (("--gpu-types", "h100"), "gpu_types: 'h100' is not a GPU model with its number of nodes"),
    "twice": (("--gpu-types", "a=1,a=1"), "gpu_types: a=1,a=1 has a model twice"),
    "other number of nodes": (("--gpu-types", "a=3"), "gpu_types: names 3 nodes, and --nodes is 2"),
    "unknown model": (("--gpu-types", "a=1,b=1", "--gpu-model", "c"), "gpu_model: c is not one of a, b"),
    "twice requested": (("--gpu-types", "a=1,b=1", "--gpu-model", "a|a"), "gpu_model: a is named twice"),
    "model alone": (("--gpu-model", "a"), "gpu_model: needs gpu_types"),
    "power": (("--gpu-types", "a=1,b=1", "--energy"), "energy: cannot be combined with gpu_types"),
    "placement": (("--gpu-types", "a=1,b=1", "--placement", "tune"), "placement: tune does not know GPU models"),
}


@pytest.mark.parametrize(("words", "error"), BAD_TYPES.values(), ids=BAD_TYPES)
def test_invalid_gpu_models_are_refused(file, words, error):
    with pytest.raises(CommandError, match=re.escape(error)):
        simulate(file, "--nodes", "2", *words)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("x,h100,0", "'0' is not a speed between 1e-09 and 1e+09"),
        ("x,h100,1e300", "'1e300' is not a speed between"),
        ("x,h100,1e-300", "'1e-300' is not a speed between"),
        ("x,h100,nan", "'nan' is not a speed between"),
        ("x,v100,1", "no node has 'v100'"),
        (",h100,1", "pattern is empty"),
        ("long,h100,2", "long has a speed on h100 already."),
    ],
)
def test_invalid_speed_of_a_replay_names_its_line(two_models, tmp_path, row, error):
    speeds = tmp_path / "bad.csv"
    speeds.write_text(f"{SPEEDS}{row}\n")

    with pytest.raises(CommandError, match=re.escape(f"gpu_speeds: {speeds} line 4: {error}")):
        simulate(*two_models[:-1], str(speeds))


def test_policy_that_weighs_service_needs_speeds(two_models):
    refused = re.escape("policy: las-aware needs the speeds of jobs on several GPU models: gpu_types and gpu_speeds")

    with pytest.raises(CommandError, match=refused):
        simulate(*two_models[:-2], "--policy", "las-aware")
    assert runs(*two_models, "--policy", "las-aware")[0]["jobs"] == 2
