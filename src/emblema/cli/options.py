"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Option(help="reference (the bundled model), a Hugging Face id, or a folder.")]
Device = Annotated[str | None, typer.Option(help="Where to run: cpu, cuda, cuda:1, mps; a GPU by default.")]
Plain = Annotated[bool, typer.Option("--plain", help="No colours and no moving bars.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="EMBLEMA_STORE", help="The store's folder; EMBLEMA_STORE in the environment.")
]
Out = Annotated[Path, typer.Option(help="Folder for the report and the picture.")]
ServedModel = Annotated[str, typer.Argument(help="A bundled name, a folder or a Hugging Face id.", show_default=False)]
SharedStore = Annotated[Path, typer.Option(help="Folder that keeps chunks and patches; servers may share one.")]
ServedStrategy = Annotated[
    str, typer.Option(help="Of requests that name none: auto, blind, mpic-K, patch-M, patch-P%.")
]
Capture = Annotated[bool, typer.Option(help="Keep the pictures that requests show, and form patches.")]
