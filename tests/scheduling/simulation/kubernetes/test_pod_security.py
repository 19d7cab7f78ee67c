"""A namespace that enforces the Pod Security Standard "restricted"."""

from __future__ import annotations

import pytest

from jobs.core.cluster_kinds import PodLimits, PodPrivilege
from scheduling.backends.kubernetes.pod_objects import ApiFeatures, owner_object
from scheduling.backends.kubernetes.pod_template import parse_pod_template
from tests.scheduling.backends.kubernetes.test_pod_objects import request

from .make import client, job, pod

PODS = "/api/v1/namespaces/safe/pods"
BARE = ApiFeatures(indexed_jobs=False, job_set_path="", scheduling_gates=True)
ALL = PodLimits(host_paths=("/mnt",), privileges=frozenset(PodPrivilege))
ORDINARY = """\
pods "train" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container \
"main" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "main" must set \
securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "main" must set \
securityContext.runAsNonRoot=true), seccompProfile (pod or container "main" must set \
securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"""


@pytest.fixture
def there():
    there = client()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "safe", "labels": labels}}
    there.call("POST", "/api/v1/namespaces", namespace)
    return there.after(1)


def pod_of(**settings):
    template = parse_pod_template({"image": "train:1", "namespace": "safe", **settings}, ALL)
    return owner_object(request(1, mounts=tuple(settings.get("volumes", ()))), template, BARE).body


def test_ordinary_pod_is_refused(there):
    refused = there.refusal("POST", PODS, pod())

    assert (refused.code, refused.message) == (403, ORDINARY)


def test_ordinary_pod_is_accepted_in_other_namespaces(there):
    assert there.create_pod()["metadata"]["name"] == "train"


def test_job_with_ordinary_pods_gets_none_and_an_event_says_why(there):
    there.call("POST", "/apis/batch/v1/namespaces/safe/jobs", job())
    there.after(1)

    assert there.call("GET", PODS)["items"] == []
    events = there.call("GET", "/api/v1/namespaces/safe/events")["items"]
    assert all('violates PodSecurity "restricted:latest"' in event["message"] for event in events) and events


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"run_as_user": "image"},
        {"shared_memory": "1Gi", "volumes": {"data": {"claim": "data", "mount_path": "/data"}}},
    ],
    ids=str,
)
def test_pods_of_jobs_are_accepted(there, settings):
    assert there.call("POST", PODS, pod_of(**settings))["spec"]["containers"]


@pytest.mark.parametrize(
    ("settings", "violation"),
    [
        ({"run_as_user": 0}, "runAsUser=0 (pod must not set runAsUser=0)"),
        ({"host_network": True}, "host namespaces (hostNetwork=true)"),
        ({"extra_resources": {"rdma/hca": 1}}, 'container "job" must not include "IPC_LOCK" in securityContext'),
        (
            {"volumes": {"disk": {"host_path": "/mnt", "mount_path": "/mnt"}}},
            'restricted volume types (volume "disk" uses restricted volume type "hostPath")',
        ),
    ],
    ids=str,
)
def test_what_a_template_relaxes_is_refused(there, settings, violation):
    assert violation in there.refusal("POST", PODS, pod_of(**settings)).message
