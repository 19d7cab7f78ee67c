"""A simulated datacenter: machines, the servers of Slurm and Kubernetes clusters on them, drills and the demo."""
