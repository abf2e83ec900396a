"""Calls to nodes: requests, connections, the choice of a node, and failures as exceptions."""
