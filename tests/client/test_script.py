"""sbatch's options and directives become the fields of a job."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from acme_client import script
from acme_client.explanation import deadline_lines
from acme_client.script import BadOption

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_CANCELS = {"deadline_at": "2026-01-01T18:00:00+00:00", "deadline_action": "cancel"}


def fields(options=(), text="#!/bin/sh\nsrun train\n", arguments=(), environment=None):
    body, _ = script.build_submit_body(list(options), text, arguments, now=NOW, environment=environment or {})
    body.pop("command")
    return body


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-N 2", {"nodes": 2}),
        ("-N2", {"nodes": 2}),
        ("--nodes=2-2", {"nodes": 2}),
        ("-J pretrain", {"name": "pretrain"}),
        ("-A vision", {"team": "vision"}),
        ("-M seren", {"cluster": "seren"}),
        ("--gpus-per-node=8", {"gpus_per_node": 8}),
        ("--gpus-per-node=h100:8", {"gpus_per_node": 8, "gpu_model": "h100"}),
        ("--gres=gpu:8", {"gpus_per_node": 8}),
        ("--gres=gpu:a100:4", {"gpus_per_node": 4, "gpu_model": "a100"}),
        ("--gres gpu", {"gpus_per_node": 1}),
        ("--gpus 0.5", {"gpus_per_node": 0.5}),
        ("-G a100:.25 -N 2", {"gpus_per_node": 0.25, "gpu_model": "a100", "nodes": 2}),
        ("--gpus-per-node=0.5", {"gpus_per_node": 0.5}),
        ("--gres=shard:2", {"gpu_shards": 2}),
        ("--gres=shard:a100:4", {"gpu_shards": 4, "gpu_model": "a100"}),
        ("--gres shard", {"gpu_shards": 1}),
        ("--gres=mps:50", {"gpu_mps": 50}),
        ("--gres nvidia.com/mig-1g.10gb", {"mig_profile": "1g.10gb"}),
        ("--gres=nvidia.com/mig-1g.10gb:1", {"mig_profile": "1g.10gb"}),
        ("-N 2 -G 16", {"nodes": 2, "gpus_per_node": 8}),
        ("-G 16 -N 2", {"nodes": 2, "gpus_per_node": 8}),
        ("-c 12 --ntasks-per-node 8", {"cpus_per_node": 96}),
        ("--mem=512G", {"memory_per_node": "512G"}),
        ("-t 2-00:00:00", {"time_limit": "2-00:00:00"}),
        ("-t UNLIMITED", {}),
        ("-b now+2hours", {"begin_at": "2026-01-01T02:00:00+00:00"}),
        ("--deadline now+6hours", {"deadline_at": "2026-01-01T06:00:00+00:00"}),
        ("--deadline=18:00:30", {"deadline_at": "2026-01-01T18:00:30+00:00"}),
        ("--deadline=6pm", {"deadline_at": "2026-01-01T18:00:00+00:00"}),
        ("--deadline=midnight", {"deadline_at": "2026-01-02T00:00:00+00:00"}),
        ("--deadline=01/31-18:00", {"deadline_at": "2026-01-31T18:00:00+00:00"}),
        ("--deadline=12/31/26", {"deadline_at": "2026-12-31T00:00:00+00:00"}),
        ("--deadline=2026-01-31", {"deadline_at": "2026-01-31T00:00:00+00:00"}),
        ("--deadline 18:00 --deadline-action cancel", DEADLINE_CANCELS),
        ("-b 2026-01-01T08:00+08:00", {"begin_at": "2026-01-01T00:00:00+00:00"}),
        ("-d afterok:1:2,afterany:3", {"dependencies": "afterok:1:2,afterany:3"}),
        ("-a 0-99%10", {"array": "0-99%10"}),
        ("-H --no-requeue --comment 'a b'", {"hold": True, "requeue_limit": 0, "comment": "a b"}),
        ("--export=NONE,A=1,B", {"environment": {"A": "1", "B": "from here"}}),
        ("--env A=1,2 --env B=x=y", {"environment": {"A": "1,2", "B": "x=y"}}),
        ("--requeue-limit 7", {"requeue_limit": 7}),
        ("--wckey climate", {"wckey": "climate"}),
        ("--label run=7 --label by=ada", {"labels": {"run": "7", "by": "ada"}}),
        ("--kind pretrain --preemptible", {"kind": "pretrain", "preemptible": True}),
        ("--priority -5", {"priority": -5}),
        ("--mount data --mount=scratch,home", {"mounts": ["data", "scratch", "home"]}),
        ("--image nvcr.io/nvidia/pytorch:24.01-py3", {"image": "nvcr.io/nvidia/pytorch:24.01-py3"}),
        # As in sbatch, # begins a comment unless it is escaped
        (r"--container-image=nvcr.io\#nvidia/pytorch:24.01-py3", {"image": "nvcr.io#nvidia/pytorch:24.01-py3"}),
    ],
)
def test_option_and_directive_have_the_same_effect(words, expected):
    import shlex

    environment = {"B": "from here"}

    assert fields(shlex.split(words), environment=environment) == expected
    assert fields(text=f"#!/bin/bash\n#SBATCH {words}\nsrun x\n", environment=environment) == expected
    assert fields(text=f"#ACME {words}  # why\nsrun x\n", environment=environment) == expected


def test_the_command_line_wins_over_the_script():
    assert fields(["-N", "4"], "#SBATCH -N 2 -J a\n") == {"nodes": 4, "name": "a"}


def test_directives_end_at_the_first_command():
    text = "#!/bin/sh\n#SBATCH -N 2\n\n# a comment\n#SBATCH -J a\nsrun x\n#SBATCH -N 9\n"

    assert fields(text=text) == {"nodes": 2, "name": "a"}


def test_options_without_effect_are_reported_and_ignored():
    body, ignored = script.build_submit_body([], "#SBATCH -p gpu --output=%j.log\n", now=NOW, environment={})

    assert list(body) == ["command"]
    assert ignored == ["--partition", "--output"]


def test_complete_environment_is_never_sent():
    body, ignored = script.build_submit_body(["--export=ALL"], "x", now=NOW, environment={"AWS_SECRET": "x"})

    assert "environment" not in body
    assert ignored == ["--export=ALL"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-N", "two"], "--nodes: 'two' is not a whole number"),
        (["-N", "1-4"], "--nodes 1-4: Acme does not support ranges of nodes"),
        (["-N"], "--nodes needs a value"),
        (["--color=red"], "--color is not an option of Acme or sbatch"),
        (["-Z"], "-Z is not an option of Acme or sbatch"),
        (["--gres=fpga:1"], "--gres fpga:1: Acme supports only gpu, shard, mps or nvidia.com/mig-PROFILE"),
        (
            ["--gres=nvidia.com/mig-1g.10gb:2"],
            "--gres nvidia.com/mig-1g.10gb:2: a job can request one MIG slice",
        ),
        (
            ["--gres=nvidia.com/mig-:1"],
            "--gres nvidia.com/mig-:1: the profile is missing, such as nvidia.com/mig-1g.10gb",
        ),
        (["-N", "3", "-G", "8"], "--gpus 8 cannot be distributed evenly over 3 nodes"),
        (["--gpus=1.5"], "--gpus: '1.5' is not a whole number"),
        (["--gres=shard:x:y"], "--gres: 'y' is not a whole number"),
        (["-b", "soon"], "--begin: 'soon' is not a time. Write now+2hours, 18:00 or 2026-01-31T08:00"),
        (["--deadline", "25:00"], "--deadline: '25:00' is not a time. Write now+2hours, 18:00 or 2026-01-31T08:00"),
        (["--deadline", "18"], "--deadline: '18' is not a time. Write now+2hours, 18:00 or 2026-01-31T08:00"),
        (["--deadline", "13pm"], "--deadline: '13pm' is not a time. Write now+2hours, 18:00 or 2026-01-31T08:00"),
        (["--deadline", "02/31"], "--deadline: '02/31' is not a time. Write now+2hours, 18:00 or 2026-01-31T08:00"),
        (["--export=NOPE"], "--export: NOPE is not set in this environment"),
        (["--label", "x"], "--label x: write NAME=VALUE"),
        (["--env", "x"], "--env x: write NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_one_sentence(words, sentence):
    with pytest.raises(BadOption) as failed:
        fields(words)

    assert str(failed.value) == sentence


@pytest.mark.parametrize("words", [["--color", "run.sh"], ["-Z", "run.sh"]])
def test_unknown_option_is_named_and_takes_no_value(words):
    with pytest.raises(BadOption, match=f"^{words[0]}"):
        script.split_options(words)


def test_unbalanced_quotation_mark_in_a_directive_is_refused():
    with pytest.raises(BadOption, match="unbalanced quotation mark"):
        fields(text="#SBATCH --comment 'x\n")


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        (["run.sh"], [], ["run.sh"]),
        (["-N", "2", "run.sh", "-x"], ["-N", "2"], ["run.sh", "-x"]),
        (["-N2", "run.sh"], ["-N2"], ["run.sh"]),
        (["--hold", "run.sh"], ["--hold"], ["run.sh"]),
        (["-H", "run.sh"], ["-H"], ["run.sh"]),
        (["--nodes=2", "-", "a"], ["--nodes=2"], ["-", "a"]),
        (["--", "run.sh"], [], ["run.sh"]),
    ],
)
def test_options_end_where_the_script_begins(words, options, rest):
    assert script.split_options(words) == (options, rest)


def test_script_arguments_are_quoted_for_the_shell():
    assert script.insert_script_arguments("#!/bin/sh\nrun\n", ["a b", "$x"]) == "#!/bin/sh\nset -- 'a b' '$x'\nrun\n"
    assert script.insert_script_arguments("run", ["a"]) == "set -- a\nrun"
    with pytest.raises(BadOption, match="Only shell scripts"):
        script.insert_script_arguments("#!/usr/bin/env python3\n", ["a"])


def test_answer_says_how_likely_a_deadline_is():
    answer = {"deadline_at": "2026-01-01T06:00:00Z", "why": "predicted run 3 h ± 40 min.", "warning": "It is unlikely."}

    known = list(deadline_lines(answer | {"probability": 0.42}, NOW))
    unknown = list(deadline_lines(answer | {"probability": None, "warning": ""}, NOW))

    assert known == [
        "Deadline 2026-01-01 06:00:00 UTC (in 6 h 0 min): 42% likely, predicted run 3 h ± 40 min.",
        "Warning: It is unlikely.",
    ]
    assert unknown == ["Deadline 2026-01-01 06:00:00 UTC (in 6 h 0 min): predicted run 3 h ± 40 min."]
