"""Queues and Spark: see docs/pipeline.md.

java, session        a Java that Spark runs on, and a session with the settings that jobs rely on
options              what a user may ask of the source, checked before anything is connected;
sink_options         and of the sink
offsets              how far a query has come in each queue, ranges, and what has been lost
schema               the columns of a row, for Spark and for Arrow
connecting, leases   one client for each process; the right to read and acknowledge a queue
ending               what a streaming query leaves when it has ended
doctor               whether all is there that a pipeline needs
cli, jobs, sinks     the command line `ringmq-pipeline` and the work of its verbs
"""
