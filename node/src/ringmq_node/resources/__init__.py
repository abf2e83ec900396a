"""What a node uses of its machine, and what it does when that becomes short.

`memory` and `disk` decide, without I/O or a clock; `limits` reads the settings;
`cgroup` reads what the kernel says; `monitor` is the task that joins them.
"""

from ringmq_node.resources.monitor import Alarm, Paged, ResourceMonitor, Usage

__all__ = ["Alarm", "Paged", "ResourceMonitor", "Usage"]
