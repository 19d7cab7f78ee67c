"""The nodes of a simulated Kubernetes cluster: kubelets, pods that run, and executions. Pure."""
