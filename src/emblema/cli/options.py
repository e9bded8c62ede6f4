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
