"""The application: commands by name, each of which imports what it needs when it runs."""

import typer

from benchmarks.cli import costs, drawing, fidelity, placing, service, serving, streams

app = typer.Typer(
    name="python -m benchmarks",
    help="Fresh episodes, and how well strategies answer them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(drawing.episodes)
app.command()(drawing.videos)
app.command()(fidelity.reference)
app.command()(serving.store)
app.command()(fidelity.fidelity)
app.command()(fidelity.reuse)
app.command()(fidelity.pairs)
app.command()(fidelity.long)
app.command()(fidelity.results)
app.command()(streams.window)
app.command()(streams.stream)
app.command()(serving.traffic)
app.command()(streams.soak)
app.command()(serving.vllm)
app.command()(serving.sglang)
app.command()(placing.place)
app.command()(service.serve)
app.command()(service.soak_serve)
app.command()(costs.cost)
app.command()(costs.gpu)
