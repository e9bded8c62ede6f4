"""What `python -m benchmarks cost` does, from options to files: stage by stage, each kept as it is done."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.cost.decoding import decode_table
from benchmarks.cost.encoding import encode_table
from benchmarks.cost.forming import form_table
from benchmarks.cost.linking import chunk_cases, link_cases, link_table, rows_table
from benchmarks.cost.loading import load_cases, load_table
from benchmarks.cost.page import write_page
from benchmarks.cost.placing import place_cases, place_table
from benchmarks.cost.rates import PAYLOAD, DeviceRates, measure_rates, rates_table
from benchmarks.cost.shapes import make_model
from benchmarks.cost.stored import stored_table
from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace, load_average
from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.recordfile import RecordFile, TableRecord, digest
from benchmarks.report import ModelTables, show_tables
from benchmarks.table import Table
from emblema.eval.figures import environment

STAGES = ("rates", "place", "link", "chunks", "rows", "decode", "form", "load", "encode", "stored")


@dataclass(frozen=True, slots=True)
class CostExtent:
    """How much is measured.

    Attributes:
        most: rows of the longest prompt.
        middle: rows of what is measured at one length.
        pace: of every group of actions.
        decoded: new tokens a run.
        decode_rows: rows before them.
        formed: rows of the chunks whose patches are formed.
        encoded: tokens of the pictures that are encoded.
        stored: pieces in the store's index.
        payload: bytes gone through before any come again.
    """

    most: int = 8192
    middle: int = 2048
    pace: Pace = Pace()
    decoded: int = 32
    decode_rows: tuple[int, ...] = (256, 2048, 8192)
    formed: tuple[int, ...] = (256, 1024)
    encoded: tuple[int, ...] = (64, 256, 1024)
    stored: tuple[int, ...] = (1000, 10_000, 100_000, 1_000_000)
    payload: int = PAYLOAD


QUICK = CostExtent(
    most=96, middle=96, pace=Pace(1, 0.0), decoded=3, decode_rows=(64,), formed=(24,), encoded=(18,),
    stored=(10, 20), payload=2**16,
)  # fmt: skip
"""A little of everything."""


@dataclass(frozen=True, slots=True)
class CostOptions:
    """What to measure.

    Attributes:
        shape: of the model.
        device, dtype: where and in what it runs, by name.
        seed: of everything random.
        stages: of `STAGES`.
        extent: how much.
        again: stages on record are measured again.
    """

    shape: str
    device: str
    dtype: str
    seed: int
    stages: tuple[str, ...] = STAGES
    extent: CostExtent = CostExtent()
    again: bool = False


def command_of(options: CostOptions) -> str:
    """Return the command that measures what the options say, all stages."""
    words = [f"--shape {options.shape}", f"--device {options.device}", f"--seed {options.seed}"]
    extent, usual = options.extent, CostExtent()
    if extent == QUICK:
        words.append("--quick")
    else:
        words += [f"--most {extent.most}"] if extent.most != usual.most else []
        words += [f"--rounds {extent.pace.rounds}"] if extent.pace.rounds != usual.pace.rounds else []
        words += [f"--seconds {extent.pace.seconds:g}"] if extent.pace.seconds != usual.pace.seconds else []
    return " ".join(["python -m benchmarks cost", *words])


class CostRun:
    """One run of the benchmark; the model is made when the first stage needs it."""

    def __init__(self, options: CostOptions, folder: Path, screen: Console) -> None:
        self.options, self.folder, self.screen = options, folder, screen
        self.device = torch.device(options.device)
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self._subject: CostSubject | None = None

    @property
    def subject(self) -> CostSubject:
        """The model."""
        if self._subject is None:
            options = self.options
            model = make_model(options.shape, self.device, self.dtype, options.seed)
            self._subject = CostSubject(options.shape, model, options.seed)
        return self._subject

    def measure(self, stage: str) -> Table:
        """Measure one stage."""
        extent, device = self.options.extent, self.device
        pace, middle = extent.pace, extent.middle

        def stored(place: Path) -> Table:
            chunks = 8 if middle >= 1024 else 2
            return stored_table(self.subject, extent.stored, middle, chunks, place, pace, self.options.seed)

        def rates() -> DeviceRates:
            return measure_rates(device, self.dtype, pace, payload=extent.payload)

        def decoded() -> Table:
            return decode_table(self.subject, extent.decode_rows, extent.decoded, rates(), pace)

        stages: dict[str, Callable[[], Table]] = {
            "rates": lambda: rates_table(device, self.dtype, pace, payload=extent.payload),
            "place": lambda: place_table(self.subject, place_cases(extent.most), pace, payload=extent.payload),
            "link": lambda: link_table(self.subject, link_cases(extent.most), pace, rates()),
            "chunks": lambda: link_table(self.subject, chunk_cases(middle), pace, rates(), "chunks"),
            "rows": lambda: rows_table(self.subject, middle, pace),
            "decode": decoded,
            "form": lambda: form_table(self.subject, extent.formed, pace),
            "load": lambda: self._on_disk(
                lambda place: load_table(self.subject, load_cases(self.subject, extent.most), place, pace)
            ),
            "encode": lambda: encode_table(self.subject, extent.encoded, pace),
            "stored": lambda: self._on_disk(stored),
        }
        return stages[stage]()

    def _on_disk(self, measure: Callable[[Path], Table]) -> Table:
        with tempfile.TemporaryDirectory(prefix="cost-", dir=self.folder) as place:
            return measure(Path(place))

    def run(self) -> tuple[Path, ModelTables]:
        """Measure what is not on record, and write figures, page and plots after every stage; return the page."""
        options = self.options
        threads = torch.get_num_threads()
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        page = self.folder / "cost.md"
        found = ModelTables(options.shape, ())
        try:
            with RecordFile(self.folder / "cost.jsonl", TableRecord) as records:
                keys = {stage: self._key(stage) for stage in STAGES}
                for stage in options.stages:
                    if options.again or keys[stage] not in records.held:
                        self.screen.print(f"{options.shape}: {stage}")
                        records.add([TableRecord(keys[stage], self._timed(stage))])
                    kept = tuple(records.held[key].table for key in keys.values() if key in records.held)
                    found = ModelTables(options.shape, kept)
                    page = self._write(found)
        finally:
            torch.set_num_threads(threads)
        show_tables(self.screen, found)
        return page, found

    def _timed(self, stage: str) -> Table:
        before = load_average()
        table = self.measure(stage)
        load = f"Load average {before:.1f} before, {load_average():.1f} after, this run's own with it."
        return replace(table, note=f"{table.note} {load}")

    def _key(self, stage: str) -> str:
        options = self.options
        return digest("cost", stage, options.shape, options.device, options.dtype, options.seed, asdict(options.extent))

    def _write(self, found: ModelTables) -> Path:
        """Write what was found of this shape beside that of others in `cost.json`, and the page of all."""
        listing = self.folder / "cost.json"
        runs = read_figures(listing)["runs"] if listing.exists() else {}
        data = rounded(found.data())
        tables = {table["name"]: table["rows"] for table in data["tables"]}
        command = command_of(self.options)
        runs[found.model] = {
            "command": command, "environment": environment(), "options": asdict(self.options),
            "bars": data["bars"], "tables": tables,
        }  # fmt: skip
        return write_page(read_figures(write_figures({"runs": runs}, listing))["runs"], self.folder)
