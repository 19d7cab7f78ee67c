"""What an operator should check when a Kubernetes cluster does not answer as expected. Pure."""

from __future__ import annotations

from jobs.core.cluster_kinds import MANIFEST_COMMAND


def connection_advice(message: str) -> str:
    """Advice for the usual cause of this error message."""
    words = message.lower()
    if "http 401" in words:
        return "The credentials were rejected. Check that the token or certificate is current and of this cluster."
    if "http 403" in words or "forbidden" in words:
        return f"Acme may not read this. Grant it: {MANIFEST_COMMAND}"
    if "certificate" in words or "ssl" in words:
        return "Check certificate-authority(-data) and tls-server-name in the kubeconfig."
    if "kubeconfig" in words or "plugin" in words or "token" in words:
        return "Correct the kubeconfig file, for example with the one that kubernetes_manifest describes."
    if "json" in words or "http 404" in words:
        return "Another program listens at this address. Check the server in the kubeconfig."
    return "Check that kubectl with the same kubeconfig works from this machine."
