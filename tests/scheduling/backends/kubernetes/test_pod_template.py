"""The pod template of a cluster is read strictly: each mistake gets one sentence that names the setting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.cluster_kinds import PodLimits, PodPrivilege
from jobs.core.container_offers import container_offers
from scheduling.backends.kubernetes.pod_template import READERS, PodTemplate, mounted_volumes, parse_pod_template

FULL = {
    "namespace": "jobs",
    "namespaces": {"jobs": "ours", "research": "theirs", "infra": "observed"},
    "image": "registry.example/train:1",
    "allowed_images": ["registry.example/train/*"],
    "volumes": {
        "datasets": {"claim": "datasets", "mount_path": "/data", "read_only": True},
        "home": {"nfs": {"server": "nfs.example", "path": "/home"}, "mount_path": "/home", "always": True},
        "scratch": {"host_path": "/mnt/nvme", "mount_path": "/scratch", "sub_path": "acme"},
        "tmp": {"empty_dir": "200Gi", "mount_path": "/big-tmp"},
        "any-size": {"empty_dir": True, "mount_path": "/any"},
        "settings": {"config_map": "nccl", "mount_path": "/etc/nccl"},
        "tokens": {"secret": "hf", "mount_path": "/secrets"},
    },
    "service_account": "trainer",
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}],
    "priority_class": "training",
    "gpu_resource": {"*": "nvidia.com/gpu", "*mi300x*": "amd.com/gpu"},
    "extra_resources": {"rdma/hca": 1},
    "shared_memory": "64Gi",
    "grace_s": 60,
    "labels": {"kueue.x-k8s.io/queue-name": "training"},
    "annotations": {"example.com/contact": "ops"},
    "image_pull_secrets": ["registry"],
    "run_as_user": 1000,
    "run_as_group": 1000,
    "host_network": True,
}
ALL = PodLimits(host_paths=("/mnt",), privileges=frozenset(PodPrivilege))


def test_empty_setting_is_the_default_template():
    assert parse_pod_template({}, PodLimits()) == PodTemplate()


def test_all_settings_are_read():
    template = parse_pod_template(FULL, ALL)

    assert template.volumes["home"].source == {"nfs": {"server": "nfs.example", "path": "/home"}}
    assert template.volumes["any-size"].source == {"emptyDir": {}}
    assert sorted(template.offers.mounts) == ["any-size", "datasets", "scratch", "settings", "tmp", "tokens"]
    assert {name: getattr(template, name) for name in ("shared_memory", "grace_s", "run_as_user", "host_network")} == {
        name: FULL[name] for name in ("shared_memory", "grace_s", "run_as_user", "host_network")
    }


@pytest.mark.parametrize(
    ("name", "mode"),
    [("jobs", "ours"), ("research", "theirs"), ("infra", "observed"), ("unknown", "observed")],
)
def test_namespaces_that_are_not_named_are_only_observed(name, mode):
    assert parse_pod_template(FULL, ALL).namespace_mode(name) == mode


def test_namespace_of_jobs_needs_no_entry():
    assert PodTemplate().namespace_mode("acme-jobs") == "ours"


@pytest.mark.parametrize(
    ("image", "is_offered"),
    [
        ("registry.example/train:1", True),
        ("registry.example/train/llm:2", True),
        ("registry.example/train:2", False),
        ("REGISTRY.example/train/llm:2", False),
        ("", False),
    ],
    ids=range(5),
)
def test_jobs_may_name_the_default_image_and_what_a_pattern_matches(image, is_offered):
    assert parse_pod_template(FULL, ALL).offers.has_image(image) is is_offered


@pytest.mark.parametrize(
    ("model", "resource"),
    [("NVIDIA-H100", "nvidia.com/gpu"), ("AMD_Instinct_MI300X_OAM", "amd.com/gpu"), ("", "nvidia.com/gpu")],
    ids=range(3),
)
def test_resource_of_a_model_is_that_of_the_longest_pattern(model, resource):
    assert parse_pod_template(FULL, ALL).gpu_resource_of(model) == resource


def test_model_that_no_pattern_matches_has_no_resource():
    assert parse_pod_template({"gpu_resource": {"h100": "nvidia.com/gpu"}}, PodLimits()).gpu_resource_of("mi300x") == ""


def test_volumes_of_a_job_are_those_that_it_names_and_those_of_all_jobs():
    template = parse_pod_template(FULL, ALL)

    assert [volume.name for volume in mounted_volumes(template, ["scratch"])] == ["home", "scratch"]


DATA = {"claim": "d", "mount_path": "/data"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([], "must be an object"),
        ({"privileged": True}, "'privileged' is not a setting"),
        ({"namespace": "Jobs"}, "namespace must be"),
        ({"namespaces": {"a": "mine"}}, "namespaces.a must be ours, theirs, observed."),
        ({"namespaces": {"a": []}}, "namespaces.a must be"),
        ({"namespaces": {"acme-jobs": "theirs"}}, 'namespaces.acme-jobs must be "ours"'),
        ({"namespaces": {"a b": "ours"}}, "namespaces: 'a b' is not a valid name."),
        ({"image": "a b"}, "image must be"),
        ({"image": None}, "image must be"),
        ({"allowed_images": "*"}, "allowed_images must be a list"),
        ({"allowed_images": [7]}, "allowed_images[0] must be"),
        ({"volumes": {"data": {}}}, "volumes.data must have exactly one of claim, config_map"),
        ({"volumes": {"data": {**DATA, "secret": "s"}}}, "volumes.data must have exactly one of"),
        ({"volumes": {"data": {"claim": "d"}}}, "volumes.data.mount_path is missing."),
        ({"volumes": {"data": {**DATA, "mount_path": "/a/../b"}}}, "volumes.data.mount_path must be an absolute path"),
        ({"volumes": {"data": {**DATA, "mount_path": "/proc/x"}}}, "volumes.data.mount_path: /proc/x belongs to"),
        ({"volumes": {"data": {**DATA, "sub_path": "../x"}}}, "volumes.data.sub_path must be a relative path"),
        ({"volumes": {"data": {**DATA, "always": "yes"}}}, "volumes.data.always must be true or false."),
        ({"volumes": {"data": {**DATA, "devices": True}}}, "volumes.data: 'devices' is not a setting of a volume."),
        ({"volumes": {"data": {"nfs": {"server": "s"}, "mount_path": "/d"}}}, "volumes.data.nfs must be an object"),
        ({"volumes": {"data": {"empty_dir": False, "mount_path": "/d"}}}, "volumes.data.empty_dir must be true or"),
        ({"volumes": {"acme-shm": DATA}}, "volumes.acme-shm: names with acme-"),
        ({"volumes": {"x" * 64: DATA}}, "volumes: 'xxx"),
        ({"volumes": {"a": {**DATA, "always": True}, "b": {**DATA, "always": True}}}, "volumes: /data is the"),
        ({"shared_memory": "many"}, "shared_memory must be a size"),
        ({"shared_memory": "1Gi", "volumes": {"a": {"claim": "d", "mount_path": "/dev/shm"}}}, "volumes.a.mount_path"),
        ({"tolerations": [{"key": 7}]}, "tolerations[0].key must be a text."),
        ({"tolerations": [{"what": "x"}]}, "tolerations[0] must be a toleration"),
        ({"gpu_resource": "cpu"}, "gpu_resource must name resources of GPUs"),
        ({"gpu_resource": {"*": 7}}, "gpu_resource must name resources of GPUs"),
        ({"extra_resources": {"cpu": 4}}, "extra_resources.cpu: name resources such as rdma/hca"),
        ({"extra_resources": {"nvidia.com/gpu": 4}}, "extra_resources.nvidia.com/gpu: name resources"),
        ({"extra_resources": {"rdma/hca": True}}, "extra_resources.rdma/hca must be a whole number"),
        ({"grace_s": 0}, "grace_s must be a whole number from 1 to 86400."),
        ({"labels": {"acme/attempt": "x"}}, "labels.acme/attempt is set by Acme"),
        ({"labels": {"team": "a b"}}, "labels.team must be a value that labels may have."),
        ({"run_as_user": -1}, "run_as_user must be a whole number"),
        ({"run_as_user": "root"}, 'run_as_user must be a whole number from 0 to 2147483647, or "image".'),
        ({"host_network": 1}, "host_network must be true or false."),
        (
            {"annotations": {"container.apparmor.security.beta.kubernetes.io/job": "unconfined"}},
            "annotations.container.a",
        ),
    ],
    ids=str,
)
def test_mistake_is_named_in_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=r"\.$") as error:
        parse_pod_template(settings, PodLimits())

    assert str(error.value).startswith(sentence)


NEED_PRIVILEGES = {
    "root": {"run_as_user": 0},
    "host-network": {"host_network": True},
    "ipc-lock": {"extra_resources": {"rdma/hca": 1}},
    "service-account": {"service_account": "trainer"},
}


@pytest.mark.parametrize(("privilege", "settings"), NEED_PRIVILEGES.items(), ids=NEED_PRIVILEGES)
def test_setting_needs_its_privilege(privilege, settings):
    others = PodLimits(privileges=frozenset(PodPrivilege) - {privilege})

    with pytest.raises(ValueError, match=f"needs the privilege {privilege}, which ACME_POD_PRIVILEGES does not list"):
        parse_pod_template(settings, others)
    parse_pod_template(settings, PodLimits(privileges=frozenset({privilege})))


@pytest.mark.parametrize(
    ("path", "directories", "allowed"),
    [
        ("/", (), "none"),
        ("/run/docker.sock", ("/mnt/nvme",), "/mnt/nvme"),
        ("/mnt", ("/mnt/nvme",), "/mnt/nvme"),
        ("/mnt/nvme2", ("/mnt/nvme", "/data"), "/mnt/nvme, /data"),
    ],
)
def test_host_path_that_is_not_allowed_is_refused(path, directories, allowed):
    volumes = {"scratch": {"host_path": path, "mount_path": "/scratch"}}

    with pytest.raises(ValueError, match="ACME_POD_HOST_PATHS") as error:
        parse_pod_template({"volumes": volumes}, PodLimits(host_paths=directories))

    where = f"volumes.scratch.host_path: {path} is not beneath a directory of"
    assert str(error.value) == f"{where} ACME_POD_HOST_PATHS ({allowed})."


@pytest.mark.parametrize("path", ["/mnt/nvme", "/mnt/nvme/jobs"])
def test_host_path_beneath_an_allowed_directory_may_be_mounted(path):
    volumes = {"scratch": {"host_path": path, "mount_path": "/scratch"}}

    template = parse_pod_template({"volumes": volumes}, PodLimits(host_paths=("/mnt/nvme",)))

    assert template.volumes["scratch"].source == {"hostPath": {"path": path}}


NAMES = st.sampled_from(["a", "claim", "mount_path", "nfs", "server", "empty_dir", "key", "acme/x"]) | st.text(
    max_size=4
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(READERS)), VALUES, max_size=4))
def test_any_setting_gives_a_template_or_one_sentence(settings):
    container_offers(settings)
    try:
        template = parse_pod_template(settings, PodLimits())
    except ValueError as error:
        assert str(error).endswith(".") and str(error).count("\n") == 0
    else:
        assert template.offers == container_offers(settings)
