"""Many replicas of a server: requests go where their pictures are, and deletions reach every replica."""

import os
import sys

from emblema.errors import EmblemaError

_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Where this is 0, Ray takes 127.0.0.1 for the node's address, and its servers listen there and nowhere else."""


def keep_ray_on_loopback() -> None:
    """Tell Ray, before it is imported, that this machine is the whole cluster.

    One port of each replica and ingress stays open to other machines, behind Ray's token: Ray Serve binds it to every
    address and has no option for it.

    Raises:
        EmblemaError: Ray is imported already, and would not notice.
    """
    if "ray" in sys.modules and os.environ.get(_ONE_MACHINE) != "0":
        raise EmblemaError("Ray was imported before it was told to listen on loopback alone: call this first")
    os.environ[_ONE_MACHINE] = "0"
