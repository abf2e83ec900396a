"""RabbitMQ from Debian as a peer: its cluster, and a publisher in C."""
