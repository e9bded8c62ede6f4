"""The notebook of the examples: its cells run, and its outputs written anew (`python -m tests.docs.notebook`)."""

import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first-look.ipynb"


def cells(path: Path = NOTEBOOK) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def shown(cell: dict[str, Any]) -> str:
    """Return what a cell says that it prints."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def run(cell: dict[str, Any], names: dict[str, object]) -> str:
    """Run a cell of code among the names of those before, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    return printed.getvalue()


def write(path: Path = NOTEBOOK) -> None:
    """Run all cells and write their outputs into the notebook; a figure that a cell makes is its picture."""
    import matplotlib

    matplotlib.use("agg")
    notebook = json.loads(path.read_text())
    names: dict[str, object] = {}
    os.chdir(path.parent)
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        printed = run(cell, names)
        outputs: list[dict[str, Any]] = []
        if printed:
            outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
        figure: Any = names.pop("figure", None)
        if figure is not None:
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=80)
            data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
            outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
        cell["outputs"] = outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
