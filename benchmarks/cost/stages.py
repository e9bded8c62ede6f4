"""Runs of stages on one model of a shape: each is kept as it is done, and one that fails is told and tried again."""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from benchmarks.cost.rates import PAYLOAD
from benchmarks.cost.shapes import make_model
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace
from benchmarks.recordfile import RecordFile, digest
from benchmarks.report import ModelTables, show_tables
from benchmarks.table import Table


@dataclass(frozen=True, slots=True)
class StageSizes:
    """How much is measured.

    Attributes:
        pace: of every comparison.
        payload: bytes gone through before any come again.
        most: rows of the longest prompt.
        middle, chunks: rows and chunks of what is measured at one length.
        decode_rows, decoded: rows before the decoded tokens, and how many these are.
        formed: rows of the chunks whose patches are formed.
    """

    pace: Pace = Pace()
    payload: int = PAYLOAD
    most: int = 8192
    middle: int = 2048
    chunks: int = 8
    decode_rows: tuple[int, ...] = (256, 2048, 8192)
    decoded: int = 32
    formed: tuple[int, ...] = (256, 1024)


QUICK = StageSizes(Pace(1, 0.0), 2**16, most=96, middle=96, chunks=2, decode_rows=(48,), decoded=3, formed=(24,))
"""A little of everything, to see that it runs."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to measure, and how many minutes there are."""

    shape: str
    device: str
    dtype: str
    seed: int
    stages: tuple[str, ...]
    extent: StageSizes
    minutes: float = 1e6


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage that was measured, or why it could not be."""

    key: str
    stage: str
    seconds: float
    table: Table | None = None
    failure: str = ""


class StageRun(ABC):
    """One run; a killed one goes on after the last stage that was done.

    Attributes:
        name: of the command.
        stages: measures each, in the order of a page.
        scratch: a folder of the stage that is measured.
    """

    name: ClassVar[str]
    stages: ClassVar[Mapping[str, Callable[[Any], Table]]]

    def __init__(self, options: RunOptions, folder: Path, screen: Console) -> None:
        self.options, self.extent, self.folder, self.screen = options, options.extent, folder, screen
        self.scratch = folder
        self.device = torch.device(options.device)
        self.dtype: torch.dtype = getattr(torch, options.dtype)

    @cached_property
    def subject(self) -> CostSubject:
        """The model, made when it is first needed."""
        options = self.options
        model = make_model(options.shape, self.device, self.dtype, options.seed)
        return CostSubject(options.shape, model, options.seed)

    @abstractmethod
    def write(self, found: tuple[StageRecord, ...], tables: ModelTables) -> Path:
        """Write figures and a page of what is on record; returns the page's path."""

    def run(self) -> tuple[Path, tuple[StageRecord, ...]]:
        """Measure what is not on record within the minutes, and write figures and page after every stage."""
        until = time.monotonic() + 60 * self.options.minutes
        with RecordFile(self.folder / f"{self.name}.jsonl", StageRecord) as records:
            keys = {stage: self._key(stage) for stage in self.stages}
            for stage in self.options.stages:
                held = records.held.get(keys[stage])
                if held is None or held.failure:
                    record = self._measured(stage, keys[stage], until)
                    records.add([record])
                    said = record.failure or f"done in {record.seconds:.0f} s"
                    self.screen.print(f"{self.options.shape}: {stage}: {said}", highlight=False, markup=False)
                found = tuple(records.held[key] for key in keys.values() if key in records.held)
                tables = ModelTables(self.options.shape, tuple(each.table for each in found if each.table is not None))
                page = self.write(found, tables)
        show_tables(self.screen, tables)
        return page, found

    def _measured(self, stage: str, key: str, until: float) -> StageRecord:
        began = time.monotonic()
        if began >= until:
            failure = f"there was no time left of {self.options.minutes:g} minutes"
            return StageRecord(key, stage, 0.0, failure=failure)
        try:
            with tempfile.TemporaryDirectory(prefix=f"{stage}-", dir=self.folder) as place:
                self.scratch = Path(place)
                table = self.stages[stage](self)
        except Exception as error:
            # Whatever fails on a machine that is lent for half an hour, the next stage is still worth its minutes.
            line = (str(error).strip().splitlines() or [""])[0]
            failure = f"{type(error).__name__}: {line[:300]}"
            return StageRecord(key, stage, time.monotonic() - began, failure=failure)
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return StageRecord(key, stage, time.monotonic() - began, table)

    def _key(self, stage: str) -> str:
        options = self.options
        extent = asdict(options.extent)
        return digest(self.name, stage, options.shape, options.device, options.dtype, options.seed, extent)
