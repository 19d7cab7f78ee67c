"""The report of a replay, the command that prints it, and the traces drawn from the Acme distributions."""

import io
import json

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from jobs.traces.files import write_trace
from scheduling.engine.engine import Engine
from scheduling.engine.room import NodeResources
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.strict import strict_turn
from scheduling.management.commands.simulate import _ProgressBar, policy_error_text
from scheduling.replay import acme_trace, report
from scheduling.replay.kernel import replay
from scheduling.replay.run import arrivals, replay_nodes, run_policy
from tests.scheduling.replay.replaying import COUNT, SMALL, trace

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


# a policy of one's own


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
        (Walkless, "policy walkless: it has no `turn`, which says how the line is walked"),
        (Broken, "policy broken: ZeroDivisionError: float division by zero, in `key` ("),
    ],
)
def test_what_is_wrong_with_a_policy_is_one_sentence_that_names_it(rules, says):
    engine = Engine(NodeResources(replay_nodes(SMALL, SMALL.nodes)), rules())
    with pytest.raises((NotImplementedError, ZeroDivisionError)) as wrong:
        replay(engine, arrivals(trace((0, 100, 8), (1, 10, 8)), engine, SMALL))

    said = policy_error_text(rules, wrong.value)
    assert said.startswith(says) and "\n" not in said
    assert rules is Walkless or "test_simulate.py:" in said


# the report


def summary(policy="fifo", setting=COUNT, **columns):
    done = run_policy(trace((0, 100, 8), (1, 10, 8), (2, 20, 4), (3, 1, 12), **columns), policy, setting)
    return report.summary(done, wall_s=0.5, peak_rss_mb=50) | {"engine": "interpreted"}


def test_a_golden_report():
    told = summary(kinds=["sft", "debug", "debug", ""])

    assert told["jobs"] == 4
    assert told["jct_s"] == pytest.approx({"mean": 111.25, "p50": 113.5, "p90": 118, "p99": 118})
    assert told["queue_s"] == pytest.approx({"mean": 78.5, "p50": 98.5, "p90": 111.6, "p99": 116.46})
    assert told["makespan_s"] == 121
    assert told["utilisation"] == pytest.approx((800 + 80 + 80 + 12) / (12 * 121))
    assert told["by_kind"]["debug"]["jobs"] == 2
    assert told["by_kind"]["unknown"]["jct_s"]["mean"] == 118
    assert list(told["by_size"]) == ["2-4", "5-8", "9-64"]


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_the_gpu_hours_sum_to_all_there_were(policy):
    told = summary(policy)

    assert sum(told["gpu_hours"].values()) == pytest.approx(12 * told["makespan_s"] / 3600)


def test_evenly_treated_users_have_a_jain_of_one():
    even = summary(users=["a"] * 4)["fairness"]
    uneven = summary(users=["a", "b", "c", "d"])["fairness"]

    assert even["jain"] == pytest.approx(1)
    assert uneven["jain"] < 0.8
    assert uneven["worst_user_slowdown"] == pytest.approx(11.8)


def test_the_table_has_a_column_a_policy():
    lines = report.table([summary("fifo"), summary("sjf")]).splitlines()

    assert lines[0].split() == ["policy", "fifo", "sjf"]
    assert len({len(line) for line in lines}) == 1


def test_a_load_above_one_is_known():
    assert report.offered_load(run_policy(trace((0, 100, 12), (10, 100, 12)), "fifo", COUNT)) == pytest.approx(20)


# the command


def test_the_json_has_the_keys_that_are_promised_and_nothing_else_on_stdout(file):
    told = runs(file, "--policy", "fifo,easy", "--nodes", "3", "--gpus-per-node", "4")

    assert [one["policy"] for one in told] == ["fifo", "easy"]
    assert list(told[0])[: len(KEYS)] == KEYS
    assert list(told[0]["jct_s"]) == ["mean", "p50", "p90", "p99"]


def test_the_table_goes_to_stdout_and_the_json_to_its_file(file, tmp_path):
    out, _ = simulate(file, "--nodes", "3", "--gpus-per-node", "4", "--json", str(tmp_path / "report.json"))

    assert out.startswith("policy")
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["jobs"] == 4


def test_bad_rows_and_jobs_set_aside_are_told(file):
    with open(file, "a") as out:
        out.write("9,,,,0,soon,1,,,,,,,\n")

    _, err = simulate(file, "--nodes", "1", "--gpus-per-node", "8", "--policy", "sjf")

    assert "1 rows are no jobs" in err
    assert "line 6: 'soon' cannot be read" in err
    assert "1 jobs set aside: wider than the pool" in err
    assert "the queue only grows" in err


def test_jobs_of_a_virtual_cluster_stay_in_its_nodes(file, tmp_path):
    pools = tmp_path / "vcs.csv"
    pools.write_text("vc,nodes\na,2\n")

    _, err = simulate(file, "--vcs", str(pools))

    assert "4 jobs set aside: of no pool" in err


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


def test_what_a_quota_keeps_for_pretraining_nobody_else_takes(teams, quota_file):
    size = "--nodes", "3", "--gpus-per-node", "4"

    free = runs(teams, "--policy", "acme", *size)[0]
    kept = runs(teams, "--policy", "acme", *size, "--quota", quota_file("b,pretrain,8"))[0]

    assert free["by_kind"]["pretrain"]["queue_s"]["mean"] == 99
    assert kept["by_kind"]["pretrain"]["queue_s"]["mean"] == 0
    assert kept["set_aside"]["never_ended"] == 1  # 8 GPUs are more than the 4 that are left to others for ever


@pytest.mark.parametrize("policy", ["fifo", "easy", "fair", "conservative"])
def test_a_team_holds_no_more_than_its_quota(file, quota_file, policy):
    words = "--policy", policy, "--nodes", "8", "--gpus-per-node", "4"

    told = runs(file, *words, "--quota", quota_file(",,12"))[0]

    assert told["queue_s"]["mean"] > 0 == runs(file, *words)[0]["queue_s"]["mean"]


def test_settings_are_for_the_policy_that_they_name(file):
    words = "--policy", "fifo,acme", "--nodes", "3", "--gpus-per-node", "4"

    told = runs(file, *words, "--policy-settings", '{"acme": {"order": "sjf", "aging_s": 1000}}')

    assert [one["jct_s"] == other["jct_s"] for one, other in zip(told, runs(file, *words), strict=True)] == [
        True,
        False,
    ]


def test_kinds_that_borrow_are_chosen(file):
    words = file, "--policy", "acme", "--nodes", "3", "--gpus-per-node", "4"

    assert runs(*words, "--best-effort", "")[0]["preemptions"] == 0
    assert runs(*words, "--best-effort", "sft")[0]["preemptions"] > 0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("z,,8", "line 2: nobody in the trace is of team 'z'"),
        ("a,naps,8", "line 2: naps is none of pretrain"),
        ("a,,many", "line 2: 'many' is not a number of GPUs"),
        ("a,,8\na,,9", "line 3: 'a' with all kinds is there twice"),
    ],
)
def test_a_quota_that_means_nothing_is_refused_with_its_line(teams, quota_file, row, sentence):
    with pytest.raises(CommandError, match=sentence):
        simulate(teams, "--nodes", "3", "--quota", quota_file(row))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{file}"], "say how many nodes"),
        (["{file}", "--nodes", "0"], "nodes: must be at least 1"),
        (["acme:kalos", "--jobs", "5", "--nodes", "0"], "nodes: must be at least 1"),
        (["{file}", "--nodes", "3", "--policy", "lottery"], "lottery is none of"),
        (["/nowhere", "--nodes", "3"], "cannot be read"),
        (["acme:mars"], "none of acme:seren, acme:kalos"),
        (["acme:kalos", "--jobs", "0"], "jobs: must be at least 1"),
        (["{file}", "--vcs", "{file}"], "must be a CSV with the columns vc,nodes"),
        (["{file}", "--vcs", "/nowhere"], "vcs: "),
        (["{file}", "--nodes", "3", "--checkpoint-s", "-1"], "checkpoint_s: -1.0 is not a number of seconds"),
        (
            ["{file}", "--nodes", "3", "--checkpoint-s", "60", "--faults", "checkpoint_s=90"],
            "checkpoint_s: 60 here and 90 in faults: say one of them",
        ),
        (["{file}", "--nodes", "3", "--best-effort", "naps"], "best_effort: naps is none of pretrain"),
        (["{file}", "--nodes", "3", "--quota", "/nowhere"], "quota: "),
        (["{file}", "--nodes", "3", "--quota", "{file}"], "must be a CSV with the columns team,kind,gpus"),
        (["{file}", "--nodes", "3", "--quota", "{file}", "--policy", "fifo,srtf"], "quota: srtf keeps no quotas"),
        (["{file}", "--nodes", "3", "--policy-settings", "fast"], "policy_settings: is no JSON"),
        (["{file}", "--nodes", "3", "--policy-settings", "[1]"], "policy_settings: must be an object for each policy"),
        (
            ["{file}", "--nodes", "3", "--policy-settings", '{"acme": {}}'],
            "acme is none of the policies that are replayed",
        ),
        (
            ["{file}", "--nodes", "3", "--policy", "acme", "--policy-settings", '{"acme": {"order": "luck"}}'],
            "policy_settings: acme: order: 'luck' is none of",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_a_sentence(file, words, sentence):
    with pytest.raises(CommandError, match=sentence):
        simulate(*[word.replace("{file}", file) for word in words])


def test_the_bar_is_silent_at_first_and_leaves_nothing_behind(capsys):
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
def test_what_is_drawn_lies_on_the_published_curves(name):
    site = acme_trace.PUBLISHED_CLUSTERS[name]

    gaps = acme_trace.distances(acme_trace.draw_trace(site, name, jobs=40_000, seed=1), site)

    assert {gap.of for gap in gaps} >= {"sizes of all", "pretrain, run times", "evaluation, share of GPU time"}
    for gap in gaps:
        # What a sample of that size may be off by (Kolmogorov and Smirnov); of GPU time a few wide jobs decide
        assert gap.points < (15 if "GPU time" in gap.of else 100 * 2.2 / gap.jobs**0.5 + 1), str(gap)


def test_the_draw_repeats_and_differs_by_seed():
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


def test_a_drawn_trace_is_replayed_by_its_name():
    told = runs("acme:kalos", "--jobs", "300", "--policy", "fifo-skip")[0]

    assert told["jobs"] + sum(told["set_aside"].values()) == 300
