"""`python -m bench profile`: where the nodes' Python time goes, by package.

`command` runs the cluster, `hook/sitecustomize.py` is in the nodes' processes, `shares` adds up.
"""
