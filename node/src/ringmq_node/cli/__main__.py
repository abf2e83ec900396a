"""`python -m ringmq_node.cli`: the same as `ringmq`, for where that isn't on the path."""

from ringmq_node.cli import main

main()
