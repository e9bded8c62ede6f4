"""`emblema models` and `emblema strategies`."""

from emblema.cli.options import Device, Model, Plain

SMALL_MODEL = "HuggingFaceTB/SmolVLM-256M-Instruct"


def models(model: Model = "reference", device: Device = None, plain: Plain = False) -> None:
    """List the families of models that work, the bundled and pretrained models, and what the self-check says of one."""
    from emblema.cli.screen import console, load_engine, table

    screen = console(plain)
    import json

    from emblema.models.families import families
    from emblema.models.families.refused import REFUSED
    from emblema.models.names import BUNDLED, bundled_folder
    from emblema.models.pretrained import PRETRAINED, checkpoint_folder

    shown = table("family", "model_type", "notes", title="families", overflow="fold")
    for family in families():
        shown.add_row(family.name, ", ".join(family.model_types), family.notes)
    screen.print(shown)
    shown = table("model_type", "why", title="refused", overflow="fold")
    for kind, why in REFUSED.items():
        shown.add_row(kind, why)
    screen.print(shown)
    shown = table("model", "model_type", "MB", right=("MB",), title="bundled", no_wrap=True)
    for name in BUNDLED:
        folder = bundled_folder(name)
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
        shown.add_row(name, kind, f"{(folder / 'model.safetensors').stat().st_size / 1e6:.1f}")
    screen.print(shown)
    sizes = ("download, MB", "on disk, MB")
    names = ("model", "reads", *sizes, "licence", "built")
    shown = table(*names, right=sizes, title="pretrained (extra real)", overflow="fold")
    for name, found in PRETRAINED.items():
        built = (checkpoint_folder(name) / "config.json").is_file()
        reads = "text, pages of tiles" if found.reads_pages else "text"
        told = (reads, f"{found.download_mb:,}", f"{found.folder_mb:,}", found.licence)
        shown.add_row(name, *told, "yes" if built else "at first use, 1 to 3 minutes")
    screen.print(shown)
    screen.print(
        "The bundled models answer questions about drawings of their own world alone. For pictures of your own name a "
        "model of a family above, from Hugging Face or a folder. A small one, of 256 million parameters: "
        f"{SMALL_MODEL}; its family is tested, its weights were not.\n"
    )
    engine = load_engine(model, device, screen)
    from emblema.eval.check_report import selfcheck_table

    screen.print(selfcheck_table(model, engine))


def strategies(plain: Plain = False) -> None:
    """List the strategies: what can be asked for in place of computing every row."""
    from emblema.cli.screen import console, table
    from emblema.link.strategies.registry import strategies as known

    shown = table("strategy", "what it does")
    for name, summary in known().items():
        shown.add_row(name, summary)
    console(plain).print(shown)
