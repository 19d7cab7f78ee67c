"""The manifests that give Acme its permissions on a Kubernetes cluster. Pure.

Mode observe may read nodes, pods and the kinds of workloads that Acme knows, in all namespaces, and nothing else: no
secrets, no logs, nothing that writes. Mode drive may also run jobs in the namespaces that it names, cordon nodes, and
read events. Kinds that a cluster does not serve do no harm in a role.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from ..discovery import QUOTA_GROUP, QUOTA_KIND, WORKLOAD_KINDS

OBSERVER, DRIVER = "acme-observer", "acme-driver"
DRIVER_NAMESPACE = "acme"  # of the service account; jobs in their own namespaces cannot mount its token
RBAC = "rbac.authorization.k8s.io"
READ_VERBS, WRITE_VERBS = ("get", "list", "watch"), ("create", "patch", "delete")
DISCOVERY_PATHS = ["/version", "/apis", "/apis/*"]
# In the namespaces of jobs: API group, resources, verbs
JOB_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("batch", ("jobs",), WRITE_VERBS),
    ("jobset.x-k8s.io", ("jobsets",), WRITE_VERBS),
    ("", ("pods",), WRITE_VERBS),
    ("", ("configmaps",), (*READ_VERBS, *WRITE_VERBS)),
    ("", ("services",), ("create",)),
    ("", ("pods/binding", "pods/eviction"), ("create",)),
    ("", ("pods/exec",), ("create", "get")),  # get: for connections over websockets
    ("", ("pods/log",), ("get",)),
)
HEADER = """\
# {what}
# Apply this file with kubectl. Then write a kubeconfig with the token of the secret below to a directory of
# ACME_TOKEN_DIRS on the server that runs Acme:
#   SECRET="kubectl -n {namespace} get secret {name} -o go-template --template"
#   kubectl config --kubeconfig acme.kubeconfig set-cluster c --server https://HOST:6443
#   kubectl config --kubeconfig acme.kubeconfig set clusters.c.certificate-authority-data \\
#     "$($SECRET '{{{{index .data "ca.crt"}}}}')"
#   kubectl config --kubeconfig acme.kubeconfig set-credentials u \\
#     --token "$($SECRET '{{{{.data.token | base64decode}}}}')"
#   kubectl config --kubeconfig acme.kubeconfig set-context acme --cluster c --user u
#   kubectl config --kubeconfig acme.kubeconfig use-context acme
"""
OBSERVES = "Permissions of Acme in mode observe: reads nodes, pods and workloads of all namespaces, and writes nothing."
DRIVES = "Permissions of Acme in mode drive: as in mode observe, runs jobs in {namespaces}, and cordons nodes."


def observe_manifest(namespace: str) -> str:
    """YAML for `kubectl apply -f -`."""
    role = _role("ClusterRole", OBSERVER, _observe_rules())
    objects = [_namespace(namespace), *_account(OBSERVER, namespace), role, _binding(role, OBSERVER, namespace)]
    return _manifest(OBSERVES, OBSERVER, namespace, objects)


def drive_manifest(namespaces: Sequence[str]) -> str:
    """YAML for `kubectl apply -f -`. Jobs run in these namespaces."""
    cordons = [_rule("", ("nodes",), ("patch",)), _rule("", ("events",), READ_VERBS)]
    cluster_role = _role("ClusterRole", DRIVER, [*_observe_rules(), *cordons])
    objects = [
        *map(_namespace, dict.fromkeys([DRIVER_NAMESPACE, *namespaces])),
        *_account(DRIVER, DRIVER_NAMESPACE),
        cluster_role,
        _binding(cluster_role, DRIVER, DRIVER_NAMESPACE),
    ]
    for namespace in namespaces:
        role = _role("Role", DRIVER, [_rule(*rule) for rule in JOB_RULES], namespace)
        objects += [role, _binding(role, DRIVER, DRIVER_NAMESPACE, namespace)]
    return _manifest(DRIVES.format(namespaces=", ".join(namespaces)), DRIVER, DRIVER_NAMESPACE, objects)


def _manifest(what: str, name: str, namespace: str, objects: Sequence[dict[str, Any]]) -> str:
    documents = yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=False)
    return f"{HEADER.format(what=what, namespace=namespace, name=name)}---\n{documents}"


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _account(name: str, namespace: str) -> list[dict[str, Any]]:
    """A service account, and a secret that Kubernetes fills with a token that does not expire."""
    annotations = {"kubernetes.io/service-account.name": name}
    metadata = {"name": name, "namespace": namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**secret, "metadata": {**metadata, "annotations": annotations}},
    ]


def _observe_rules() -> list[dict[str, Any]]:
    kinds = {"": ("Node", "Pod"), **WORKLOAD_KINDS, QUOTA_GROUP: (QUOTA_KIND,)}
    rules = [_rule(group, tuple(f"{kind.lower()}s" for kind in names), READ_VERBS) for group, names in kinds.items()]
    return [*rules, {"nonResourceURLs": list(DISCOVERY_PATHS), "verbs": ["get"]}]


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _role(kind: str, name: str, rules: Sequence[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": list(rules)}


def _binding(role: dict[str, Any], account: str, account_namespace: str, namespace: str = "") -> dict[str, Any]:
    metadata = {"name": account, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{role['kind']}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role["kind"], "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": account_namespace}],
    }
