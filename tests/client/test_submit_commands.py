"""The commands beside the submit form submit exactly the job of the form: each is parsed back to the same JobSpec."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from acme_client import script
from acme_client.cli import _split_client_options, _submit_body

from jobs.core import spec, submit_commands
from jobs.core.container_offers import ContainerOffers
from jobs.core.preemption_contract import CheckpointClause, ContractLimits
from jobs.core.request_fields import REQUEST_FIELDS
from jobs.core.spec import ClusterShape, JobSpec, NodeShape

SHAPE = ClusterShape(
    name="seren",
    nodes=(
        NodeShape(count=16, gpus=8, cpus=128, memory_mb=1024 * 1024, gpu_model="h100", nic_type="ib", shards_per_gpu=4),
        NodeShape(count=1, gpus=8, cpus=128, memory_mb=1024 * 1024, shards_per_gpu=100, share_gres="mps"),
        NodeShape(count=1, gpus=0, cpus=128, memory_mb=1024 * 1024, gpu_model="h100", mig_slices=(("1g.10gb", 56),)),
    ),
    runs_images=True,
    container_offers=ContainerOffers(default_image="a:1", image_patterns=("nvcr.io/*",), mounts=("data", "scratch")),
    gpu_share_kinds=("other",),
    contract_limits=ContractLimits(
        max_exempt=timedelta(hours=1), checkpoint_clause=CheckpointClause.OPTIONAL, min_per_day=1
    ),
)
HOSTILE = "echo $(rm -rf /) `id` 'a' \"b\" \\ !x; # é\n#SBATCH --mem=1G\nEOF\n\ttrain \\\n  --lr 3e-4 | tee $HOME/log"

REQUESTS = {
    "smallest": {"command": "train"},
    "defaults": {"command": "train", "nodes": 1, "priority": 0, "requeue_limit": 3, "kind": "other"},
    "hostile": {"command": HOSTILE, "name": "a b'; $(id)", "comment": "line 1\nline '2' \\", "gpus_per_node": 8},
    "resources": {
        "command": "#!/usr/bin/env python\nprint('x')\n",
        "nodes": 4,
        "gpus_per_node": 8,
        "cpus_per_node": 96,
        "memory_per_node": "512G",
        "wckey": "climate",
        "gpu_model": "h100",
        "time_limit": "2-12:00:00",
        "workdir": "/home/me/a run",
        "array": "0-99%10",
        "dependencies": "afterok:01k3v9q2m7t",
    },
    "several models": {"command": "train", "gpus_per_node": 8, "gpu_model": "h200 | h100"},
    "shards": {"command": "train", "gpu_shards": 3},
    "mps": {"command": "train", "gpu_mps": 50},
    "slice": {"command": "train", "mig_profile": "1g.10gb"},
    "part of a GPU": {"command": "train", "gpus_per_node": 0.25},
    "unlimited": {"command": "train", "time_limit": "UNLIMITED", "gpus_per_node": 0},
    "scheduling": {
        "command": "train",
        "priority": 5,
        "requeue_limit": 0,
        "begin_at": "2026-12-31T08:00:00+01:00",
        "hold": True,
        "image": "nvcr.io/nvidia/pytorch:24.01-py3",
        "environment": {"A": "x y", "B": "$HOME='1'"},
        "checkpoint_signal": "B:USR1@120",
    },
    "only acme": {
        "command": "train",
        "kind": "pretrain",
        "priority": -5,
        "deadline_at": "2026-12-31T18:00:00Z",
        "requeue_limit": 7,
        "preemptible": True,
        "preempt_exempt_time": "30:00",
        "preempt_at_checkpoint": True,
        "preemptions_per_day": 2,
        "nic_type": "ib",
        "gpu_model": "h100",
        "environment": {"LIST": "a,b,c"},
        "labels": {"run": "7=x", "by": "ada"},
        "mounts": "data, scratch",
        "checkpoint_dir": "/ckpt/run",
        "checkpoint_interval": "30:00",
    },
}
EVERY_REQUEST = pytest.mark.parametrize("request_name", REQUESTS)


def body_of(name):
    return {"team": "pretraining", "cluster": "seren", **submit_commands.without_defaults(REQUESTS[name])}


def parsed(body) -> JobSpec:
    fields = dict(body)
    assert (fields.pop("team"), fields.pop("cluster")) == ("pretraining", "seren")
    return spec.parse(fields, SHAPE)


def words_of(command):
    """The words that a shell passes to the program, which is replaced by a function that prints them."""
    program = command.split()[0]
    shell = f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, check=True, env={"ACME_TOKEN": "secret", "HOME": "/nowhere"}
    )
    assert done.stderr == b""
    return [program, *done.stdout.decode().split("\0")[:-1]]


@EVERY_REQUEST
def test_curl_sends_the_same_job(request_name):
    command = submit_commands.curl_command(body_of(request_name), "https://acme.example.org")

    words = words_of(command)
    assert "Authorization: Bearer secret" in words
    assert words[:4] == ["curl", "-X", "POST", "https://acme.example.org/api/v1/jobs/"]
    assert parsed(json.loads(words[words.index("-d") + 1])) == spec.parse(REQUESTS[request_name], SHAPE)


@EVERY_REQUEST
def test_acme_submits_the_same_job(request_name):
    words = words_of(submit_commands.acme_command(body_of(request_name)))

    assert words[:2] == ["acme", "submit"]
    body, ignored = _submit_body(_split_client_options(words[2:]))
    assert ignored == []
    assert parsed(body) == spec.parse(REQUESTS[request_name], SHAPE)


@EVERY_REQUEST
def test_sbatch_submits_the_same_job_except_for_what_it_lists(request_name):
    wanted = spec.parse(REQUESTS[request_name], SHAPE)
    command = submit_commands.sbatch_command(body_of(request_name), wanted)

    words = words_of(command.text)
    given = _split_client_options(words[1:])
    body, ignored = script.build_wrapped_body(
        given.options, given.wrapped, now=datetime(2026, 1, 1, tzinfo=UTC), environment={}
    )

    assert words[0] == "sbatch" and ignored == []
    found = parsed(body)
    lost = {name for name in JobSpec.__dataclass_fields__ if getattr(found, name) != getattr(wanted, name)}
    if "mig_profile" in lost:
        lost.remove("gpu_milli")  # follows from the profile
    # How many shards a part of a GPU is depends on the cluster
    fields = LABEL_FIELDS | {"part of a GPU": "gpu_milli", "MIG slice": "mig_profile"}
    assert lost == {fields[label] for label in command.left_out}


LABEL_FIELDS = {
    "kind": "kind",
    "GPU model": "gpu_model",
    "NIC type": "nic_type",
    "preemptible": "preemptible",
    "protection after a start": "preempt_exempt_time",
    "preemption only at checkpoints": "preempt_at_checkpoint",
    "preemptions per day": "preemptions_per_day",
    "deadline without cancel": "deadline_at",
    "priority below 0": "priority",
    "requeue limit": "requeue_limit",
    "environment with commas": "environment",
    "checkpoint directory": "checkpoint_dir",
    "checkpoint interval": "checkpoint_interval",
    "mounts": "mounts",
    "labels": "labels",
}


def test_every_setting_that_sbatch_lacks_is_tested():
    only_acme = spec.parse(REQUESTS["only acme"], SHAPE)

    assert set(submit_commands.sbatch_command(body_of("only acme"), only_acme).left_out) == set(LABEL_FIELDS)
    assert set(submit_commands.LOST_IN_SBATCH) == set(LABEL_FIELDS)


def test_every_field_of_the_form_has_an_option():
    without = {name for name, field in REQUEST_FIELDS.items() if field.input and not field.option}

    assert without == {"command"}


def test_lines_of_a_command_stay_short():
    body = {"team": "pretraining", "cluster": "seren", "command": "train", "comment": "x" * 20, "nodes": 2}

    assert max(map(len, submit_commands.acme_command(body).splitlines())) <= 80


def test_sbatch_gets_a_deadline_that_ends_the_job():
    asked = {"command": "train", "deadline_at": "2026-12-31T18:00:00Z", "deadline_action": "cancel"}

    command = submit_commands.sbatch_command(submit_commands.without_defaults(asked), spec.parse(asked, SHAPE))

    assert "--deadline=2026-12-31T18:00:00" in command.text
