"""What all replicas of a cluster have in common: one that is another model's, or another version's, is refused."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import emblema
from emblema.errors import EmblemaError
from emblema.store.files import make_folder, write_once
from emblema.store.remote.calls import CallPolicy
from emblema.store.remote.redis import RedisServer


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """What decides answers, and whether one replica can take another's rows.

    Attributes:
        model: fingerprint of the weights, the configuration and the dtype.
        name: as clients call it.
        version: of this package.
        tenants: fingerprint of the secret that tenants' salts follow from; empty where there are no keys.
    """

    model: str
    name: str
    version: str = emblema.__version__
    tenants: str = ""


FirstWritten = Callable[[str, bytes], bytes]
"""Keeps bytes under a cluster's name unless there are some already; returns those that are there then.

Raises:
    EmblemaError: it cannot be done.
"""


def join_cluster(first_written: Sequence[FirstWritten], cluster: str, own: ReplicaIdentity) -> None:
    """Take part in a cluster, whose first replica says what it is.

    Args:
        first_written: where it says so: in all that replicas share.
        cluster: its name; a rolling change of model or version takes another.

    Raises:
        EmblemaError: the others serve another model or version, or know other tenants, or nothing can be written.
    """
    if not cluster or not cluster.replace("-", "").replace("_", "").isalnum():
        raise EmblemaError(f"{cluster!r} is no name of a cluster: give letters, digits, - and _")
    for write in first_written:
        try:
            theirs = ReplicaIdentity(**json.loads(write(cluster, json.dumps(asdict(own)).encode())))
        except (ValueError, TypeError) as error:
            raise EmblemaError(
                f"what the cluster {cluster!r} is cannot be read ({error}): delete it when no replica runs"
            ) from error
        if theirs.tenants != own.tenants and replace(theirs, tenants=own.tenants) == own:
            raise EmblemaError(
                f"the replicas of the cluster {cluster!r} know tenants by another secret: give this one the others' "
                "serve/serve-secret and serve/keys.sqlite"
            )
        if theirs != own:
            raise EmblemaError(
                f"the cluster {cluster!r} serves {theirs.name} ({theirs.model[:12]}, version {theirs.version}), this "
                f"replica is {own.name} ({own.model[:12]}, version {own.version}): name another cluster to serve both"
            )


def in_folder(folder: Path) -> FirstWritten:
    """Return what writes into a folder that replicas share."""

    def write(cluster: str, data: bytes) -> bytes:
        place = folder / "clusters" / f"{cluster}.json"
        try:
            make_folder(place.parent, mode=0o700)
            return write_once(place, data)
        except OSError as error:
            raise EmblemaError(f"{place} cannot be written: {error}") from error

    return write


def in_redis(url: str, prefix: str = "emblema") -> FirstWritten:
    """Return what writes to a Redis server that replicas share."""
    server = RedisServer(url, CallPolicy())

    def write(cluster: str, data: bytes) -> bytes:
        key = f"{prefix}/clusters/{cluster}"
        server.caller.call(partial(server.client.set, nx=True), key, data)
        return bytes(server.caller.call(server.client.get, key) or data)

    return write
