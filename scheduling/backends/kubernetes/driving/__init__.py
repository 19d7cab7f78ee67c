"""Running jobs on a Kubernetes cluster: probing its API, submitting, placing, ending and evicting attempts."""
