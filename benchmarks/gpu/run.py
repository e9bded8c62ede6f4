"""The steps of half an hour on a GPU, in the order of what has to be known first; each is saved as it is done."""

from dataclasses import asdict
from pathlib import Path

from benchmarks.blocks import write_blocks
from benchmarks.cost.decoding import decode_table
from benchmarks.cost.linking import link_table
from benchmarks.cost.run import CostRun
from benchmarks.cost.stages import StageRecord, StageRun, StageSizes
from benchmarks.cost.timing import Pace
from benchmarks.figures import write_figures
from benchmarks.gpu.jitter import jitter_table
from benchmarks.gpu.kernel import kernel_table
from benchmarks.gpu.tiers import tiers_table
from benchmarks.plots import draw_table, importable
from benchmarks.report import ModelTables, measured_on
from benchmarks.table import Table, bars_markdown, table_markdown

USUAL = StageSizes(Pace(9, 6.0), decode_rows=(2048, 8192, 32_768), formed=(2048,))
LINKS = ((2048 + 48, 1), (4096 + 48, 4), (8192 + 48, 32))
"""Rows and chunks of the linked prompts."""
STRATEGY = "patch-32"


class GpuRun(StageRun):
    """One run of the suite."""

    name = "gpu"
    stages = {
        "rates": CostRun.stages["rates"],
        "kernel": lambda run: kernel_table(run.subject, run.extent.middle, run.extent.payload, run.extent.pace),
        "place": CostRun.stages["place"],
        "link": lambda run: link_table(
            run.subject, LINKS if run.extent.most >= 8192 else ((run.extent.most, 2),), run.extent.pace
        ),
        "decode": lambda run: decode_table(
            run.subject, run.extent.decode_rows, run.extent.decoded, run.extent.pace, run.device.type == "cuda"
        ),
        "tiers": lambda run: tiers_table(
            run.subject, run.scratch, run.extent.middle, run.extent.chunks, STRATEGY, run.extent.pace
        ),
        "jitter": lambda run: jitter_table(
            run.subject, run.extent.middle, run.extent.decoded, run.extent.formed[0], STRATEGY
        ),
    }

    def write(self, found: tuple[StageRecord, ...], tables: ModelTables) -> Path:
        """Write `gpu.json`, and a page of all tables that says what is not there."""
        options, page = self.options, self.folder / "gpu.md"
        done = {record.stage for record in found}
        words = [
            f"`python -m benchmarks gpu --shape {options.shape} --device {options.device} --seed {options.seed}`, "
            f"{options.dtype}, medians of interleaved rounds; on {measured_on()}."
        ]
        words += [f"{record.stage} could not be done: {record.failure}." for record in found if record.failure]
        words += [f"{stage} was not begun." for stage in self.stages if stage not in done]
        words += [] if importable("matplotlib") else ["There are no plots: matplotlib is not installed."]
        steps = [{"step": each.stage, "seconds": each.seconds, "failure": each.failure} for each in found]
        write_figures({"options": asdict(options), "steps": steps, **tables.data()}, self.folder / "gpu.json")
        page.unlink(missing_ok=True)
        blocks = {"run": "\n\n".join(words), "bars": bars_markdown(tables.bars)}
        blocks |= {table.name: self._shown(table) for table in tables.tables}
        return write_blocks(page, f"On {options.device}: {options.shape}", blocks)

    def _shown(self, table: Table) -> str:
        drawn = draw_table(table, self.options.shape, self.folder)
        parts = [f"{table.title}. {table.note}", table_markdown(table)]
        return "\n\n".join([*parts, f"![{table.title}]({drawn.name})"] if drawn else parts)
