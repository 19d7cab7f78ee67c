"""An outage of the simulated cluster's server during turns. For Slurm see backends/test_contract.py."""

from __future__ import annotations

from contextlib import closing

from tests.scheduling.away import Away, check_outage_costs_no_job
from tests.scheduling.simulation.slurm.running import ClusterProcess


def test_outage_of_two_minutes_costs_no_job(db, tmp_path):
    with ClusterProcess(tmp_path, "--nodes", "2") as slurm, closing(slurm.backend()) as backend:
        nodes = tuple(node.name for node in backend.nodes())
        away = Away(backend=backend, nodes=nodes, output=slurm.log_root, cut=slurm.kill, mend=slurm.start)
        check_outage_costs_no_job(away)
