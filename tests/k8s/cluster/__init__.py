"""A real Kubernetes cluster of one node, for tests."""
