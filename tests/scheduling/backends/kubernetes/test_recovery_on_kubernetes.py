"""Recovery on a real control plane: a gang of two pods loses a node, and its job continues elsewhere.

No operator takes part. The pods run an ordinary program as processes of this host, with the variables that Acme gives
to every job. A kubelet is killed with -9, like a machine that loses power.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing, suppress
from pathlib import Path

import pytest

from failures.diagnosis.engine import diagnose_text
from failures.loops.diagnose import diagnose_once
from failures.models import Decision, Incident
from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.core.lifecycle import NodeFlag
from jobs.models import Attempt, Checkpoint, Job, Node, clock
from scheduling.backends.base import BackendError
from scheduling.loops.pod_logs import CopyMemory, copy_logs_once
from scheduling.loops.turn import run_turn
from tests import make
from tests.failures.make import decide_and_recover_once
from tests.patience import until
from tests.scheduling.backends.kubernetes.real_kubernetes import pod as foreign_pod
from tests.scheduling.backends.kubernetes.real_kubernetes import started_or_skipped
from tests.scheduling.backends.kubernetes.simulated_kubernetes import NAMESPACE, TEMPLATE, open_kubernetes
from tests.scheduling.backends.kubernetes.test_contract import LEAVE_SILENT_NODES

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

TRAIN = """
import json, os, time, urllib.request
from pathlib import Path

rank, place = int(os.environ["NODE_RANK"]), Path(os.environ["ACME_CHECKPOINT_DIR"])
run = place / ("attempt-" + os.environ["ACME_ATTEMPT"])
run.mkdir(parents=True, exist_ok=True)
(run / f"rank-{rank}.new").write_text(json.dumps([os.environ["SLURMD_NODENAME"], os.getpid()]))
(run / f"rank-{rank}.new").rename(run / f"rank-{rank}")


def report(**what):
    request = urllib.request.Request(
        os.environ["ACME_URL"] + "/api/v1/progress/", json.dumps(what).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["ACME_PROGRESS_TOKEN"]},
    )
    urllib.request.urlopen(request, timeout=600).close()


step = 0
if os.environ.get("ACME_CHECKPOINT"):
    step = int(Path(os.environ["ACME_CHECKPOINT"]).read_text())
while True:
    step += 1
    print(f"iteration {step} | loss 1.0", flush=True)
    if rank == 0 and step % 10 == 0:
        file = place / f"{step}.txt"
        file.write_text(str(step))
        report(heartbeats=[{"step": step, "loss": 1.0}],
               checkpoints=[{"step": step, "path": str(file), "durable": True}])
    time.sleep(0.1)
"""


@pytest.fixture
def kubernetes():
    with started_or_skipped() as cluster:
        cluster.kubectl("create", "namespace", NAMESPACE)
        yield cluster


@pytest.fixture
def backend(kubernetes):
    template = {**TEMPLATE, **LEAVE_SILENT_NODES, "annotations": {"k8s-lab/run": "true"}}
    with closing(open_kubernetes(kubernetes.kubeconfig, template=template)) as backend:
        yield backend


def submitted_training(cluster, folder: Path) -> Job:
    (folder / "train.py").write_text(TRAIN)
    return make.job(
        cluster=cluster,
        name="pretrain",
        kind="pretrain",
        nodes=2,
        gpus_per_node=8,
        workdir=str(folder),
        checkpoint_dir=str(folder / "checkpoints"),
        command=f"exec python3 -u {folder}/train.py\n",
    )


def ranks(job: Job, attempt: int) -> dict[int, tuple[str, int]]:
    """The node and the process of each rank that has started."""
    place = Path(job.checkpoint_dir) / f"attempt-{attempt}"
    files = {rank: place / f"rank-{rank}" for rank in (0, 1)}
    return {rank: tuple(json.loads(file.read_text())) for rank, file in files.items() if file.exists()}


def test_gang_continues_on_other_nodes_after_its_kubelet_was_killed(
    kubernetes, backend, live_server, settings, tmp_path
):
    settings.ACME_URL = live_server.url
    cluster = make.cluster(nodes=0, address=f"kubernetes://{kubernetes.kubeconfig}", log_root=str(tmp_path))
    recovery_actions.set_recovery_mode("act", author=make.LOOP)
    start_work_of_others(kubernetes)

    memory = CopyMemory()

    def look():
        run_turn(cluster.pk, "test", lambda row: backend)
        with suppress(BackendError):  # while the API server starts
            copy_logs_once(cluster, backend, clock.now(), memory)
        diagnose_once(clock.now())
        decide_and_recover_once(clock.now())

    def once(true, what):
        return until(lambda: look() or true(), what=what)

    once(lambda: Node.objects.usable().count() == 4, "nodes")
    job = submitted_training(cluster, tmp_path)
    once(lambda: len(ranks(job, 1)) == 2, "two ranks")
    once(lambda: Checkpoint.objects.filter(job=job, step__gte=20).exists(), "a checkpoint of step 20")
    kubernetes.kill_api_server()
    kubernetes.start_api_server()
    once(lambda: Checkpoint.objects.filter(job=job, step__gte=40).exists(), "it goes on")
    assert Attempt.objects.get(job=job).ended_at is None
    copied = Path(Attempt.objects.get(job=job).log_path)
    both = {"0: iteration 10 | loss 1.0", "1: iteration 10 | loss 1.0"}  # a dead kubelet shows no output any more
    once(lambda: copied.exists() and both <= set(copied.read_text().splitlines()), "output of both ranks is copied")

    victim, pid = ranks(job, 1)[1]
    os.kill(kubernetes.node_pid(victim), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)

    again = once(lambda: Attempt.objects.filter(job=job, number=2, confirmed_at__isnull=False).first(), "a new attempt")
    saved = Decision.objects.get().checkpoint_step
    once(lambda: Checkpoint.objects.filter(attempt=again, step__gt=saved).exists(), "a step further")

    decision = Decision.objects.get()
    assert (decision.action, decision.mode, decision.state) == ("restart elsewhere", "act", "done")
    assert decision.drain == [victim] and saved >= 40
    assert Attempt.objects.get(job=job, number=1).state == "NODE_FAIL"
    assert victim not in set(again.allocations.values_list("node__name", flat=True))
    assert victim not in {node for node, _ in ranks(job, 2).values()}
    log = Path(Attempt.objects.get(job=job, number=1).log_path).read_text().splitlines()
    assert [line for line in log if line.startswith("0: iteration 1")] == list(
        dict.fromkeys(line for line in log if line.startswith("0: iteration 1"))
    )
    assert both <= set(log)
    assert any(line.startswith("acme: pod ") and victim in line for line in log), log[-10:]
    assert diagnose_text("\n".join(log)).root_cause == "NodeFailure"
    assert Incident.objects.get().subject == victim
    cordoned = once(lambda: is_cordoned(kubernetes, victim), "the node is cordoned")
    assert cordoned and NodeFlag.DRAIN in Node.objects.get(name=victim).flags
    stop(cluster, backend, job)
    seen = Job.objects.exclude(foreign_id="").values_list("name", "state")
    assert set(seen) == {("default/pod/bare", "RUNNING"), ("default/pytorchjob/llama", "RUNNING")}
    assert is_running(kubernetes, "bare") and is_running(kubernetes, "llama-master-0")


def start_work_of_others(kubernetes) -> None:
    """A bare pod, and a PyTorchJob with the pod that its operator would create; both on node4."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "pytorchjobs", "singular": "pytorchjob", "kind": "PyTorchJob"}
    kubernetes.create(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "pytorchjobs.kubeflow.org"},
            "spec": {"group": "kubeflow.org", "scope": "Namespaced", "names": names, "versions": [version]},
        }
    )
    kubernetes.kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org")
    replicas = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": foreign_pod("x")["spec"]}}}}
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "llama"}}
    until(lambda: created(kubernetes, {**owner, "spec": replicas}), what="PyTorchJobs are served")
    uid = kubernetes.get("pytorchjob", "llama")["metadata"]["uid"]
    reference = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "llama", "uid": uid, "controller": True}
    master = foreign_pod("llama-master-0", gpus=1, node="node4")
    master["metadata"]["ownerReferences"] = [reference]
    kubernetes.create(foreign_pod("bare", gpus=1, node="node4"), master)


def created(kubernetes, item) -> bool:
    """Whether the object could be created: kubectl may not know a new kind yet."""
    try:
        kubernetes.create(item)
    except AssertionError:
        return False
    return True


def is_cordoned(kubernetes, node: str) -> bool:
    return kubernetes.get("node", node)["spec"].get("unschedulable") is True


def is_running(kubernetes, pod: str) -> bool:
    return kubernetes.get("pod", pod)["status"]["phase"] == "Running"


def stop(cluster, backend, job: Job) -> None:
    job.refresh_from_db()
    job_actions.cancel(job, author=make.author())

    def ended():
        run_turn(cluster.pk, "test", lambda row: backend)
        return not Attempt.objects.filter(job=job, ended_at=None).exists()

    until(ended, what="the end of the job")
