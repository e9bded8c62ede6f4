"""`emblema models` and `emblema strategies`."""

from emblema.cli.options import Device, Model, Plain


def models(model: Model = "reference", device: Device = None, plain: Plain = False) -> None:
    """List the families of models that work, the bundled models, and what the self-check says of one."""
    from emblema.cli.screen import console, load_engine

    screen = console(plain)
    import json

    from rich import box
    from rich.table import Table

    from emblema.models.families import families
    from emblema.models.load import BUNDLED, bundled_folder

    table = Table(title="families", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("family", "model_type", "notes"):
        table.add_column(name, overflow="fold")
    for family in families():
        table.add_row(family.name, ", ".join(family.model_types), family.notes)
    screen.print(table)
    table = Table(title="bundled", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "model_type", "MB"):
        table.add_column(name, justify="right" if name == "MB" else "left", no_wrap=True)
    for name in BUNDLED:
        folder = bundled_folder(name)
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
        table.add_row(name, kind, f"{(folder / 'model.safetensors').stat().st_size / 1e6:.1f}")
    screen.print(table)
    engine = load_engine(model, device, screen)
    from emblema.eval.check_report import selfcheck_table

    screen.print(selfcheck_table(model, engine))


def strategies(plain: Plain = False) -> None:
    """List the strategies: what can be asked for in place of computing every row."""
    from rich import box
    from rich.table import Table

    from emblema.cli.screen import console
    from emblema.link.strategies.registry import strategies as known

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    table.add_column("what it does")
    for name, summary in known().items():
        table.add_row(name, summary)
    console(plain).print(table)
