"""Nodes that sleep on a simulated Kubernetes cluster. The site, here the test, turns the machines off and on."""

from __future__ import annotations

from contextlib import closing

from jobs.core.lifecycle import NodeFlag, NodeState
from tests.patience import until
from tests.scheduling.backends.kubernetes.simulated_kubernetes import open_kubernetes, prepare
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess

NODE = "kalos-001"


def test_node_that_sleeps_and_wakes_is_opened_again(tmp_path):
    with (
        KubernetesProcess(tmp_path / "state", "--nodes", "2") as cluster,
        closing(open_kubernetes(prepare(cluster))) as backend,
    ):

        def seen():
            backend.advance_jobs()
            node = next(node for node in backend.nodes() if node.name == NODE)
            return node.state, set(node.flags)

        def machine(action):
            cluster.call("POST", f"/machines/{NODE}", {"action": action})

        def is_cordoned():
            return bool(cluster.call("GET", f"/api/v1/nodes/{NODE}")["spec"].get("unschedulable"))

        backend.power_down(NODE)
        assert (seen(), is_cordoned()) == ((NodeState.IDLE, {NodeFlag.POWERING_DOWN}), True)
        machine("power-off")
        until(lambda: seen() == (NodeState.IDLE, {NodeFlag.POWERED_DOWN}), what="asleep")

        backend.power_up(NODE)
        assert seen() == (NodeState.IDLE, {NodeFlag.POWERING_UP})
        machine("repair")
        until(lambda: seen() == (NodeState.IDLE, set()), what="awake")
        assert not is_cordoned()

        backend.power_up(NODE)
        assert (seen(), is_cordoned()) == ((NodeState.IDLE, set()), False)
