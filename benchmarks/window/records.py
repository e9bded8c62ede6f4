"""What every arm did at every step, a line each."""

from dataclasses import dataclass
from typing import Self

from benchmarks.recordfile import fields_of
from benchmarks.window.trace import Where


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a trace under one arm.

    Attributes:
        key: see `recordfile.digest`.
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
        return cls(**fields_of(line, cls))
