"""The real kubectl reads the simulated cluster, and creates, patches and deletes its objects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.patience import PATIENCE_S, until
from tests.servers import NO_KUBERNETES

from ..make import job, pod
from ..running import KubernetesProcess

PROGRAM = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"{NO_KUBERNETES}: kubectl is missing")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KubernetesProcess(tmp_path_factory.mktemp("kalos"), "--nodes", "4", "--tls") as process:
        yield process


@pytest.fixture
def run(cluster, tmp_path):
    def run(*words: str, text: str | None = None, fails: bool = False, quiet: bool = True) -> str:
        environment = {**os.environ, "KUBECONFIG": str(cluster.state / "kubeconfig"), "HOME": str(tmp_path)}
        command = [str(PROGRAM), *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        assert (done.returncode != 0) is fails, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + ("" if quiet and not fails else done.stderr)

    yield run
    run(
        "delete", "jobs,pods,pdb,configmaps", "-l", "!keep", "--all-namespaces=false", "--wait=true", "--grace-period=1"
    )


def created(run, *objects: dict[str, Any]) -> str:
    return run("create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def test_version_names_a_simulated_server(run):
    assert "v1.33.4-simulated" in run("version")


def test_resources_are_discovered(run):
    names = run("api-resources", "-o", "name").split()

    assert {"pods", "jobs.batch", "nodes", "poddisruptionbudgets.policy", "leases.coordination.k8s.io"} <= set(names)


def test_nodes_are_listed_and_described(run):
    assert run("get", "nodes", "-o", "name").split() == [f"node/kalos-00{number}" for number in range(1, 5)]
    described = run("describe", "node", "kalos-001")
    assert "nvidia.com/gpu:     8" in described and "KubeletReady" in described


def test_pod_is_created_followed_and_deleted(run):
    assert "pod/train created" in created(run, pod(node="kalos-001", seconds=10))
    run("label", "pod", "train", "team=nlp")

    run("wait", "--for=jsonpath={.status.phase}=Running", "pod/train", "--timeout=60s")
    assert run("logs", "-f", "train").rstrip().endswith("all done")
    run("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/train", "--timeout=60s")
    assert run("get", "pods", "-l", "team=nlp", "-o", "name") == "pod/train\n"
    assert "Started container main" in run("describe", "pod", "train")
    events = ("get", "events", "--field-selector", "involvedObject.name=train", "-o", "jsonpath={.items[*].message}")
    assert "Started container main" in run(*events)
    assert 'pod "train" deleted' in run("delete", "pod", "train")
    assert "NotFound" in run("get", "pod", "train", fails=True)


def test_misspelled_field_is_refused(run):
    wrong = {**pod(), "spec": {**pod()["spec"], "nodName": "x"}}

    answer = run("create", "-f", "-", text=json.dumps(wrong), fails=True)

    assert 'unknown field "spec.nodName"' in answer


def test_invalid_object_is_refused_with_the_field(run):
    answer = run("create", "-f", "-", text=json.dumps(pod(restartPolicy="Sometimes")), fails=True)

    assert 'spec.restartPolicy: Unsupported value: "Sometimes"' in answer


def test_job_is_suspended_resumed_and_waited_for(run):
    created(run, job(completions=2, parallelism=2, completionMode="Indexed", gpus=1, seconds=1, suspend=True))

    run("patch", "job", "sweep", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    run("wait", "--for=condition=complete", "job/sweep", "--timeout=60s")

    assert "2 Succeeded" in run("describe", "job", "sweep")
    run("delete", "job", "sweep")
    until(lambda: run("get", "pods", "-o", "name") == "")


def test_command_runs_in_a_container(run):
    created(run, pod("beside", node="kalos-001", gpus=2, seconds=600))
    run("wait", "--for=condition=Ready", "pod/beside", "--timeout=60s")

    assert run("exec", "beside", "--", "hostname") == "beside\n"
    assert run("exec", "beside", "--", "nvidia-smi", "-L").count("GPU ") == 2
    assert "exit code 1" in run("exec", "beside", "--", "false", fails=True)


def test_gang_is_gated_and_placed_with_kubectl(run):
    gates = {"schedulerName": "acme", "schedulingGates": [{"name": "acme/gang"}]}
    created(run, pod("gated", seconds=600, **gates))

    run("patch", "pod", "gated", "--type=merge", "-p", '{"spec":{"schedulingGates":null}}')
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "gated"},
               "target": {"kind": "Node", "name": "kalos-003"}}  # fmt: skip
    run("create", "--raw", "/api/v1/namespaces/default/pods/gated/binding", "-f", "-", text=json.dumps(binding))

    run("wait", "--for=condition=Ready", "pod/gated", "--timeout=60s")
    assert run("get", "pod", "gated", "-o", "jsonpath={.spec.nodeName}") == "kalos-003"


def test_labels_and_annotations_are_edited(run):
    run("label", "node", "kalos-003", "team=nlp")
    run("annotate", "node", "kalos-003", "why=test")
    assert "team=nlp" in run("describe", "node", "kalos-003")

    run("label", "node", "kalos-003", "team-")

    assert "team=nlp" not in run("describe", "node", "kalos-003")


def test_configmap_is_edited_with_a_json_patch(run):
    created(run, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}})

    run("patch", "configmap", "settings", "--type=json", "-p", '[{"op":"replace","path":"/data/a","value":"2"}]')

    assert run("get", "configmap", "settings", "-o", "jsonpath={.data.a}") == "2"


def test_service_account_may_do_what_its_role_says(run, cluster):
    group = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list", "watch"]}
    created(
        run,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "reader"}, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
        },
    )
    path = "/api/v1/namespaces/default/serviceaccounts/reader/token"
    token = cluster.call("POST", path, {"spec": {}})["status"]["token"]
    server = ("--kubeconfig", "/dev/null", "--server", cluster.address, "--certificate-authority")
    as_reader = (*server, str(cluster.state / "pki" / "ca.crt"), "--token", token)

    assert "No resources found" in run("get", "pods", *as_reader, quiet=False)
    assert "Forbidden" in run("get", "nodes", *as_reader, fails=True)
    assert "Forbidden" in run("delete", "pod", "any", *as_reader, fails=True)


def test_watch_prints_what_happens(run, cluster):
    phase = "custom-columns=NAME:.metadata.name,PHASE:.status.phase"
    command = [str(PROGRAM), "--kubeconfig", str(cluster.state / "kubeconfig"), "get", "pods", "-w", "--no-headers"]
    created(run, pod("first", node="kalos-001", seconds=600))
    with subprocess.Popen(
        [*command, "-o", phase], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as watching:
        try:
            assert watching.stdout is not None
            assert watching.stdout.readline().split()[0] == "first"  # the list is printed, so the watch begins
            created(run, pod("seen", node="kalos-002", seconds=1))
            phases = list(phases_until_the_end(watching.stdout, "seen"))
        finally:
            watching.terminate()

    assert list(dict.fromkeys(phases)) == ["Pending", "Running", "Succeeded"]


def phases_until_the_end(lines: Iterable[str], name: str) -> Iterator[str]:
    for line in lines:
        words = line.split()
        if words[0] == name:
            yield words[1]
            if words[1] == "Succeeded":
                return
