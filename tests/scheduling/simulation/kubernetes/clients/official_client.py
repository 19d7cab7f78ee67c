"""A program for the interpreter that has the official Python client: drives a cluster and prints what it saw as JSON.

    python official_client.py KUBECONFIG

It is no test: `test_official_client.py` runs it. It imports nothing of this project.
"""

from __future__ import annotations

import json
import sys

from kubernetes import client, config, watch
from kubernetes.stream import stream

NAMESPACE = "default"


def main(path: str) -> None:
    config.load_kube_config(path)
    core, batch, policy = client.CoreV1Api(), client.BatchV1Api(), client.PolicyV1Api()
    seen = {
        "version": client.VersionApi().get_code().git_version,
        "nodes": [node.metadata.name for node in core.list_node().items],
        "page": len(core.list_node(limit=1).items),
    }
    batch.create_namespaced_job(NAMESPACE, gang())
    seen["gated"] = wait_for(core, lambda pod: pod.spec.scheduling_gates and pod.status.phase == "Pending", 2)
    for rank, name in enumerate(seen["gated"]):
        core.patch_namespaced_pod(name, NAMESPACE, [{"op": "remove", "path": "/spec/schedulingGates"}])
        target = client.V1ObjectReference(kind="Node", name=seen["nodes"][rank])
        binding = client.V1Binding(metadata=client.V1ObjectMeta(name=name), target=target)
        core.create_namespaced_pod_binding(name, NAMESPACE, binding, _preload_content=False)
    running = wait_for(core, lambda pod: pod.status.phase == "Running", 2)
    seen["indexes"] = [labels_of(core, name)["batch.kubernetes.io/job-completion-index"] for name in running]
    seen["printed"] = stream(
        core.connect_get_namespaced_pod_exec, running[1], NAMESPACE,
        command=["sh", "-c", "echo index $JOB_COMPLETION_INDEX"], stdout=True, stderr=True, stdin=False, tty=False,
    )  # fmt: skip
    seen["log"] = core.read_namespaced_pod_log(running[0], NAMESPACE, timestamps=True).splitlines()[0].split(" ", 1)[1]
    seen["events"] = sorted(event_reasons(core, running[0]))
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=running[1], namespace=NAMESPACE))
    core.create_namespaced_pod_eviction(running[1], NAMESPACE, eviction)
    seen["budgets"] = len(policy.list_namespaced_pod_disruption_budget(NAMESPACE).items)
    seen["end"] = end_of_job(batch)
    batch.delete_namespaced_job("gang", NAMESPACE, propagation_policy="Foreground")
    print(json.dumps(seen))


def gang() -> client.V1Job:
    main_container = client.V1Container(
        name="main", image="registry.example/train:1",
        resources=client.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"}),
        env=[client.V1EnvVar(name="NNODES", value="2"), client.V1EnvVar(name="SIM_DURATION_S", value="600")],
    )  # fmt: skip
    spec = client.V1PodSpec(
        containers=[main_container], restart_policy="Never", scheduler_name="acme",
        scheduling_gates=[client.V1PodSchedulingGate(name="acme/gang")],
    )  # fmt: skip
    template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels={"app": "gang"}), spec=spec)
    job = client.V1JobSpec(completions=2, parallelism=2, completion_mode="Indexed", backoff_limit=0, template=template)
    return client.V1Job(metadata=client.V1ObjectMeta(name="gang"), spec=job)


def wait_for(core: client.CoreV1Api, wanted, count: int) -> list[str]:
    """The names of the gang's pods when so many of them are as wanted, in order of rank."""
    found = {}
    for event in watch.Watch().stream(
        core.list_namespaced_pod, NAMESPACE, label_selector="app=gang", timeout_seconds=60
    ):
        pod = event["object"]
        found.pop(pod.metadata.name, None)
        if event["type"] != "DELETED" and wanted(pod):
            found[pod.metadata.name] = pod.metadata.labels["batch.kubernetes.io/job-completion-index"]
        if len(found) == count:
            return sorted(found, key=lambda name: int(found[name]))
    raise SystemExit(f"{len(found)} of {count} pods are as wanted")


def labels_of(core: client.CoreV1Api, name: str) -> dict[str, str]:
    return core.read_namespaced_pod(name, NAMESPACE).metadata.labels


def event_reasons(core: client.CoreV1Api, name: str) -> set[str]:
    return {event.reason for event in core.list_namespaced_event(
        NAMESPACE, field_selector=f"involvedObject.name={name},type=Normal").items}  # fmt: skip


def end_of_job(batch: client.BatchV1Api) -> str:
    options = {"field_selector": "metadata.name=gang", "timeout_seconds": 60}
    for event in watch.Watch().stream(batch.list_namespaced_job, NAMESPACE, **options):
        ends = [one for one in event["object"].status.conditions or [] if one.type == "Failed" and one.status == "True"]
        if ends:
            return ends[0].reason
    raise SystemExit("the job does not end")


if __name__ == "__main__":
    main(sys.argv[1])
