"""Queues and Spark: see docs/pipeline.md for the parts that exist.

options     what a user may ask of the source, checked before anything is connected
offsets     how far a query has come in each queue, ranges, and what has been lost
schema      the columns of a row, for Spark and for Arrow
"""
