"""Access to clusters: the Backend interface, its slurmrestd adapter, and the reader of GPU telemetry."""
