"""The benchmark: three of our nodes beside three of RabbitMQ's, in one run.

`python -m bench` from the root of the repository, or `make bench`. How to read
what comes out is in `bench/README.md`.
"""
