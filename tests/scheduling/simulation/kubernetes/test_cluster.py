"""The whole cluster: it depends on time and requests only, survives a restart, and never gives a GPU away twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.cluster import KubernetesCluster
from scheduling.simulation.kubernetes.objects import value_at
from scheduling.simulation.kubernetes.persistence import ClusterDatabase
from scheduling.simulation.kubernetes.values import ClusterSnapshot
from scheduling.simulation.machines.faults import FaultKind
from scheduling.simulation.machines.scripts.play import SimulatedExecutor
from tests.properties import examples

from .make import NODES, NOW, Client, client, job, pod, snapshot

JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"


def busy(api: Client) -> Client:
    """A cluster with pods and Jobs that end at different times."""
    for number in range(6):
        api.call("POST", PODS, pod(f"p{number}", node=NODES[number % 4], gpus=3, seconds=7 * number, end="FAILED:2"))
    api.call("POST", JOBS, job("plain", gpus=2, seconds=11, completions=5, parallelism=2))
    api.call(
        "POST", JOBS, job("gang", gpus=2, seconds=300, completions=2, parallelism=2, completionMode="Indexed",
                          env={"NNODES": "2"})
    )  # fmt: skip
    return api


def without_versions(taken: ClusterSnapshot) -> list:
    """The objects without versions, which count the steps in between."""
    return [
        (key, {**found, "metadata": {**found["metadata"], "resourceVersion": "", "uid": ""}})
        for key, found in taken.objects
        if key.resource not in ("events", "nodes")
    ]


def restarted(cluster: KubernetesCluster, now: float) -> Client:
    again = KubernetesCluster(cluster.take_snapshot(), SimulatedExecutor(), now)
    again.begin(now)
    api = Client(again)
    api.now = now
    return api


def test_one_long_step_equals_many_short_steps():
    stepping, leaping = busy(client()), busy(client())

    for _ in range(400):
        stepping.after(0.5)
    leaping.after(200)

    assert [one.step for one in stepping.cluster.kubelets.runtimes.all()] == [
        one.step for one in leaping.cluster.kubelets.runtimes.all()
    ]
    assert without_versions(stepping.cluster.take_snapshot()) == without_versions(leaping.cluster.take_snapshot())


def test_restart_continues_with_what_ran():
    api = busy(client()).after(20)
    before = {one["metadata"]["name"]: one["status"]["phase"] for one in api.pods()}
    again = restarted(api.cluster, api.now).after(0)

    assert {one["metadata"]["name"]: one["status"]["phase"] for one in again.pods()} == before
    api.after(400)
    again.after(400)
    counts = [Counter(one["status"]["phase"] for one in cluster.pods()) for cluster in (api, again)]
    assert counts[0] == counts[1] and not counts[0]["Running"]


def test_deadline_of_a_pod_counts_after_a_restart():
    api = client()
    api.create_pod(node="kalos-001", activeDeadlineSeconds=30)

    failed = restarted(api.after(5).cluster, api.now).after(30).pod()

    assert failed["status"]["reason"] == "DeadlineExceeded"


def test_restart_during_a_deletion_finishes_it():
    api = client()
    api.create_pod(node=NODES[0])
    api.after(5).call("DELETE", f"{PODS}/train")

    again = restarted(api.cluster, api.now)

    assert again.after(31).pod() is None


def test_database_restores_the_same_cluster(tmp_path):
    database = ClusterDatabase(tmp_path / "cluster.sqlite3")
    database.begin(snapshot())
    api = busy(client())
    api.cluster.kubelets.set_machine(next(iter(api.cluster.machines)), NOW)
    for seconds in (3, 10, 200):
        api.after(seconds)
        database.write(api.cluster.take_changes())
    database.reserve_versions(api.cluster.store.version)
    database.close()

    stored = ClusterDatabase(tmp_path / "cluster.sqlite3")
    found, taken = stored.load(), api.cluster.take_snapshot()
    stored.close()

    assert found is not None and found.version > taken.version
    assert dict(found.objects) == dict(taken.objects)
    assert {one.uid: one for one in found.pods} == {one.uid: one for one in taken.pods}
    assert (found.machines, found.executions, found.clock) == (taken.machines, taken.executions, taken.clock)


class ClusterMachine(RuleBasedStateMachine):
    """Random requests, faults and time steps."""

    def __init__(self) -> None:
        super().__init__()
        self.api, self.count = client(), 0

    nodes = st.sampled_from(["", *NODES])

    ends = st.sampled_from(["COMPLETED", "FAILED:3"])
    policies = st.sampled_from(["Never", "OnFailure", "Always"])

    @rule(node=nodes, gpus=st.integers(0, 9), seconds=st.integers(0, 40), end=ends, policy=policies)
    def create_pod(self, node, gpus, seconds, end, policy):
        self.count += 1
        body = pod(f"p{self.count}", node=node, gpus=gpus, seconds=seconds, end=end, restartPolicy=policy)
        self.api.call("POST", PODS, body)

    @rule(size=st.integers(1, 4), gpus=st.integers(0, 8), seconds=st.integers(0, 40), suspend=st.booleans())
    def create_job(self, size, gpus, seconds, suspend):
        self.count += 1
        body = job(f"j{self.count}", gpus=gpus, seconds=seconds, completions=size, parallelism=size, suspend=suspend,
                   completionMode="Indexed", env={"NNODES": str(size)})  # fmt: skip
        self.api.call("POST", JOBS, body)

    @rule(place=st.integers(0, 50), grace=st.sampled_from([None, 0, 1]), jobs=st.booleans())
    def delete(self, place, grace, jobs):
        path = JOBS if jobs else PODS
        found = self.api.call("GET", path)["items"]
        if found:
            name = found[place % len(found)]["metadata"]["name"]
            options = {} if grace is None else {"gracePeriodSeconds": grace}
            self.api.call("DELETE", f"{path}/{name}", {**options, "propagationPolicy": "Background"})

    @rule(node=st.sampled_from(NODES), what=st.sampled_from(["silent", "back", "off", "repair", "gpu", "delete"]))
    def break_node(self, node, what):
        cluster, now = self.api.cluster, self.api.now
        try:
            match what:
                case "silent" | "back":
                    cluster.set_kubelet(node, what == "back", now)
                case "off":
                    cluster.inject_fault(FaultKind.DEATH, now, node=node)
                case "repair":
                    cluster.repair(node, now)
                case "gpu":
                    cluster.inject_fault(FaultKind.OFF_BUS, now, node=node)
                case "delete":
                    self.api.call("DELETE", f"/api/v1/nodes/{node}")
        except ApiError:
            return

    @rule(seconds=st.sampled_from([0.1, 1, 5, 20, 60, 400]))
    def pass_time(self, seconds):
        self.api.after(seconds)

    @rule()
    def restart(self):
        self.api = restarted(self.api.cluster, self.api.now)

    @invariant()
    def no_gpu_is_held_twice(self):
        held = [
            (one.node, gpu)
            for one in self.api.cluster.kubelets.runtimes.all()
            if one.holds_resources
            for gpu in one.gpus
        ]
        assert len(held) == len(set(held))

    @invariant()
    def running_programs_have_the_pods_that_run(self):
        runtimes = self.api.cluster.kubelets.runtimes
        for execution in self.api.cluster.executions:
            for uid in execution.pods:
                found = runtimes.of_uid(uid)
                assert found is None or found.execution in (0, execution.id) or uid in execution.stopping

    @invariant()
    def final_pods_stay_final(self):
        for found in self.api.pods():
            phase = value_at(found, "status", "phase")
            assert phase in ("Pending", "Running", "Succeeded", "Failed")

    def teardown(self):
        """In the end, everything that can end ends, and nothing is left behind."""
        api = self.api
        for node in NODES:
            api.cluster.repair(node, api.now)
        for path in (JOBS, PODS):
            api.call("DELETE", path, {"propagationPolicy": "Background"})
        api.after(600)
        assert (api.pods(), list(api.cluster.executions)) == ([], [])
        assert list(api.cluster.kubelets.runtimes.all()) == []


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = examples(30, stateful_step_count=25)
