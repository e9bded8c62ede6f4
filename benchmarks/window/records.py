"""What every arm did at every step, a line each."""

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from benchmarks.recordfile import RecordFile
from benchmarks.window.trace import Where

VERSION = 1
"""Part of every key: records that an older bench made in another way are made again."""


def digest(*told: object) -> str:
    """Name of everything that a record's figures depend on."""
    return hashlib.sha256(json.dumps([VERSION, *told], sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a trace under one arm.

    Attributes:
        key: see `digest`.
        model: its name; `trace`: `agent` or `novelty`; `seed`, `step` of it.
        warm: whether the window was full, so that something left.
        kind, where: of the question; see `trace.Asked`.
        new_rows: rows of the new picture, the step's text and the question; `back_rows`: of a look-back's picture.
        rows: rows computed before the answer; `later`: behind it.
        seconds: to the answer's logits.
        held: bytes kept for the steps to come.
        lane: what was taken.
        answer: the greedy token; `agrees`: whether full prefill gives it too; `right`: whether it is the right one.
        kl: nats from full prefill.
        checks: comparisons that the canary made so far; `skipped`: those that it could not make.
    """

    key: str
    model: str
    trace: str
    seed: int
    step: int
    arm: str
    warm: bool
    kind: str
    where: Where
    new_rows: int
    back_rows: int
    rows: float
    later: float
    seconds: float
    held: int
    lane: str
    answer: int
    agrees: bool
    right: bool
    kl: float
    checks: int
    skipped: int

    @classmethod
    def read(cls, line: str) -> Self:
        """The record of a line.

        Raises:
            ValueError: it is none.
        """
        held = json.loads(line)
        if not isinstance(held, dict) or held.keys() != {field.name for field in fields(cls)}:
            raise ValueError("no record")
        return cls(**held)


class Records(RecordFile[StepRecord]):
    """A run's records.

    Raises:
        EmblemaError: as `RecordFile`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, StepRecord.read)
