"""What an operator should check when a Slurm cluster does not answer a ping as expected. Pure."""

from __future__ import annotations


def connection_advice(message: str) -> str:
    """Advice for the usual cause of this error message."""
    words = message.lower()
    if "401" in words or "403" in words or "authenticat" in words or "token" in words:
        return (
            "The token was rejected. Check AuthAltTypes=auth/jwt, the JWT key, and that the user exists on the cluster."
        )
    if "speaks none of" in words:
        return "Start slurmrestd 22.05 or newer with the plugins openapi/slurmctld and data_parser."
    if "controller" in words:
        return "slurmrestd runs, but slurmctld does not respond. Check slurmctld, and SlurmctldHost in slurm.conf."
    if "json" in words or "html" in words or "404" in words:
        return "Another program listens on this port. Check the port of slurmrestd."
    return "Check the log of slurmrestd. To repeat the request by hand: curl …/slurm/v0.0.40/ping"
