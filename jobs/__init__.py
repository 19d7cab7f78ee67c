"""What users requested, what exists and what happened: jobs, nodes, clusters, teams and their Events."""
