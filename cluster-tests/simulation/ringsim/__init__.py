"""A whole ring in one thread: virtual time, network, disks, registry, and the rules that hold."""
