"""Adding and testing Kubernetes clusters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import yaml
from django.contrib.auth.models import Permission

from acmeweb.common.errors import InvalidField
from jobs.actions.journal import Author
from jobs.core.cluster_kinds import PodLimits
from jobs.logs.allowed_paths import AllowedPaths
from jobs.models import Cluster
from scheduling.actions import clusters as cluster_actions
from scheduling.clusters import connection_test, connections
from scheduling.clusters.connection_test import ConnectionSettings
from tests import make
from tests.scheduling.backends.kubernetes.objects import pod
from tests.scheduling.backends.kubernetes.scripted_api import serving, status

NOW = datetime(2026, 3, 1, tzinfo=UTC)
AUTHOR = Author(by="test")


@pytest.fixture
def api():
    with serving() as (api, server):
        api.server = server
        yield api


@pytest.fixture
def folder(tmp_path, settings):
    (tmp_path / "tokens").mkdir()
    settings.ACME_TOKEN_DIRS = [str(tmp_path / "tokens")]
    return tmp_path / "tokens"


def write_kubeconfig(folder, server, user=None):
    config = {
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
    }
    path = folder / "kalos.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return f"kubernetes://{path}"


def steps(folder, address, **more):
    allowed = AllowedPaths(var="/no-installation", token_dirs=(str(folder),))
    found = connection_test.run_test_steps(ConnectionSettings(address=address, **more), NOW, allowed=allowed)
    return {step.name: step for step in found}


def test_working_cluster_passes_every_step(api, folder):
    api.objects["/api/v1/pods"] = [pod("a", on="n1")]

    found = steps(folder, write_kubeconfig(folder, api.server))

    assert list(found) == ["Address", "Kubernetes", "Nodes", "Telemetry", "Job logs"]
    assert all(step.ok is not False for step in found.values())
    assert found["Kubernetes"].message == "Connected to kubernetes v1.99.0, API v1."
    assert found["Nodes"].message == "1 nodes with 8 GPUs, 1 jobs."


def test_logs_are_copied_with_and_without_a_directory(api, folder, tmp_path_factory):
    address, root = write_kubeconfig(folder, api.server), str(tmp_path_factory.mktemp("logs"))

    without, with_one = (steps(folder, address, log_root=path)["Job logs"] for path in ("", root))

    assert (without.ok, "copies the output of its jobs to its own directory" in without.message) == (None, True)
    assert (with_one.ok, with_one.message) == (True, "The directory is writable.")


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {"command": "aws"}}, "exec plugins are not supported"),
        ({"tokenFile": "/etc/hostname"}, "not beneath a directory for tokens"),
        ({"tokenFile": "missing"}, "cannot be read"),
    ],
    ids=["exec", "file elsewhere", "missing file"],
)
def test_unusable_kubeconfig_is_explained(api, folder, user, said):
    found = steps(folder, write_kubeconfig(folder, api.server, user))

    assert found["Address"].ok is False and said in found["Address"].message
    assert found["Kubernetes"].ok is None


def test_metadata_service_is_refused(folder):
    found = steps(folder, write_kubeconfig(folder, "http://169.254.169.254"))

    assert "metadata service" in found["Address"].message


def test_missing_permission_is_explained_with_the_manifest(api, folder):
    api.scripts["/api/v1/pods"] = [lambda query: status(403, "pods is forbidden")]

    found = steps(folder, write_kubeconfig(folder, api.server))

    assert (found["Kubernetes"].ok, found["Nodes"].ok) == (True, False)
    assert "HTTP 403: pods is forbidden" in found["Nodes"].message
    assert "kubernetes_manifest" in found["Nodes"].advice


@pytest.mark.django_db
def test_cluster_is_added_and_connected(api, folder):
    api.objects["/api/v1/pods"] = [pod("a", on="n1", labels={"team": "nlp"})]
    columns = {"address": write_kubeconfig(folder, api.server), "workload_owners": {"team_from": ["label:team"]}}

    row = cluster_actions.add("kalos", columns, author=AUTHOR)

    first = connections.connect(row)
    assert [job.account for job in first.jobs()] == ["nlp"]
    assert connections.connect(row) is first
    row.workload_owners = {}
    second = connections.connect(row)
    assert [job.account for job in second.jobs()] == ["research"]
    row.pod_template = {"image": "train:1"}
    third = connections.connect(row)
    assert third is not second
    third.close()


@pytest.mark.django_db
def test_cluster_saved_before_its_host_path_was_forbidden_can_still_be_observed(api, folder, settings):
    scratch = {"host_path": "/mnt/nvme", "mount_path": "/scratch"}
    template = {"image": "train:1", "volumes": {"scratch": scratch}}
    settings.ACME_POD_LIMITS = PodLimits(host_paths=("/mnt",))
    columns = {"address": write_kubeconfig(folder, api.server), "pod_template": template}
    row = cluster_actions.add("kalos", columns, author=AUTHOR)

    settings.ACME_POD_LIMITS = PodLimits()

    connections.connect(row).close()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("columns", "field", "said"),
    [
        ({"api_user": "acme"}, "api_user", "Not used for Kubernetes"),
        ({"workload_owners": {"team_from": ["team"]}}, "workload_owners", "team_from must be a list"),
        ({"pod_template": {"privileged": True}}, "pod_template", "'privileged' is not a setting"),
        (
            {"pod_template": {"allowed_images": ["registry.example/*", "registry.example*"]}},
            "pod_template",
            "allowed_images: registry.example* has a wildcard before the first slash",
        ),
        ({"pod_template": {"grace_s": 0}}, "pod_template", "grace_s must be a whole number"),
        ({"pod_template": {"host_network": True}}, "pod_template", "host_network needs the privilege host-network"),
        ({"address": "http://host", "pod_template": {"image": "a"}}, "pod_template", "Not used for Slurm"),
        ({"address": "kubernetes://host/path"}, "address", "PATH of a kubeconfig file"),
        (
            {"address": "http://host", "workload_owners": {"rename": {"a": "b"}}},
            "workload_owners",
            "Not used for Slurm",
        ),
    ],
    ids=["user", "mapping", "privileged", "images", "grace", "host network", "Slurm template", "address", "Slurm"],
)
def test_settings_that_mean_nothing_are_refused(columns, field, said):
    with pytest.raises(InvalidField) as refused:
        cluster_actions.add("kalos", {"address": "kubernetes:///k", **columns}, author=AUTHOR)

    assert said in refused.value.by_field[field][0]
    assert not Cluster.objects.exists()


@pytest.fixture
def settings_page(client):
    person = make.user("olga")
    person.user_permissions.add(Permission.objects.get(codename="change_cluster"))
    client.force_login(person)
    make.cluster("kalos", address="kubernetes:///k", mode="observe", pod_template={"image": "train:1"})
    return "/settings/clusters/of/kalos/"


@pytest.mark.django_db
def test_pod_template_is_shown_in_lines_and_changed_on_the_settings_page(client, settings_page):
    shown = client.get(settings_page).context["form"]
    fields = {"title": "", "address": "kubernetes:///k", "mode": "observe", "checkpoint_signal": ""}

    assert shown["pod_template"].value() == '{\n  "image": "train:1"\n}'
    refused = client.post(settings_page, {**fields, "pod_template": '{"image": "train:1", "privileged": true}'})
    assert "'privileged' is not a setting; use namespace" in refused.context["form"].errors["pod_template"][0]
    client.post(settings_page, {**fields, "pod_template": '{"image": "train:2"}'})
    assert Cluster.objects.get().pod_template == {"image": "train:2"}
    client.post(settings_page, {**fields, "title": "Kalos"})
    assert Cluster.objects.get().pod_template == {"image": "train:2"}


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["{", "[1]", '"text"'], ids=["syntax", "list", "text"])
def test_pod_template_that_is_no_object_is_refused(client, settings_page, text):
    page = client.post(settings_page, {"address": "kubernetes:///k", "mode": "observe", "pod_template": text})

    assert page.status_code == 422
    assert "pod_template" in page.context["form"].errors
    assert Cluster.objects.get().pod_template == {"image": "train:1"}
