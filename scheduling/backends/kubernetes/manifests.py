"""The manifest that gives Acme its permissions on a Kubernetes cluster. Pure.

Mode observe may read nodes, pods and the kinds of workloads that Acme knows, in all namespaces, and nothing else: no
secrets, no logs, nothing that writes. Kinds that a cluster does not serve do no harm in a role.
"""

from __future__ import annotations

from typing import Any

import yaml

from .discovery import QUOTA_GROUP, QUOTA_KIND, WORKLOAD_KINDS

OBSERVER = "acme-observer"
READ_VERBS = ["get", "list", "watch"]
DISCOVERY_PATHS = ["/version", "/apis", "/apis/*"]
HEADER = """\
# Permissions of Acme in mode observe: reads nodes, pods and workloads of all namespaces, and writes nothing.
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


def observe_manifest(namespace: str) -> str:
    """YAML for `kubectl apply -f -`."""
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": OBSERVER, "namespace": namespace}},
        _token_secret(namespace),
        _role(),
        _binding(namespace),
    ]
    documents = yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=False)
    return f"{HEADER.format(namespace=namespace, name=OBSERVER)}---\n{documents}"


def _token_secret(namespace: str) -> dict[str, Any]:
    """Kubernetes fills it with a token that does not expire."""
    annotations = {"kubernetes.io/service-account.name": OBSERVER}
    metadata = {"name": OBSERVER, "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": metadata}


def _role() -> dict[str, Any]:
    kinds = {"": ("Node", "Pod"), **WORKLOAD_KINDS, QUOTA_GROUP: (QUOTA_KIND,)}
    rules: list[dict[str, Any]] = [
        {"apiGroups": [group], "resources": [f"{kind.lower()}s" for kind in names], "verbs": list(READ_VERBS)}
        for group, names in kinds.items()
    ]
    rules.append({"nonResourceURLs": list(DISCOVERY_PATHS), "verbs": ["get"]})
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": OBSERVER},
        "rules": rules,
    }


def _binding(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": OBSERVER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": OBSERVER},
        "subjects": [{"kind": "ServiceAccount", "name": OBSERVER, "namespace": namespace}],
    }
