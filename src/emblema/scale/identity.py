"""What all replicas of a cluster have in common: one that is another model's, or another version's, is refused."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import emblema
from emblema.errors import EmblemaError
from emblema.store.files import make_folder, write_once


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """What decides answers, and whether one replica can take another's rows.

    Attributes:
        model: fingerprint of the weights, the configuration and the dtype.
        name: as clients call it.
        version: of this package.
    """

    model: str
    name: str
    version: str = emblema.__version__


def join_cluster(folder: Path, cluster: str, own: ReplicaIdentity) -> None:
    """Take part in a cluster, whose first replica says what it is.

    Args:
        folder: that all replicas share.
        cluster: its name; a rolling change of model or version takes another.

    Raises:
        EmblemaError: the others serve another model or version, or the folder cannot be written.
    """
    place = folder / "clusters" / f"{cluster}.json"
    if not cluster or not cluster.replace("-", "").replace("_", "").isalnum():
        raise EmblemaError(f"{cluster!r} is no name of a cluster: give letters, digits, - and _")
    try:
        make_folder(place.parent, mode=0o700)
        found = json.loads(write_once(place, json.dumps(asdict(own)).encode()))
        theirs = ReplicaIdentity(**found)
    except OSError as error:
        raise EmblemaError(f"{place} cannot be written: {error}") from error
    except (ValueError, TypeError) as error:
        raise EmblemaError(f"{place} is damaged ({error}): delete it when no replica runs") from error
    if theirs != own:
        raise EmblemaError(
            f"the cluster {cluster!r} serves {theirs.name} ({theirs.model[:12]}, version {theirs.version}), this "
            f"replica is {own.name} ({own.model[:12]}, version {own.version}): name another cluster to serve both"
        )
