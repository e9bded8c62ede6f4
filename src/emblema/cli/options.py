"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

STORE = Path("emblema-store")
"""The folder that every command takes that serves, or looks after what was served."""


def known_model(name: str | None) -> str | None:
    """Return the name of a model, before anything heavy is imported; `ModelError` where it can be none."""
    from emblema.models.names import check_model_name

    if name is not None:
        check_model_name(name)
    return name


Model = Annotated[
    str, typer.Option(callback=known_model, help="reference (the bundled model), a Hugging Face id, or a folder.")
]
CheckedModel = Annotated[
    str, typer.Argument(callback=known_model, help="reference, a Hugging Face id, or a folder.", show_default=False)
]
Device = Annotated[str | None, typer.Option(help="Where to run: cpu, cuda, cuda:1, mps; a GPU by default.")]
Plain = Annotated[bool, typer.Option("--plain", help="No colours and no moving bars.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="EMBLEMA_STORE", help="The store's folder; EMBLEMA_STORE in the environment.")
]
Out = Annotated[Path, typer.Option(help="Folder for the report and the picture.")]
ServedModel = Annotated[
    str,
    typer.Argument(callback=known_model, help="A bundled name, a folder or a Hugging Face id.", show_default=False),
]
