"""What `kv_connector_extra_config` may say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError
from emblema.link.strategies.registry import parse


@dataclass(frozen=True, slots=True)
class Settings:
    """How the plugin links.

    Attributes:
        store: folder of the store; every process of the server, and other servers, may share it.
        strategy: of requests that name none.
        capture: whether pictures and patches are captured from what the server sees.
        memory: bytes of rows kept in memory beside the pages; None for a quarter of what is free.
    """

    store: Path
    strategy: str = "auto"
    capture: bool = True
    memory: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Settings":
        """Settings from a server's configuration.

        Raises:
            EmblemaError: a key is unknown, the store is not named, or a value is not right.
        """
        known = {"store", "strategy", "capture", "memory"}
        strange = sorted(set(given) - known)
        if strange:
            names = ", ".join(sorted(known))
            raise EmblemaError(f"kv_connector_extra_config has {strange[0]!r}: emblema takes {names}.")
        if not isinstance(given.get("store"), str) or not given["store"]:
            raise EmblemaError('kv_connector_extra_config lacks "store": name the folder where chunks are kept.')
        strategy, capture, memory = given.get("strategy", "auto"), given.get("capture", True), given.get("memory")
        parse(strategy)
        if type(capture) is not bool:
            raise EmblemaError(f"capture is {capture!r}: give true or false.")
        if memory is not None and (type(memory) is not int or memory <= 0):
            raise EmblemaError(f"memory is {memory!r}: give bytes.")
        return cls(Path(given["store"]), strategy, capture, memory)
