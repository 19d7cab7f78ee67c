"""REST API endpoints of jobs, nodes, clusters, teams, logs and progress, and the shapes of their data."""
