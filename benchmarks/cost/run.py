"""What `python -m benchmarks cost` does, from options to files: stage by stage, each kept as it is done."""

from pathlib import Path

from benchmarks.cost.decoding import decode_table
from benchmarks.cost.forming import form_table
from benchmarks.cost.linking import link_cases, link_table, rows_table
from benchmarks.cost.page import write_page
from benchmarks.cost.placing import place_table
from benchmarks.cost.rates import rates_table
from benchmarks.cost.stages import QUICK, RunOptions, StageRecord, StageRun, StageSizes
from benchmarks.cost.states import TOKENS, sizes_table, states_table
from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.report import ModelTables
from emblema.eval.figures import environment


def command_of(options: RunOptions) -> str:
    """Return the command that measures what the options say."""
    words = [f"--shape {options.shape}", f"--device {options.device}", f"--seed {options.seed}"]
    extent, usual = options.extent, StageSizes()
    if extent == QUICK:
        words.append("--quick")
    else:
        words += [f"--most {extent.most}"] if extent.most != usual.most else []
        words += [f"--rounds {extent.pace.rounds}"] if extent.pace.rounds != usual.pace.rounds else []
        words += [f"--seconds {extent.pace.seconds:g}"] if extent.pace.seconds != usual.pace.seconds else []
    words += [f"--only {','.join(options.stages)}"] if options.stages != tuple(CostRun.stages) else []
    return " ".join(["python -m benchmarks cost", *words])


class CostRun(StageRun):
    """One run of the benchmark."""

    name = "cost"
    stages = {
        "rates": lambda run: rates_table(run.device, run.dtype, run.extent.pace, run.extent.payload),
        "place": lambda run: place_table(run.subject, run.extent.middle, run.extent.pace, run.extent.payload),
        "link": lambda run: link_table(run.subject, link_cases(run.extent.most), run.extent.pace),
        "rows": lambda run: rows_table(run.subject, run.extent.middle, run.extent.pace),
        "decode": lambda run: decode_table(run.subject, run.extent.decode_rows, run.extent.decoded, run.extent.pace),
        "form": lambda run: form_table(run.subject, run.extent.formed, run.extent.pace),
        "states": lambda run: states_table(run.subject, run.extent.pace, min(TOKENS, run.extent.middle)),
        "sizes": lambda run: sizes_table(),
    }

    def write(self, found: tuple[StageRecord, ...], tables: ModelTables) -> Path:
        """Write what was found of this shape beside that of others in `cost.json`, and the page of all."""
        listing = self.folder / "cost.json"
        runs = read_figures(listing)["runs"] if listing.exists() else {}
        data = rounded(tables.data())
        runs[tables.model] = {
            "command": command_of(self.options),
            "environment": environment(),
            "bars": data["bars"],
            "tables": {table["name"]: table["rows"] for table in data["tables"]},
        }
        return write_page(read_figures(write_figures({"runs": runs}, listing))["runs"], self.folder)
