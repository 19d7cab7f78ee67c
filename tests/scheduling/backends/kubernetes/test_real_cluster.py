"""The backend against a real control plane."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from jobs.core.lifecycle import Flag, NodeFlag, NodeState, State
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.kubernetes.connection.manifests import DRIVER, OBSERVER
from scheduling.backends.opening import open_backend
from tests.patience import until
from tests.scheduling.backends.kubernetes.driving.test_driving import gang, has_ended, running, until_seen
from tests.scheduling.backends.kubernetes.real_kubernetes import job, pod, started_or_skipped
from tests.scheduling.backends.kubernetes.simulated_kubernetes import open_kubernetes

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def kubernetes():
    with started_or_skipped() as cluster:
        yield cluster


def read_file(path: str) -> str:
    return Path(path).read_text()


@pytest.fixture(scope="session")
def backend(kubernetes):
    with closing(open_backend(f"kubernetes://{kubernetes.kubeconfig}", read_file=read_file)) as backend:
        yield backend


def seen(backend, name):
    return next((found for found in backend.jobs() if found.name == name), None)


def node_seen(backend, name):
    return next(node for node in backend.nodes() if node.name == name)


def until_job(backend, name, condition):
    until(lambda: (found := seen(backend, name)) is not None and condition(found), what=f"{name} is as expected")
    return seen(backend, name)


@contextmanager
def created(kubernetes, *objects):
    kubernetes.create(*objects)
    try:
        yield
    finally:
        names = [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in objects]
        kubernetes.kubectl("delete", "--ignore-not-found", "--wait=false", *names)


def test_cluster_says_what_it_is(backend):
    hello = backend.ping()

    assert (hello.product, hello.api) == ("kubernetes v1.20.2", "v1")


def test_nodes_have_their_gpus_model_and_topology(backend, kubernetes):
    nodes = backend.nodes()

    assert [node.name for node in nodes] == list(kubernetes.nodes)
    assert {(node.gpus, node.gpu_model, node.cpus) for node in nodes} == {(8, "NVIDIA-H200", 64)}
    assert "rack-rack1" in nodes[0].features and nodes.unreadable == ()


def test_bare_pod_with_gpus_is_followed_from_start_to_end(backend, kubernetes):
    with created(kubernetes, pod("bare", annotations={"k8s-lab/seconds": "3", "k8s-lab/exit-code": "7"})):
        running = until_job(backend, "default/pod/bare", lambda found: found.state == State.RUNNING and not found.flags)
        ended = until_job(backend, "default/pod/bare", lambda found: found.state == State.FAILED)

    assert list(running.gpu_counts.values()) == [2] and running.started_at >= running.submitted_at
    assert (ended.exit_code, ended.backend_id, ended.gpu_counts) == (7, running.backend_id, {})
    assert ended.ended_at >= ended.started_at


def test_pods_of_a_job_are_one_job_and_their_nodes_are_allocated(backend, kubernetes):
    with created(kubernetes, job("gang", annotations={"k8s-lab/seconds": "6"})):
        running = until_job(backend, "default/job/gang", lambda found: len(found.nodes) == 2 and not found.flags)
        states = {node.name: node.state for node in backend.nodes()}
        ended = until_job(backend, "default/job/gang", lambda found: found.state == State.COMPLETED)

    assert {states[name] for name in running.nodes} == {NodeState.ALLOCATED}
    assert (running.gpus_per_node, ended.state) == (8, State.COMPLETED)


def test_memory_kill_of_a_pod_is_the_end_of_its_job(backend, kubernetes):
    killed = {"k8s-lab/seconds": "1", "k8s-lab/exit-code": "137", "k8s-lab/reason": "OOMKilled"}

    with created(kubernetes, job("greedy", pods=1, annotations=killed)):
        ended = until_job(backend, "default/job/greedy", lambda found: found.state != State.RUNNING and found.ended_at)

    assert (ended.state, ended.exit_code) == (State.OUT_OF_MEMORY, 137)
    assert "OOMKilled" in ended.reason


def test_pod_that_does_not_fit_says_why_it_waits(backend, kubernetes):
    with created(kubernetes, pod("wide", gpus=9)):
        waiting = until_job(backend, "default/pod/wide", lambda found: bool(found.reason))

    assert (waiting.state, waiting.nodes, waiting.gpus_per_node) == (State.PENDING, (), 9)
    assert "Insufficient nvidia.com/gpu" in waiting.reason


def test_image_that_cannot_be_pulled_keeps_a_job_configuring(backend, kubernetes):
    item = pod("unpullable")
    item["spec"]["containers"][0]["image"] = "registry.invalid/train:1"

    with created(kubernetes, item):
        starting = until_job(backend, "default/pod/unpullable", lambda found: bool(found.nodes))

    assert (starting.state, starting.flags) == (State.RUNNING, {Flag.CONFIGURING})


def test_deleted_pod_is_cancelled(backend, kubernetes):
    kubernetes.create(pod("doomed"))
    until_job(backend, "default/pod/doomed", lambda found: found.state == State.RUNNING)

    kubernetes.kubectl("delete", "pod", "doomed", "--wait=false")

    ended = until_job(backend, "default/pod/doomed", lambda found: found.ended_at is not None)
    assert ended.state == State.CANCELLED


def test_deployment_is_one_job_until_it_is_deleted(backend, kubernetes):
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": {**pod("x")["spec"], "restartPolicy": "Always"}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "serve"}}, "template": template}
    serve = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve"}, "spec": spec}

    with created(kubernetes, serve):
        running = until_job(
            backend, "default/deployment/serve", lambda found: sum(found.gpu_counts.values()) == 4 and not found.flags
        )
        kubernetes.kubectl("scale", "deployment", "serve", "--replicas=0")
        scaled = until_job(backend, "default/deployment/serve", lambda found: found.state == State.PENDING)

    ended = until_job(backend, "default/deployment/serve", lambda found: found.ended_at is not None)
    assert running.backend_id == scaled.backend_id == ended.backend_id
    assert ended.state == State.CANCELLED


def test_cordon_is_a_drain(backend, kubernetes):
    kubernetes.kubectl("cordon", "node4")

    until(lambda: NodeFlag.DRAIN in node_seen(backend, "node4").flags, what="node4 is drained")
    assert node_seen(backend, "node4").reason == "cordoned"
    kubernetes.kubectl("uncordon", "node4")
    until(lambda: not node_seen(backend, "node4").flags, what="node4 is open")


def test_withdrawn_gpus_are_not_counted(backend, kubernetes):
    withdrawn = kubernetes.home / "node4" / "unhealthy"
    withdrawn.write_text("0 3")
    try:
        until(lambda: node_seen(backend, "node4").gpus == 6, what="node4 has 6 GPUs")
        assert node_seen(backend, "node4").reason == "6 of 8 nvidia.com/gpu are healthy"
    finally:
        withdrawn.unlink()
    until(lambda: node_seen(backend, "node4").gpus == 8, what="node4 has 8 GPUs")


def test_silent_kubelet_takes_its_node_down_and_it_comes_back(backend, kubernetes):
    os.kill(kubernetes.node_pid("node3"), signal.SIGSTOP)
    try:
        until(lambda: node_seen(backend, "node3").state == NodeState.DOWN, what="node3 is down")
        assert NodeFlag.NOT_RESPONDING in node_seen(backend, "node3").flags
        assert "Kubelet stopped posting node status" in node_seen(backend, "node3").reason
    finally:
        os.kill(kubernetes.node_pid("node3"), signal.SIGCONT)
    until(lambda: node_seen(backend, "node3").state == NodeState.IDLE, what="node3 is back")


def test_frozen_api_server_is_unreachable_within_the_deadline_and_nothing_is_lost(kubernetes):
    pid = int((kubernetes.home / "run" / "kube-apiserver.pid").read_text())
    address = f"kubernetes://{kubernetes.kubeconfig}"
    with closing(open_backend(address, read_file=read_file, timeout_s=2)) as backend:
        before = {found.backend_id for found in backend.jobs()}
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ClusterUnreachable, match="no complete response within 2 s"):
                backend.nodes()
        finally:
            os.kill(pid, signal.SIGCONT)

        until(lambda: _answers(backend), what="the API server is back")
        assert before <= {found.backend_id for found in backend.jobs()}


def _answers(backend):
    try:
        backend.nodes()
    except ClusterUnreachable:
        return False
    return True


# --- permissions


def account_kubeconfig(kubernetes, folder, mode, account):
    """A kubeconfig with the token that the manifest of a mode creates."""
    with (folder / "manifest.yaml").open("w") as manifest:
        call_command("kubernetes_manifest", "--mode", mode, stdout=manifest)
    kubernetes.kubectl("apply", "-f", str(folder / "manifest.yaml"))

    def secret():
        return kubernetes.get("secret", account, "-n", "acme").get("data", {})

    until(lambda: "token" in secret(), what="the token is there")
    server = (kubernetes.home / "run" / "url").read_text().strip()
    return write_kubeconfig(folder, server, secret())


@pytest.fixture(scope="session")
def observer(kubernetes, tmp_path_factory):
    return account_kubeconfig(kubernetes, tmp_path_factory.mktemp("observer"), "observe", OBSERVER)


@pytest.fixture(scope="session")
def driver(kubernetes, tmp_path_factory):
    return account_kubeconfig(kubernetes, tmp_path_factory.mktemp("driver"), "drive", DRIVER)


def write_kubeconfig(folder, server, data):
    (folder / "token").write_bytes(base64.b64decode(data["token"]))
    config = {
        "kind": "Config",
        "current-context": "acme",
        "contexts": [{"name": "acme", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": data["ca.crt"]}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


def test_observer_reads_what_it_needs(observer, backend, kubernetes):
    with closing(open_backend(f"kubernetes://{observer}", read_file=read_file)) as observing:
        assert [node.name for node in observing.nodes()] == [node.name for node in backend.nodes()]
        assert observing.jobs().unreadable == ()


WRITES = ["create", "update", "patch", "delete", "deletecollection"]


def writable(kubernetes, verb):
    resources = kubernetes.kubectl("api-resources", "--verbs", verb, "-o", "name").split()
    assert len(resources) > 10
    questions = {*resources, "pods/exec", "pods/eviction", "pods/binding", "nodes/status"}
    # Everybody may ask what they may do; that creates no object
    return sorted(questions - {f"selfsubject{kind}reviews.authorization.k8s.io" for kind in ("access", "rules")})


@pytest.mark.parametrize("verb", WRITES)
def test_observer_can_write_nothing(observer, kubernetes, verb):
    assert allowed(kubernetes, verb, writable(kubernetes, verb)) == []


@pytest.mark.parametrize("verb", WRITES)
def test_driver_writes_only_in_its_namespace_and_cordons_nodes(driver, kubernetes, verb):
    owned = ["configmaps", "jobs.batch", "pods"]
    only_created = ["pods/binding", "pods/eviction", "pods/exec", "services"]
    expected = {"create": sorted([*owned, *only_created]), "patch": [*owned[:2], "nodes", "pods"], "delete": owned}
    questions = writable(kubernetes, verb)

    assert allowed(kubernetes, verb, questions, DRIVER) == (["nodes"] if verb == "patch" else [])
    assert allowed(kubernetes, verb, questions, DRIVER, "acme-jobs") == expected.get(verb, [])


def test_driver_reads_no_secrets(driver, kubernetes):
    assert allowed(kubernetes, "get", ["secrets", "nodes"], DRIVER, "acme-jobs") == ["nodes"]


def test_driver_runs_a_gang_with_its_own_token(driver, kubernetes):
    with closing(open_kubernetes(driver)) as backend:
        request = gang(nodes=("node1", "node2"), environment={})

        backend_id = running(backend, request)

        assert set(backend.find(request.key).nodes) == set(request.nodes)
        backend.cancel(backend_id)
        assert until_seen(backend, request, has_ended).state == State.CANCELLED


@pytest.mark.parametrize("resource", ["secrets", "configmaps", "pods/log"])
def test_observer_cannot_read_secrets_or_logs(observer, kubernetes, resource):
    assert allowed(kubernetes, "get", [resource, "nodes"]) == ["nodes"]


def allowed(kubernetes, verb, resources, account=OBSERVER, namespace="default"):
    """The resources on which the API server allows this verb to the account."""
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:acme:{account}",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:acme", "system:authenticated"],
                "resourceAttributes": attributes(verb, resource, namespace),
            },
        }
        for resource in resources
    ]
    answers = kubernetes.kubectl("create", "-o", "yaml", "-f", "-", text=yaml.safe_dump_all(reviews))
    documents = list(yaml.safe_load_all(answers))
    items = documents[0]["items"] if documents[0]["kind"] == "List" else documents
    assert len(items) == len(resources)
    return [name for name, item in zip(resources, items, strict=True) if item["status"]["allowed"]]


def attributes(verb, resource, namespace):
    whole, _, subresource = resource.partition("/")
    name, _, group = whole.partition(".")
    return {"verb": verb, "resource": name, "group": group, "subresource": subresource, "namespace": namespace}


def test_rotated_token_is_used_at_once(observer, tmp_path, kubernetes):
    for name in ("kubeconfig", "token"):
        (tmp_path / name).write_bytes((observer.parent / name).read_bytes())
    with closing(open_backend(f"kubernetes://{tmp_path / 'kubeconfig'}", read_file=read_file)) as backend:
        assert backend.nodes()
        token = (tmp_path / "token").read_text()
        (tmp_path / "token").write_text("expired")
        with pytest.raises(ClusterUnreachable, match="HTTP 401"):
            backend.nodes()
        (tmp_path / "token").write_text(token)

        assert backend.nodes()


def test_certificate_of_another_authority_is_refused(observer, tmp_path, kubernetes):
    other = tmp_path / "ca.crt"
    key = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*key, "-keyout", "/dev/null", "-out", other, "-subj", "/CN=other"], check=True, capture_output=True)
    config = yaml.safe_load(observer.read_text())
    config["clusters"][0]["cluster"] = {
        "server": config["clusters"][0]["cluster"]["server"],
        "certificate-authority": str(other),
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    (tmp_path / "token").write_text("not-sent")

    with (
        closing(open_backend(f"kubernetes://{tmp_path / 'kubeconfig'}", read_file=read_file)) as backend,
        pytest.raises(ClusterUnreachable, match="certificate verify failed"),
    ):
        backend.nodes()
