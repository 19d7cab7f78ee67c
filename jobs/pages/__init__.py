"""Pages of jobs, nodes, the GPU map, teams and the user account."""
