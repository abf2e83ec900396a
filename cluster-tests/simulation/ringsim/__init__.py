"""A whole ring in one thread: virtual time, network, disks, registry, and what must hold."""
