"""The kubeconfig of the demo's Kubernetes cluster. JSON is YAML, so no YAML has to be written. Pure.

python -m acmeweb.services.kubeconfig NAME SERVER TOKEN_FILE     prints one, for containers
"""

from __future__ import annotations

import json


def kubeconfig_text(name: str, server: str, token: str) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": "acme", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "acme"}}],
        "current-context": name,
    }
    return json.dumps(config, indent=1) + "\n"
