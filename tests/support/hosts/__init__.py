"""Several hosts on one machine, for tests: each has its own name, network and mounts. Root is not needed.

    from hosts import Hosts, enter_namespaces

    enter_namespaces()  # first: runs this script again in namespaces of its own
    with Hosts(2) as hosts:
        hosts[1].link.delay(10)  # milliseconds, each way
        server = hosts[0].start(["./server"])
        print(hosts[1].run(["./client", "node0"]))

The hosts are node0, node1, ... with the addresses 10.77.0.1, 10.77.0.2, ...; a bridge joins their links.
All see the same files, as over a shared file system, until `Host.private_folder` hides one.
"""
from .errors import HostsError
from .hosts import Hosts
from .namespaces import enter_namespaces

__all__ = ["Hosts", "HostsError", "enter_namespaces"]
