"""The main job: a cluster, a load, a murder, and the count of what was lost."""
