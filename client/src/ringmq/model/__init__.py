"""The values that calls return: messages, queues, and the cluster.

Plain and frozen. Times are milliseconds and sizes bytes unless a name says otherwise.
"""
