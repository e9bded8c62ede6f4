"""Options of a plugin, as a server configures it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emblema.errors import EmblemaError
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
        least_rows: rows that `auto` has to save to link, see `RowThreshold`; 0 to link whatever it may, None to measure
            it when the server starts.
        measured: fingerprint of the model in whose name an embedded engine measured lanes on the same folder, as
            `emblema policy --json` prints it; empty for the served model's own.
    """

    store: Path
    strategy: str = "auto"
    capture: bool = True
    memory: int = WORKER_BYTES
    least_rows: int | None = None
    measured: str = ""

    @classmethod
    def read(cls, given: Mapping[str, Any], where: str = "kv_connector_extra_config") -> "PluginSettings":
        """Return the settings in a server's configuration.

        Args:
            given: by name.
            where: what the configuration is called there.

        Raises:
            EmblemaError: a key is unknown, the store is not named, or a value is not right.
        """
        known = ("capture", "least_rows", "measured", "memory", "store", "strategy")
        unknown = sorted(set(given) - set(known))
        if {"canary", "canary_rows"} & set(unknown):
            raise EmblemaError(
                f"{where} has {unknown[0]!r}: a serving engine compares no answers any more. Take it out, and measure "
                "with an embedded engine (`emblema.Engine`) on the same folder, whose canary is on by default."
            )
        if "weigh" in unknown:
            raise EmblemaError(
                f'{where} has "weigh": costs are not learnt any more; "least_rows": 0 links what may be.'
            )
        if unknown:
            raise EmblemaError(f"{where} has {unknown[0]!r}: emblema takes {', '.join(known)}.")
        if not isinstance(given.get("store"), str) or not given["store"]:
            raise EmblemaError(f'{where} lacks "store": name the folder where chunks are kept.')
        strategy, capture, memory = given.get("strategy", "auto"), given.get("capture", True), given.get("memory")
        parse(strategy)
        if type(capture) is not bool:
            raise EmblemaError(f"capture is {capture!r}: give true or false.")
        memory = WORKER_BYTES if memory is None else memory
        if type(memory) is not int or memory <= 0:
            raise EmblemaError(f"memory is {memory!r}: give bytes.")
        least_rows = given.get("least_rows")
        if least_rows is not None and (type(least_rows) is not int or least_rows < 0):
            raise EmblemaError(f"least_rows is {least_rows!r}: give a number of rows, or 0 to link whatever may be.")
        measured = given.get("measured", "")
        if not isinstance(measured, str):
            raise EmblemaError(f"measured is {measured!r}: give a model's fingerprint, as `emblema policy` prints it.")
        return cls(Path(given["store"]), strategy, capture, memory, least_rows, measured)
