"""Which kinds a cluster serves."""

import pytest

from scheduling.backends.kubernetes.discovery import served_group_versions, served_resources, server_version


def groups(*entries):
    return {"kind": "APIGroupList", "groups": list(entries)}


def group(name, *versions, preferred=None):
    entries = [{"version": version, "groupVersion": f"{name}/{version}"} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": {"version": preferred or versions[0]}}


def test_preferred_version_goes_first():
    assert served_group_versions(groups(group("kubeflow.org", "v2beta1", "v1", preferred="v1"))) == {
        "kubeflow.org": ["v1", "v2beta1"]
    }


def test_wanted_kinds_that_can_be_followed_are_found():
    answer = {
        "resources": [
            {"name": "jobs", "kind": "Job", "verbs": ["list", "watch"]},
            {"name": "jobs/status", "kind": "Job", "verbs": ["get", "list", "watch"]},
            {"name": "cronjobs", "kind": "CronJob", "verbs": ["list", "watch"]},
            {"name": "jobsets", "kind": "JobSet", "verbs": ["get"]},
        ]
    }

    (found,) = served_resources("batch", "v1", answer, {"Job", "JobSet"})

    assert (found.kind, found.path) == ("Job", "/apis/batch/v1/jobs")


@pytest.mark.parametrize("name", ["../secrets", "a?b", "a/b", "A", "", "-a", 5, None])
def test_hostile_names_are_not_used_as_paths(name):
    served = served_group_versions(groups({"name": name, "versions": [{"version": "v1"}]}))
    resources = {"resources": [{"name": name, "kind": "Job", "verbs": ["list", "watch"]}]}

    assert (served, served_resources("batch", "v1", resources, {"Job"})) == ({}, [])


@pytest.mark.parametrize(
    ("answer", "version"), [({"gitVersion": "v1.20.2"}, "v1.20.2"), ({}, "unknown"), ([], "unknown")]
)
def test_version_is_only_shown(answer, version):
    assert server_version(answer) == version
