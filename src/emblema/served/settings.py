"""Options of a plugin, as a server configures it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError
from emblema.link.policy.policy import Policy
from emblema.link.strategies.registry import parse

WORKER_BYTES = 2 * 2**30
"""Host memory of one worker, unless the operator gives another number."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Options of the plugin: for vLLM a server's `kv_connector_extra_config`.

    Attributes:
        store: folder of the store; all processes of a server, and several servers, may share it.
        strategy: for requests that name none.
        capture: whether pictures and patches are captured from what the server computes.
        memory: bytes of rows, embeddings and patches that each worker keeps in host memory, page-locked beside a GPU.
        weigh: whether `auto` links only what is expected to pay by the costs measured here.
        canary, canary_rows: as in `Policy`: how much of what `auto` links is compared.
    """

    store: Path
    strategy: str = "auto"
    capture: bool = True
    memory: int = WORKER_BYTES
    weigh: bool = True
    canary: float = Policy().canary
    canary_rows: float = Policy().canary_rows

    @property
    def policy(self) -> Policy:
        """Bounds of `auto`."""
        return Policy(canary=self.canary, canary_rows=self.canary_rows)

    @classmethod
    def read(cls, given: Mapping[str, Any], where: str = "kv_connector_extra_config") -> "PluginSettings":
        """Return the settings in a server's configuration.

        Args:
            given: by name.
            where: what the configuration is called there.

        Raises:
            EmblemaError: a key is unknown, the store is not named, or a value is not right.
        """
        known = ("canary", "canary_rows", "capture", "memory", "store", "strategy", "weigh")
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise EmblemaError(f"{where} has {unknown[0]!r}: emblema takes {', '.join(known)}.")
        if not isinstance(given.get("store"), str) or not given["store"]:
            raise EmblemaError(f'{where} lacks "store": name the folder where chunks are kept.')
        strategy, capture, memory = given.get("strategy", "auto"), given.get("capture", True), given.get("memory")
        parse(strategy)
        weigh = given.get("weigh", True)
        for name, value in (("capture", capture), ("weigh", weigh)):
            if type(value) is not bool:
                raise EmblemaError(f"{name} is {value!r}: give true or false.")
        memory = WORKER_BYTES if memory is None else memory
        if type(memory) is not int or memory <= 0:
            raise EmblemaError(f"memory is {memory!r}: give bytes.")
        shares = {name: given[name] for name in ("canary", "canary_rows") if name in given}
        Policy(**shares)
        return cls(Path(given["store"]), strategy, capture, memory, weigh, **shares)
