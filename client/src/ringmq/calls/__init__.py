"""Calls to nodes: requests, connections, which node to ask, and what a failure means."""
