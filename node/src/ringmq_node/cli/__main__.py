"""`python -m ringmq_node.cli`: the same as `ringmq`, where no such script is on the path."""

from ringmq_node.cli import main

main()
