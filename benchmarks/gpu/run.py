"""The steps of half an hour on a GPU, in the order of what has to be known first; each is saved as it is done."""

import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.cost.decoding import decode_table
from benchmarks.cost.linking import link_table
from benchmarks.cost.placing import PlaceCase, place_cases, place_table
from benchmarks.cost.rates import PAYLOAD, measure_rates, rates_table
from benchmarks.cost.shapes import make_model
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace
from benchmarks.figures import write_figures
from benchmarks.gpu.suite import suite_table
from benchmarks.recordfile import RecordFile, digest
from benchmarks.report import ModelTables, drawable, show_tables, write_page
from benchmarks.table import Table

STEPS = ("rates", "kernel", "suite", "place", "link", "decode", "tiers", "jitter", "streams")


@dataclass(frozen=True, slots=True)
class GpuExtent:
    """How much is measured.

    Attributes:
        pace: of every comparison.
        payload: bytes gone through before any come again.
        most: rows of the longest placing.
        links: rows and chunks of the linked prompts.
        decode_rows, decoded: rows before the decoded tokens, and how many these are.
        middle, chunks: rows and chunks of the prompt that is loaded from every tier.
        formed, jobs: rows of the chunk whose patch is formed beside decoding, and how often.
        frames: of the streams.
        side: pixels of a frame's side.
        suite: paths of the tests.
        suite_seconds: after which they are stopped.
        suite_workers: processes that run them.
    """

    pace: Pace = Pace(9, 6.0)
    payload: int = PAYLOAD
    most: int = 8192
    links: tuple[tuple[int, int], ...] = ((2048 + 48, 1), (4096 + 48, 4), (8192 + 48, 32))
    decode_rows: tuple[int, ...] = (2048, 8192, 32_768)
    decoded: int = 32
    middle: int = 2048
    chunks: int = 8
    formed: int = 2048
    jobs: int = 4
    frames: tuple[int, ...] = (256, 1024, 4096)
    side: int = 112
    suite: tuple[str, ...] = ("tests",)
    suite_seconds: float = 480.0
    suite_workers: int = 4


QUICK = GpuExtent(
    pace=Pace(1, 0.0), payload=2**16, most=96, links=((96, 1), (96, 2)), decode_rows=(48,), decoded=3, middle=96,
    chunks=2, formed=24, jobs=1, frames=(8, 16), side=28, suite=("tests/kv/test_layout.py",), suite_seconds=120.0,
    suite_workers=0,
)  # fmt: skip
"""A little of everything, to see that it runs."""


@dataclass(frozen=True, slots=True)
class GpuStepRecord:
    """A step that was done, or why it could not be."""

    key: str
    step: str
    seconds: float
    table: Table | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What to measure, and how many minutes there are."""

    shape: str
    device: str
    dtype: str
    minutes: float
    seed: int = 0
    steps: tuple[str, ...] = STEPS
    extent: GpuExtent = field(default_factory=GpuExtent)


class GpuRun:
    """One run; a killed one goes on after the last step that was done. Steps that could not be done are tried again."""

    def __init__(self, options: GpuOptions, folder: Path, screen: Console) -> None:
        self.options, self.folder, self.screen = options, folder, screen
        self.device = torch.device(options.device)
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self._subject: CostSubject | None = None

    @property
    def subject(self) -> CostSubject:
        """The model, made when it is first needed."""
        if self._subject is None:
            model = make_model(self.options.shape, self.device, self.dtype, self.options.seed)
            self._subject = CostSubject(self.options.shape, model, self.options.seed)
        return self._subject

    def measure(self, step: str) -> Table:
        """Do one step."""
        extent, pace = self.options.extent, self.options.extent.pace
        device, payload = self.device, self.options.extent.payload
        middle = min(2048, extent.most)
        if step == "rates":
            return rates_table(device, self.dtype, pace, payload=payload)
        if step == "kernel":
            from benchmarks.gpu.kernel import kernel_table

            cases = [PlaceCase(middle, count, rank) for count in (1, 3) for rank in (0, 32)]
            return kernel_table(self.subject, cases, payload, pace)
        if step == "suite":
            return suite_table(
                self.options.device, extent.suite, extent.suite_seconds, self.folder, extent.suite_workers
            )
        if step == "place":
            return place_table(self.subject, place_cases(extent.most), pace, payload=payload)
        if step == "link":
            return link_table(self.subject, extent.links, pace)
        if step == "decode":
            rates = measure_rates(device, self.dtype, pace, payload=payload)
            return decode_table(
                self.subject, extent.decode_rows, extent.decoded, rates, pace, static=device.type == "cuda"
            )
        if step == "tiers":
            from benchmarks.gpu.tiers import tiers_table

            with tempfile.TemporaryDirectory(prefix="tiers-", dir=self.folder) as place:
                return tiers_table(self.subject, Path(place), extent.middle, extent.chunks, "patch-32", pace)
        if step == "jitter":
            from benchmarks.gpu.jitter import jitter_table

            return jitter_table(self.subject, extent.middle, extent.decoded, extent.formed, extent.jobs, "patch-32")
        from benchmarks.gpu.streams import streams_table

        return streams_table(self.subject, extent.frames, extent.side, self.options.seed, pace)

    def run(self) -> tuple[Path, tuple[GpuStepRecord, ...]]:
        """Do what is not on record within the minutes, and write figures and page after every step."""
        options = self.options
        until = time.monotonic() + 60 * options.minutes
        found: tuple[GpuStepRecord, ...] = ()
        with RecordFile(self.folder / "gpu.jsonl", GpuStepRecord) as records:
            keys = {step: self._key(step) for step in STEPS}
            for step in options.steps:
                held = records.held.get(keys[step])
                if held is None or held.failure:
                    self.screen.print(f"{step} …", highlight=False)
                    record = self._step(step, keys[step], until)
                    records.add([record])
                    said = record.failure or f"done in {record.seconds:.0f} s"
                    self.screen.print(f"{step}: {said}", highlight=False, markup=False)
                found = tuple(records.held[key] for key in keys.values() if key in records.held)
                self._write(found)
        page = self._write(found)
        show_tables(self.screen, self._tables(found))
        return page, found

    def _step(self, step: str, key: str, until: float) -> GpuStepRecord:
        began = time.monotonic()
        if began >= until:
            return GpuStepRecord(key, step, 0.0, failure=f"there was no time left of {self.options.minutes:g} minutes")
        try:
            table = self.measure(step)
        except Exception as error:
            # Whatever fails on a machine that is lent for half an hour, the next step is still worth its minutes.
            line = (str(error).strip().splitlines() or [""])[0]
            return GpuStepRecord(key, step, time.monotonic() - began, failure=f"{type(error).__name__}: {line[:300]}")
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return GpuStepRecord(key, step, time.monotonic() - began, table)

    def _key(self, step: str) -> str:
        options = self.options
        return digest("gpu", step, options.shape, options.device, options.dtype, options.seed, asdict(options.extent))

    def _tables(self, found: tuple[GpuStepRecord, ...]) -> ModelTables:
        return ModelTables(self.options.shape, tuple(record.table for record in found if record.table is not None))

    def _write(self, found: tuple[GpuStepRecord, ...]) -> Path:
        options, tables = self.options, self._tables(found)
        remarks = [f"{record.step} could not be done: {record.failure}." for record in found if record.failure]
        remarks += [f"{step} was not begun." for step in STEPS if step not in {record.step for record in found}]
        tables, undrawn = drawable(tables)
        remarks += [undrawn] if undrawn else []
        command = (
            f"`python -m benchmarks gpu --shape {options.shape} --device {options.device} --seed {options.seed}`, "
            f"{options.dtype}, medians of interleaved rounds"
        )
        steps: list[dict[str, Any]] = [
            {"step": record.step, "seconds": record.seconds, "failure": record.failure} for record in found
        ]
        write_figures({"options": asdict(options), "steps": steps, **tables.data()}, self.folder / "gpu.json")
        path = self.folder / "gpu.md"
        return write_page(path, f"On {options.device}: {options.shape}", command, [tables], remarks=remarks)
