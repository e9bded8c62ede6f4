"""The journal of a sqlite file: WAL on a disk of this machine, a rollback journal where other machines share it.

WAL keeps its index in memory that all readers share, so it is wrong between machines (https://sqlite.org/wal.html).
"""

import re
import sqlite3
from pathlib import Path

from emblema.errors import StoreError

NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|ceph|lustre|gpfs|beegfs\w*|glusterfs|afs|9p|ocfs2|gfs2|orangefs|virtiofs|fuse\..*"
)
"""Kinds of file systems that other machines may write to."""
MOUNTS = Path("/proc/self/mountinfo")


def is_shared(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether a path is on a file system that other machines may write to; False where it cannot be told."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    found, kind = Path("/"), ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        place = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields.split()[4]))
        # Of several at one place the last is seen.
        if path.resolve().is_relative_to(place) and len(place.parts) >= len(found.parts):
            found, kind = place, rest.split()[0]
    return NETWORK.fullmatch(kind) is not None


def set_journal(connection: sqlite3.Connection, path: Path | str) -> None:
    """Set the journal that a file's place asks for. A rollback journal needs `synchronous = FULL` or more.

    Raises:
        StoreError: another process keeps the file in WAL mode where other machines share it.
        sqlite3.Error: the file is damaged or cannot be written.
    """
    shared = isinstance(path, Path) and is_shared(path)
    (mode,) = connection.execute(f"PRAGMA journal_mode = {'DELETE' if shared else 'WAL'}").fetchone()
    if shared and mode == "wal":
        raise StoreError(f"{path} is on a file system that machines share, and an older process keeps it open: end it")
