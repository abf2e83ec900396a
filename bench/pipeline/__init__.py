"""`python -m bench pipeline`: what Spark makes of queues, beside the broker on the same cores.

cases      what is measured, as data: each with its upper bound and its goal
generated  rows that cost nothing, and a sink that keeps nothing, for the upper bounds
messages   the table that is replayed, as Parquet
place      the cluster, the session and the folders of a run
work       what each case does
measured   one run of one case, with its processor time
report     the table, the picture, the result file
command    the rounds
"""
