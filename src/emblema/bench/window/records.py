"""What every arm did at every step, a line each, appended as it is made, so that a killed run goes on."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Self

from emblema.bench.window.trace import Where
from emblema.errors import EmblemaError

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


class Records:
    """A file of records that is read whole and appended to. One process writes it.

    Raises:
        EmblemaError: the file cannot be written, or holds something else than records.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: dict[str, StepRecord] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise EmblemaError(f"{path}: it cannot be written ({error.strerror}); give another place") from error
        for record in self._read():
            self.held[record.key] = record

    def _read(self) -> Iterator[StepRecord]:
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            # A run was killed while it wrote: what it left of a line goes.
            self._file.truncate(sum(len(line.encode()) for line in lines[:-1]))
            lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                yield StepRecord.read(line)
            except (ValueError, TypeError) as error:
                self._file.close()
                raise EmblemaError(
                    f"{self.path}, line {number}: this is no record of the bench; remove the file to begin anew"
                ) from error

    def add(self, records: tuple[StepRecord, ...]) -> None:
        """Keep the records of a step."""
        self.held |= {record.key: record for record in records}
        self._file.write("".join(json.dumps(asdict(record)) + "\n" for record in records))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
