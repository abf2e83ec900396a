"""`python -m bench routing`: what a feature costs, beside the plain path and beside RabbitMQ.

cases      the features as data: an exchange, its queues and bindings, what each message carries
ours       three of our nodes; published to by our client in a process of its own
rabbit     three of RabbitMQ's; published to by the C client of the other benchmarks
command    rounds, the table, the result file
"""
