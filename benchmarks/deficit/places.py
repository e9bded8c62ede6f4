"""Where the report goes, and what the models are called in it; checked before anything is loaded."""

from collections.abc import Sequence
from pathlib import Path

from emblema.errors import EmblemaError


def report_places(folder: Path, figures: Path | None) -> tuple[Path, Path]:
    """The report's folder, made if it is not there, and the file of its figures.

    Raises:
        EmblemaError: one of them cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / ".writable"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise EmblemaError(
            f"--report {folder}: it cannot be written ({error.strerror}); give another folder"
        ) from error
    listing = folder / "deficit.json" if figures is None else figures
    try:
        listing.parent.mkdir(parents=True, exist_ok=True)
        existed = listing.exists()
        with listing.open("a", encoding="utf-8"):
            pass
        if not existed:
            listing.unlink()
    except OSError as error:
        raise EmblemaError(f"--json {listing}: it cannot be written ({error.strerror}); give another file") from error
    return folder, listing


def models_of(text: str) -> list[str]:
    """Models from a list with commas.

    Raises:
        EmblemaError: it names none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise EmblemaError(f"--model {text!r}: name a bundled model, a folder or a Hugging Face id")
    return names


def names_of(models: Sequence[str]) -> list[str]:
    """A short name for each model, each once: the last part of a path or id, numbered where it comes again."""
    names: list[str] = []
    for model in models:
        own = "".join(one if one.isalnum() or one in "._-" else "-" for one in Path(model).name) or "model"
        count = sum(one == own or one.startswith(f"{own}.") for one in names)
        names.append(own if count == 0 else f"{own}.{count + 1}")
    return names
