"""What a picture costs from each tier, as our own reports measured it."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from emblema.errors import EmblemaError

RESULTS = Path("docs/results")


@dataclass(frozen=True, slots=True)
class TierCosts:
    """Seconds that a picture adds to a request's first token, by where its rows are; a question's own are inside.

    Attributes:
        name: of the measurement.
        device, disk, computed: seconds a picture.
        bytes: of a picture's file, which is what moves between machines.
        source: what was measured, in words.
    """

    name: str
    device: float
    disk: float
    computed: float
    bytes: int
    source: str


def measured_costs(name: str, folder: Path = RESULTS) -> TierCosts:
    """Return costs from `store.json` (`store`: the embedded engine) or from both reports (`vllm`).

    Raises:
        EmblemaError: there is no such measurement.
    """
    largest = max(_read(folder / "store.json")["overlap"], key=lambda found: found["parameters"])
    seconds = {lane: median(values) / largest["chunks"] for lane, values in largest["seconds"].items()}
    size = largest["bytes"] // largest["chunks"]
    where = f"{largest['model']}, {largest['parameters'] / 1e6:.0f} M parameters, {largest['chunks']} pictures"
    if name == "store":
        source = f"store.json: {where}; memory, cold disk, recomputed"
        return TierCosts(name, seconds["memory"], seconds["disk, cold"], seconds["recompute"], size, source)
    if name == "vllm":
        timed = _read(folder / "vllm.json")["first_tokens"]
        arms = {arm["strategy"]: arm["median"] / timed["pictures"] for arm in timed["arms"]}
        device, slower = arms["blind"], seconds["disk, cold"] - seconds["memory"]
        source = (
            f"vllm.json: {timed['parameters'] / 1e6:.0f} M parameters, {timed['pictures']} pictures; taken rows, "
            f"recomputed; disk: that and what a cold load adds in store.json"
        )
        return TierCosts(name, device, device + slower, arms["full"], size, source)
    raise EmblemaError(f"no measured costs {name!r}: choose store or vllm")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EmblemaError(f"{path} cannot be read ({error}): run this in the repository") from error
