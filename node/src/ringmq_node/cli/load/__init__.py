"""Publishing under a window, its latencies, and the tally that judges what came out.

`bench`, `demo` and the container tests share these.
"""
