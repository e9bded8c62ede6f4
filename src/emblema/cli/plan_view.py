"""A plan for the eye: a table of its ranges, and a map of its rows in colour."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from emblema.link.plan import LinkPlan

COLOURS = ("red", "blue", "cyan", "bright_black")
NAMES = ("computed", "taken", "taken and patched", "absent")
SIGNS = ("█", "▒", "▓", "·")


def plan_table(plan: LinkPlan) -> Table:
    """Return the plan's ranges, a line each."""
    table = Table(title=f"{plan.strategy}: {plan.rows} rows, {plan.layers} layers")
    for name in ("rows", "source", "layers", "origin"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for part in plan.ranges:
        layers = f"{part.layers[0]}-{part.layers[1] - 1}"
        table.add_row(f"{part.start}-{part.stop}", part.source.value, layers, str(part))
    for selector in plan.selectors:
        table.add_row(f"{selector.budget} of {selector.rows}", "by deviation", f"after {selector.layer}", "")
    return table


def plan_map(plan: LinkPlan, width: int = 96) -> Group:
    """Return a map: rows from left to right, layers upwards; a cell shows the commonest source of its rows."""
    codes = plan.sources()
    width = min(width, plan.rows)
    edges = [column * plan.rows // width for column in range(width + 1)]
    lines = []
    for layer in reversed(range(plan.layers)):
        line = Text(f"{layer:>3} ")
        for start, stop in zip(edges, edges[1:], strict=False):
            counts = [int((codes[layer, start:stop] == code).sum()) for code in range(4)]
            code = counts.index(max(counts))
            line.append(SIGNS[code], COLOURS[code])
        lines.append(line)
    legend = Text("    ")
    for code in sorted({int(code) for code in codes.flat}):
        legend.append(f"{SIGNS[code]} {NAMES[code]}   ", COLOURS[code])
    return Group(*lines, legend)
