"""Tests of the cluster adapter, against recorded responses, a fake server, the simulator and a real Slurm."""
