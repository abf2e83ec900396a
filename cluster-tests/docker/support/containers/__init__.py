"""Clusters in containers for the tests of this folder: the engine, the networks, the verbs."""
