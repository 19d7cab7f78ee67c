"""Validation of job requests and its error messages."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidField
from jobs.core import spec
from jobs.core.container_offers import NO_OFFERS, ContainerOffers, container_offers
from jobs.core.lifecycle import JobKind
from jobs.core.request_fields import REQUEST_FIELDS
from jobs.core.spec import ClusterShape, DependencySpec, NodeShape

SEREN = ClusterShape(
    name="seren",
    nodes=(
        NodeShape(count=4, gpus=8, cpus=128, memory_mb=1024 * 1024, gpu_model="a100", nic_type="hdr200"),
        NodeShape(count=2, gpus=0, cpus=64, memory_mb=512 * 1024),
    ),
)


def parse(**fields):
    return spec.parse({"command": "python train.py", **fields}, SEREN)


def test_command_is_the_only_required_field():
    job = parse()

    assert (job.name, job.kind, job.nodes, job.gpus_per_node, job.cpus_per_node) == ("python", JobKind.OTHER, 1, 0, 1)


def test_every_field_is_copied_to_the_spec():
    job = parse(
        name="llm-7b",
        kind="pretrain",
        workdir="/home/ada",
        environment={"WORLD": "1"},
        nodes=4,
        gpus_per_node=8,
        cpus_per_node=64,
        memory_per_node="512G",
        gpu_model="a100",
        nic_type="hdr200",
        time_limit="2-00:00:00",
        priority=10,
        preemptible=True,
        requeue_limit=5,
        begin_at="2026-12-01T08:00:00+01:00",
        hold=True,
        checkpoint_dir="/ckpt",
        checkpoint_interval=1800,
        labels={"run": "a"},
        comment="first\nsecond",
    )

    assert job.memory_per_node_mb == 512 * 1024
    assert job.time_limit == timedelta(days=2)
    assert job.begin_at == datetime(2026, 12, 1, 7, tzinfo=UTC)
    assert job.checkpoint_interval == timedelta(minutes=30)
    assert job.hold and job.preemptible


KALOS = replace(
    SEREN,
    runs_images=True,
    container_offers=ContainerOffers(default_image="a:1", image_patterns=("*",), mounts=("data", "scratch")),
)


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/pytorch:24.01-py3", "/images/torch.sqsh", "x" * 500, ""])
def test_image_is_accepted_by_a_cluster_that_runs_images(image):
    assert spec.parse({"command": "x", "image": image}, KALOS).image == image


def test_mounts_are_a_list_or_text_and_each_counts_once():
    for mounts in (["data", "scratch", "data"], "data, scratch,data,"):
        assert spec.parse({"command": "x", "mounts": mounts}, KALOS).mounts == ("data", "scratch")


@pytest.mark.parametrize(
    ("fields", "offers", "field", "why"),
    [
        ({"image": "b:1"}, {"default_image": "a:1"}, "image", "b:1 is not allowed on kalos; it offers a:1"),
        ({"image": "b:1"}, {}, "image", "b:1 is not allowed on kalos; its operators have not allowed any"),
        ({}, {"image_patterns": ("a/*",)}, "image", "is required on kalos; it offers a/*"),
        ({"mounts": ["x"]}, {"default_image": "a", "mounts": ("d", "c")}, "mounts", "has no mount x; it offers c, d"),
        ({"mounts": ["x"]}, {"default_image": "a"}, "mounts", "kalos has no mount x; it offers no mounts"),
    ],
    ids=["image", "no images", "no image", "mount", "no mounts"],
)
def test_what_the_cluster_does_not_offer_is_refused(fields, offers, field, why):
    kalos = replace(SEREN, name="kalos", runs_images=True, container_offers=ContainerOffers(**offers))

    with pytest.raises(InvalidField) as error:
        spec.parse({"command": "x", **fields}, kalos)

    assert error.value.field == field
    assert why in error.value.why


@pytest.mark.parametrize(
    "template",
    [{"image": 7}, {"allowed_images": "*"}, {"allowed_images": [7]}, {"volumes": []}, {"volumes": {"a": None}}],
    ids=["image", "text", "number", "list", "null"],
)
def test_malformed_template_offers_nothing(template):
    assert container_offers(template) == NO_OFFERS


@pytest.mark.parametrize(
    ("pattern", "image", "is_offered"),
    [
        ("registry.example/*", "registry.example/train:1", True),
        ("registry.example/*", "registry.example.evil/train:1", False),
        ("registry.example*", "registry.example.evil/train:1", False),
        ("registry.example*", "registry.example/train:1", False),
        ("registry.example:*", "registry.example:5000/train", False),
        ("*.example/train", "evil.example/train", False),
        ("python:3.1?", "python:3.12", False),
        ("python:3.12", "python:3.12", True),
        ("*", "registry.example/train:1", True),
    ],
)
def test_pattern_of_images_names_its_registry(pattern, image, is_offered):
    assert ContainerOffers(image_patterns=(pattern,)).has_image(image) == is_offered


def test_volumes_that_are_always_mounted_are_not_offered_by_name():
    volumes = {"home": {"claim": "home", "mount_path": "/home", "always": True}, "data": {"claim": "data"}}

    assert container_offers({"volumes": volumes}).mounts == ("data",)


def test_job_gets_its_share_of_cpus_by_default():
    assert parse(gpus_per_node=4).cpus_per_node == 64


def test_default_name_is_that_of_the_program():
    assert parse(command="HF_TOKEN=hf_abc WORLD=2 python train.py").name == "python"
    assert parse(command="#!/bin/bash\n#SBATCH -N 1\n\n/opt/bin/train.sh --x").name == "train.sh"


def test_job_with_several_models_needs_all_its_nodes_of_one_of_them():
    makes = [NodeShape(count=4, gpus=8, cpus=128, memory_mb=1024 * 1024, gpu_model=model) for model in ("a100", "h100")]
    shape = ClusterShape(name="seren", nodes=tuple(makes))
    request = {"command": "train", "gpus_per_node": 8, "nodes": 5}

    assert spec.parse(request, shape).nodes == 5
    with pytest.raises(InvalidField, match="nodes: 5 is more than the 4 matching nodes of seren"):
        spec.parse({**request, "gpu_model": "h100|a100"}, shape)


def test_null_means_the_same_as_a_missing_field():
    assert parse(time_limit=None, gpu_model=None).time_limit is None


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"nodes": -1}, "nodes", "-1 is not between 1 and 100000"),
        ({"gpus_per_node": 12}, "gpus_per_node", "12 is more than the 8 GPUs of a node; request 2 nodes"),
        ({"nodes": 2, "gpus_per_node": 12}, "gpus_per_node", "more than the 8 GPUs of the largest node of seren"),
        ({"nodes": 7}, "nodes", "7 is more than the 6 matching nodes of seren"),
        ({"nodes": 5, "gpus_per_node": 1}, "nodes", "5 is more than the 4 matching nodes"),
        ({"gpu_model": "h100"}, "gpu_model", "no node of seren has h100 GPUs"),
        ({"gpu_model": "h100|b200"}, "gpu_model", "no node of seren has h100 or b200 GPUs"),
        ({"gpu_model": "h100,a100"}, "gpu_model", "'h100,a100' is not a valid GPU model; separate models with |"),
        ({"gpu_model": "h100|a100", "nodes": 5}, "nodes", "5 is more than the 4 matching nodes"),
        ({"nic_type": "roce"}, "nic_type", "no node of seren has roce NICs"),
        ({"cpus_per_node": 200}, "cpus_per_node", "no matching node of seren has 200 CPUs"),
        ({"memory_per_node": "2T"}, "memory_per_node", "no matching node of seren has 2T of memory"),
        ({"command": "x" * 200_000}, "command", "has 200000 bytes, more than the 65536 allowed"),
        ({"command": "  "}, "command", "is empty"),
        ({"command": "a\x00b"}, "command", "contains a NUL byte"),
        ({"command": "a\ud800"}, "command", "lone surrogate"),
        ({"command": 7}, "command", "is a number, not text"),
        ({"name": "a\nb"}, "name", "control character"),
        ({"name": "a\u202eb"}, "name", "control character"),
        ({"name": "a\x9bb"}, "name", "control character"),
        ({"image": "a b"}, "image", "contains a space"),
        ({"image": "a\u00a0b"}, "image", "contains a space"),
        ({"image": "a\nb"}, "image", "contains a control character"),
        ({"image": "x" * 501}, "image", "has 501 bytes, more than the 500 allowed"),
        ({"image": "nvcr.io#nvidia/pytorch:24.01-py3"}, "image", "seren cannot run container images"),
        ({"mounts": "data"}, "mounts", "seren runs jobs without containers"),
        ({"mounts": 7}, "mounts", "is a number, not a list of names"),
        ({"mounts": ["a", 7]}, "mounts", "7 is not a valid name of a mount"),
        ({"mounts": "../etc"}, "mounts", "'../etc' is not a valid name of a mount"),
        ({"mounts": [f"m{number}" for number in range(21)]}, "mounts", "has 21 names, more than the 20 allowed"),
        ({"kind": "nonsense"}, "kind", "'nonsense' is not one of pretrain"),
        ({"nodes": True}, "nodes", "is true or false, not a whole number"),
        ({"nodes": 1.5}, "nodes", "is a number, not a whole number"),
        ({"nodes": 10**400}, "nodes", "a number of more than 20 digits"),
        ({"time_limit": "soon"}, "time_limit", "is not a duration"),
        ({"time_limit": 0}, "time_limit", "is zero"),
        ({"time_limit": -1}, "time_limit", "not between 0 and 10 years"),
        ({"time_limit": float("nan")}, "time_limit", "not seconds"),
        ({"begin_at": "2026-12-01T08:00:00"}, "begin_at", "has no time zone"),
        ({"begin_at": "0001-01-01T00:00:00+14:00"}, "begin_at", "out of range"),
        ({"workdir": "home"}, "workdir", "not an absolute path"),
        ({"checkpoint_dir": "/a/../b"}, "checkpoint_dir", "not an absolute path"),
        ({"environment": {"A B": "x"}}, "environment", "'A B' is not a valid variable name"),
        ({"environment": {"A": 1}}, "environment.A", "is a number, not text"),
        ({"environment": ["A=1"]}, "environment", "is a list"),
        ({"labels": {str(i): "" for i in range(65)}}, "labels", "has 65 entries"),
        ({"array": "0-9999"}, "array", "has 10000 tasks, more than the 5000 allowed"),
        ({"dependencies": "afterok"}, "dependencies", "contains no job id"),
        ({"dependencies": "after:1"}, "dependencies", "'after' is not one of afterok"),
        ({"dependencies": "afterok:1:1"}, "dependencies", "names the same job twice"),
        ({"color": "red"}, "color", "is not a field of a job"),
    ],
)
def test_invalid_request_is_rejected_with_field_and_reason(fields, field, why):
    with pytest.raises(InvalidField) as refused:
        parse(**fields)

    assert refused.value.field == field
    assert why in refused.value.why


def test_missing_command_is_rejected():
    with pytest.raises(InvalidField, match="command: is missing"):
        spec.parse({"name": "x"}, SEREN)


def test_cluster_without_nodes_is_rejected():
    with pytest.raises(InvalidField, match="cluster: kalos has reported no nodes yet"):
        spec.parse({"command": "x"}, ClusterShape(name="kalos"))


def test_dependencies_are_parsed_as_by_sbatch():
    job = parse(dependencies="afterok:01a:01b,afterany:01c")

    assert job.dependencies == (
        DependencySpec(after="afterok", on="01a"),
        DependencySpec(after="afterok", on="01b"),
        DependencySpec(after="afterany", on="01c"),
    )


@pytest.mark.parametrize(
    ("waits_for", "why"),
    [
        ({"@a": ["@b"], "@b": ["@a"]}, "a → b → a is a cycle|b → a → b is a cycle"),
        ({"@a": ["@a"]}, "a → a is a cycle"),
    ],
)
def test_dependency_cycle_is_rejected(waits_for, why):
    with pytest.raises(InvalidField, match=why):
        spec.refuse_dependency_cycle(waits_for)


def test_chain_of_dependencies_is_no_cycle():
    spec.refuse_dependency_cycle({"@a": ["@b"], "@b": ["@c", "01a"], "@c": []})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(REQUEST_FIELDS)), json_values, max_size=5))
def test_any_request_gives_a_job_or_one_error_sentence(fields):
    try:
        job = spec.parse({"command": "x", **fields}, SEREN)
    except InvalidField as refused:
        assert "\n" not in str(refused)
        assert len(str(refused)) < 400
    else:
        assert job.nodes >= 1


def test_all_invalid_fields_are_reported_at_once():
    with pytest.raises(InvalidField) as found:
        spec.parse({"nodes": 0, "gpus_per_node": "x", "colour": "red", "labels": []}, SEREN)

    assert list(found.value.by_field) == ["command", "nodes", "gpus_per_node", "colour", "labels"]
    assert str(found.value) == "command: is missing"


def test_the_number_of_reported_fields_is_bounded():
    with pytest.raises(InvalidField) as found:
        parse(**{f"field{n}": n for n in range(10_000)})

    assert len(found.value.by_field) == 20


SHARING = ClusterShape(
    name="seren",
    nodes=(
        NodeShape(count=2, gpus=8, cpus=128, memory_mb=1024 * 1024, shards_per_gpu=8),
        NodeShape(count=2, gpus=8, cpus=128, memory_mb=1024 * 1024),
    ),
    gpu_share_kinds=("evaluation", "debug"),
)


@pytest.mark.parametrize(
    ("request_fields", "milli"),
    [
        ({"gpus_per_node": 0.5}, 500),
        ({"gpus_per_node": 0.125}, 125),
        ({"gpu_shards": 2}, 250),
        ({"gpu_shards": 7}, 875),
    ],
)
def test_part_of_a_gpu_is_read(request_fields, milli):
    job = spec.parse({"command": "x", "kind": "evaluation", **request_fields}, SHARING)

    assert (job.gpus_per_node, job.gpu_milli, job.cpus_per_node) == (0, milli, milli * 16 // 1000)


@pytest.mark.parametrize(
    ("request_fields", "field", "sentence"),
    [
        (
            {"kind": "sft"},
            "gpus_per_node",
            "only jobs of kind evaluation or debug may request a part of a GPU on seren",
        ),
        ({"nodes": 2}, "nodes", "a part of a GPU is on one node; request whole GPUs for several nodes"),
        (
            {"preemptible": True},
            "preemptible",
            "a job with a part of a GPU cannot be preempted, because others share the GPU",
        ),
        (
            {"gpus_per_node": 0.3},
            "gpus_per_node",
            "0.3 is not a whole number of shards; a GPU of seren has 8, so request 0.25 or 0.375",
        ),
        (
            {"gpus_per_node": 0.95},
            "gpus_per_node",
            "0.95 is not a whole number of shards; a GPU of seren has 8, so request 0.875",
        ),
        ({"gpus_per_node": 1.5}, "gpus_per_node", "1.5 is neither a whole number nor below 1"),
        ({"gpus_per_node": 0.1234}, "gpus_per_node", "0.1234 has more than three decimals"),
        ({"gpu_shards": 2}, "gpu_shards", "is a part of one GPU; leave out gpus_per_node"),
        (
            {"gpu_shards": 8, "gpus_per_node": 0},
            "gpu_shards",
            "8 is a whole GPU of seren; request gpus_per_node 1",
        ),
    ],
)
def test_part_of_a_gpu_is_refused_with_one_sentence(request_fields, field, sentence):
    request = {"command": "x", "kind": "debug", "gpus_per_node": 0.5, **request_fields}

    with pytest.raises(InvalidField) as refused:
        spec.parse(request, SHARING)

    assert (refused.value.field, refused.value.why) == (field, sentence)


@pytest.mark.parametrize("request_fields", [{"gpus_per_node": 0.5}, {"gpu_shards": 2}])
def test_no_job_may_share_a_gpu_by_default(request_fields):
    with pytest.raises(InvalidField, match="no job may request a part of a GPU on seren"):
        spec.parse({"command": "x", "kind": "debug", **request_fields}, SEREN)


def test_cluster_without_shards_says_so():
    shape = replace(SEREN, gpu_share_kinds=("debug",))

    with pytest.raises(InvalidField, match="no matching node of seren has GPUs with shards; request whole GPUs"):
        spec.parse({"command": "x", "kind": "debug", "gpu_shards": 2}, shape)


@pytest.mark.parametrize("gpus", [2, 2.0])
def test_whole_number_of_gpus_is_read_as_before(gpus):
    job = spec.parse({"command": "x", "gpus_per_node": gpus}, SEREN)

    assert (repr(job.gpus_per_node), job.gpu_milli) == ("2", 0)


def test_mps_units_are_read_beside_shards():
    mps = NodeShape(count=1, gpus=8, cpus=128, memory_mb=1024 * 1024, shards_per_gpu=100, share_gres="mps")
    shape = replace(SHARING, nodes=(*SHARING.nodes, mps))

    units, shards = (
        spec.parse({"command": "x", "kind": "evaluation", **request}, shape)
        for request in ({"gpu_mps": 5}, {"gpu_shards": 5})
    )

    assert (units.gpu_milli, shards.gpu_milli) == (50, 625)
    assert (units.share_gres, shards.share_gres) == ("mps", "shard")
    for request, why in (
        ({"gpu_mps": 100}, "100 is a whole GPU of seren; request gpus_per_node 1"),
        ({"gpu_mps": 150}, "150 is more than the 100 parts of a GPU of seren"),
        ({"gpu_mps": 5, "gpu_shards": 1}, "is a part of one GPU; leave out gpu_shards"),
    ):
        with pytest.raises(InvalidField, match=why):
            spec.parse({"command": "x", "kind": "evaluation", **request}, shape)
    with pytest.raises(InvalidField, match="no node of seren has gres/mps"):
        spec.parse({"command": "x", "kind": "evaluation", "gpu_mps": 5}, SHARING)


def test_named_resource_must_be_on_a_node_with_the_rest():
    """A share of MPS is isolated, so shards are no substitute, also where the number of thousandths fits."""
    mps = NodeShape(count=1, gpus=8, cpus=4, memory_mb=1024, shards_per_gpu=100, share_gres="mps")
    shape = replace(SHARING, nodes=(*SHARING.nodes, mps))
    request = {"command": "x", "kind": "evaluation", "cpus_per_node": 8}

    with pytest.raises(InvalidField, match="no matching node of seren has 8 CPUs"):
        spec.parse({**request, "gpu_mps": 50}, shape)
    assert spec.parse({**request, "gpus_per_node": 0.5}, shape).share_gres == ""
    with pytest.raises(InvalidField, match=r"0\.005 is not a whole number of units of MPS; a GPU of seren has 100"):
        spec.parse({**request, "gpus_per_node": 0.005}, replace(shape, nodes=(mps,)))


DIVIDED = ClusterShape(
    name="kalos",
    nodes=(
        NodeShape(count=2, gpus=8, cpus=128, memory_mb=1024 * 1024),
        NodeShape(count=1, gpus=6, cpus=128, memory_mb=1024 * 1024, mig_slices=(("1g.10gb", 7), ("3g.40gb", 2))),
    ),
    gpu_share_kinds=("evaluation",),
)


@pytest.mark.parametrize("written", ["1g.10gb", "nvidia.com/mig-1g.10gb"])
def test_mig_slice_is_read(written):
    job = spec.parse({"command": "x", "kind": "evaluation", "mig_profile": written}, DIVIDED)

    assert (job.mig_profile, job.gpus_per_node, job.gpu_milli) == ("1g.10gb", 0, 142)
    assert job.cpus_per_node == 2  # a part of the 16 CPUs of a GPU


@pytest.mark.parametrize(
    ("request_fields", "field", "sentence"),
    [
        (
            {"mig_profile": "nvidia.com/mig-"},
            "mig_profile",
            "'nvidia.com/mig-' is not a MIG profile such as 1g.10gb",
        ),
        ({"mig_profile": "tiny"}, "mig_profile", "'tiny' is not a MIG profile such as 1g.10gb"),
        (
            {"mig_profile": "1g.10gb", "gpus_per_node": 1},
            "mig_profile",
            "is a part of one GPU; leave out gpus_per_node",
        ),
        ({"mig_profile": "1g.10gb", "gpu_shards": 1}, "gpu_shards", "is a part of one GPU; leave out mig_profile"),
        (
            {"mig_profile": "2g.20gb"},
            "mig_profile",
            "no matching node of kalos has MIG slices 2g.20gb; it has 1g.10gb, 3g.40gb",
        ),
        (
            {"mig_profile": "1g.10gb", "kind": "sft"},
            "mig_profile",
            "only jobs of kind evaluation may request a part of a GPU on kalos",
        ),
        (
            {"mig_profile": "1g.10gb", "nodes": 2},
            "nodes",
            "a part of a GPU is on one node; request whole GPUs for several nodes",
        ),
        (
            {"mig_profile": "1g.10gb", "preemptible": True},
            "preemptible",
            "a job with a part of a GPU cannot be preempted, because others share the GPU",
        ),
        (
            {"gpus_per_node": 0.142},
            "gpus_per_node",
            "no matching node of kalos has GPUs with shards; request whole GPUs",
        ),
    ],
)
def test_mig_slice_that_the_cluster_does_not_have_is_refused(request_fields, field, sentence):
    with pytest.raises(InvalidField) as found:
        spec.parse({"command": "x", "kind": "evaluation", **request_fields}, DIVIDED)

    assert (found.value.field, found.value.why) == (field, sentence)


def test_whole_gpus_of_a_node_with_slices_are_not_its_slices():
    with pytest.raises(InvalidField, match="9 is more than the 8 GPUs"):
        spec.parse({"command": "x", "gpus_per_node": 9}, DIVIDED)
