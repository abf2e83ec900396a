"""`python -m bench pipeline`: what Spark makes of queues, beside the broker on the same cores.

cases      what is measured, as data: each with its upper bound and its goal
generated  rows that cost nothing, and a sink that keeps nothing, for the upper bounds
messages   the table that is replayed, as Parquet
place      the cluster, the session and the folders of a run
work       what each case does
histories  a history of any size, and `verify` in a heap of its own
measured   one run of one case, with its processor time
rounds     all cases by rounds, and some of them at each size and number of executors
report     the tables, the picture, the result as JSON
notes      what a run has so far; what fails in it
saved      a result file, and what a run of some rows keeps of it
command    the command line
"""
