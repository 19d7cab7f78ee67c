"""A cluster server with the API of slurmrestd, whose jobs are simulated or run on this machine."""
