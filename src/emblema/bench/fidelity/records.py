"""Records on disk: a line for each item, setting and strategy, appended as made, so that a killed run goes on."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from emblema.bench.fidelity.linking import Spent
from emblema.bench.tasks.items import Item, describe
from emblema.errors import EmblemaError

VERSION = 1
"""Part of every key: records that an older bench made in another way are made again."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an item comes from and how it is put: what tells records of the same item apart.

    Attributes:
        model: name of the model; `weights`: its fingerprint.
        seed: of generated items; -1 for a data set's.
    """

    model: str
    weights: str
    task: str
    seed: int
    style: str

    def key(self, item: Item, setting: str, strategy: str, answering: str) -> str:
        """Digest of everything that a record's figures depend on."""
        told = [VERSION, self.weights, self.task, self.seed, self.style, setting, strategy, answering, describe(item)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Record:
    """One item under one strategy in one setting, question by question.

    Attributes:
        multi_hop: whether a question needs several pieces of media.
        answers: token ids of the greedy answers.
        right: whether they are right.
        divergences: KL from re-prefill at the answer's first token, nats.
        judged: overall scores of a judge, 1 to 10; empty without one.
    """

    key: str
    model: str
    task: str
    setting: str
    strategy: str
    item: str
    episode: str
    multi_hop: tuple[bool, ...]
    answers: tuple[tuple[int, ...], ...]
    right: tuple[bool, ...]
    divergences: tuple[float, ...]
    kv_bytes_share: float
    rows_computed_share: float
    judged: tuple[int, ...] = ()

    @property
    def spent(self) -> Spent:
        return Spent(self.kv_bytes_share, self.rows_computed_share)

    @classmethod
    def read(cls, line: str) -> Self:
        """The record of a line.

        Raises:
            ValueError: it is none.
        """
        held = json.loads(line)
        if not isinstance(held, dict) or held.keys() != {field.name for field in fields(cls)}:
            raise ValueError("no record")
        lists = {name: tuple(value) for name, value in held.items() if isinstance(value, list)}
        lists["answers"] = tuple(tuple(answer) for answer in held["answers"])
        made = cls(**{**held, **lists})
        if len({len(made.multi_hop), len(made.answers), len(made.right), len(made.divergences)}) != 1:
            raise ValueError("a record with missing questions")
        return made


class Records:
    """A file of records that is read whole and appended to. One process writes it.

    Raises:
        EmblemaError: the file cannot be written, or holds something else than records.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: dict[str, Record] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise EmblemaError(f"{path}: it cannot be written ({error.strerror}); give another place") from error
        for record in self._read():
            self.held[record.key] = record

    def _read(self) -> Iterator[Record]:
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            # A run was killed while it wrote: what it left of a line goes.
            rest = sum(len(line.encode()) for line in lines[:-1])
            self._file.truncate(rest)
            lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                yield Record.read(line)
            except (ValueError, TypeError, KeyError) as error:
                self._file.close()
                raise EmblemaError(
                    f"{self.path}, line {number}: this is no record of the bench; remove the file to begin anew"
                ) from error

    def add(self, record: Record) -> None:
        """Keep a record, on disk before this returns to the next item."""
        self.held[record.key] = record
        written: dict[str, Any] = asdict(record)
        self._file.write(json.dumps(written) + "\n")
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
