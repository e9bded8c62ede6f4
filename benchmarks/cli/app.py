"""The application: commands by name, each of which imports what it needs when it runs."""

import typer

from benchmarks.cli import agents, costs, fidelity, load, real, streams, variants

app = typer.Typer(
    name="python -m benchmarks",
    help="Fresh episodes and streams, and how well strategies answer them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(streams.videos)
app.command()(fidelity.reference)
app.command()(costs.store)
app.command()(fidelity.fidelity)
app.command()(fidelity.results)
app.command()(fidelity.hybrids)
app.command()(real.real)
app.command()(real.real_traffic)
app.command()(real.real_bound)
app.command()(real.real_speed)
app.command()(real.real_page)
app.command()(streams.window)
app.command()(streams.stream)
app.command()(load.load)
app.command()(agents.agents)
app.command()(variants.variants)
app.command()(load.soak_serve)
app.command()(streams.soak)
app.command()(costs.cost)
app.command()(costs.gpu)
