"""Faults that only Kubernetes clusters have: watches, tokens, kubelets, nodes, and pods that somebody else stops."""

from __future__ import annotations

from random import Random

from tests.chaos.clusters.kubernetes import KubernetesCluster
from tests.chaos.site import Fault, Site, lasting_strike, on

LATE_TOKEN_S = (1.0, 6.0)  # between the end of the old token and the new file
FORGETFUL_S = (2.0, 4.0)
SILENT_S = (6.0, 12.0)  # more than the grace period of a node
GONE_S = (4.0, 10.0)
LAG_S = 60.0
LAGGING_S = (60.0, 90.0)  # how long watches lag
LAGGING_SHARES = (0.5, 1.0)  # processes and their collections then disagree, or all are late


def delete_pod(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    """Delete a pod of a job, gently or by force."""
    pods = cluster.our_pods()
    return bool(pods) and cluster.delete_pod(dice.choice(pods), grace_s=dice.choice((0, 1, 30)))


def evict_pod(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    pods = cluster.our_pods()
    return bool(pods) and cluster.evict_pod(dice.choice(pods))


def compact(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    """Forget the history while no watch runs, so that no watch can continue where it stopped."""
    with cluster.proxy.held_watches():
        site.over.wait(dice.uniform(*FORGETFUL_S))
        return cluster.compact()


def delay_watches(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    """Delay the events of some watches, or of all, while lists and single objects stay current."""
    before = cluster.proxy.damaged
    with cluster.proxy.lagging_watches(LAG_S, dice.choice(LAGGING_SHARES)):
        site.over.wait(dice.uniform(*LAGGING_S))
    return cluster.proxy.damaged > before


def rotate_token(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    """End the token before there is a new one in the file."""
    if not cluster.revoke_tokens():
        return False
    site.over.wait(dice.uniform(*LATE_TOKEN_S))
    return cluster.write_new_token()


def silence_kubelet(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    """Stop a kubelet for longer than its node may be silent. Its containers go on."""
    nodes = cluster.nodes()
    if not nodes:
        return False
    node = dice.choice(nodes)
    silenced = cluster.silence(node)
    site.over.wait(dice.uniform(*SILENT_S))
    cluster.repair(node)
    return silenced


def delete_node(site: Site, cluster: KubernetesCluster, dice: Random) -> bool:
    """Delete a node while its kubelet runs, or after its machine was lost. Later it is registered again."""
    nodes = cluster.nodes()
    if not nodes:
        return False
    node = dice.choice(nodes)
    if dice.random() < 0.5:
        cluster.lose_machine(node)
    deleted = cluster.delete_node(node)
    site.over.wait(dice.uniform(*GONE_S))
    cluster.repair(node)
    return deleted


FAULTS = (
    Fault(
        name="pod",
        sentence="somebody else deletes a pod of a job, gently or by force",
        strike=on(KubernetesCluster, delete_pod),
        kind=KubernetesCluster,
    ),
    Fault(
        name="evicted",
        sentence="somebody else evicts a pod of a job",
        strike=on(KubernetesCluster, evict_pod),
        kind=KubernetesCluster,
    ),
    Fault(
        name="watch",
        sentence="watches are cut in the middle of an object",
        strike=lasting_strike(KubernetesCluster, lambda _, one, __: one.proxy.cut_watches(), (4, 8)),
        lasting=True,
        times=2,
        kind=KubernetesCluster,
    ),
    Fault(
        name="lagging_watch",
        sentence="the events of some watches, or of all, arrive a minute late, while all other responses are current",
        strike=on(KubernetesCluster, delay_watches),
        lasting=True,
        quick=False,
        kind=KubernetesCluster,
    ),
    Fault(
        name="compacted",
        sentence="etcd forgets its history while no watch runs, so that all are answered with 410",
        strike=on(KubernetesCluster, compact),
        lasting=True,
        times=2,
        kind=KubernetesCluster,
    ),
    Fault(
        name="token",
        sentence="Acme's token ends some seconds before a new one is in the file",
        strike=on(KubernetesCluster, rotate_token),
        lasting=True,
        times=2,
        kind=KubernetesCluster,
    ),
    Fault(
        name="kubelet",
        sentence="a kubelet is silent until its node is NotReady, while its containers go on",
        strike=on(KubernetesCluster, silence_kubelet),
        lasting=True,
        times=2,
        kind=KubernetesCluster,
    ),
    Fault(
        name="node",
        sentence="a node is deleted while pods run on it, with or without its machine, and registered again later",
        strike=on(KubernetesCluster, delete_node),
        lasting=True,
        times=2,
        kind=KubernetesCluster,
    ),
)
