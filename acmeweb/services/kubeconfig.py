"""The kubeconfig of the demo's Kubernetes cluster. JSON is YAML, so no YAML has to be written. Pure.

python -m acmeweb.services.kubeconfig NAME SERVER TOKEN_FILE     prints one, for containers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


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


if __name__ == "__main__":
    _, name, server, token_file = sys.argv
    print(kubeconfig_text(name, server, Path(token_file).read_text().strip()), end="")
