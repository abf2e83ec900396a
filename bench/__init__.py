"""The benchmark: three of our nodes beside three of RabbitMQ's, in one run.

`python -m bench` from the root of the repository, or `make bench`. `bench/README.md` explains the
figures and how to read them.
"""
