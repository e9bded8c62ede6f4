"""Data sets as items, and items as files of a data set's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.data import egoschema, milebench, mm_niah, mmdu, muirbench, musique, own, sparkleseval, video_mme
from benchmarks.data.folder import Folder
from benchmarks.data.form import Form, Source, records_file
from benchmarks.data.limits import DataError, DataLimits
from benchmarks.tasks.items import Item
from emblema.errors import PromptError

FORMS: dict[str, Form] = {
    each.FORM.name: each.FORM
    for each in (own, mm_niah, muirbench, milebench, video_mme, egoschema, mmdu, sparkleseval, musique)
}


def load_items(
    path: str | Path, form: str, *, media: str | Path | None = None, limits: DataLimits | None = None
) -> Iterator[Item]:
    """The items of a data set on this machine, read as they are asked for.

    Args:
        path: the file of records, or the data set's folder where it has one such file.
        form: one of `FORMS`.
        media: the folder of pictures and videos, if it is not the file's.

    Raises:
        DataError: a file is missing, broken or incomplete, or names media outside the folder; it names file and line.
        PromptError: there is no such form.
    """
    if form not in FORMS:
        raise PromptError(f"unknown form {form!r}: choose one of {', '.join(FORMS)}")
    chosen, bounds = FORMS[form], limits or DataLimits()
    file = records_file(Path(path), chosen.usual, chosen.title)
    source = Source(file, Folder.of(file) if media is None else Folder(Path(media).absolute()), bounds)
    return _checked(source, chosen)


def write_items(items: Iterable[Item], form: str, out: str | Path) -> Path:
    """Write items in a data set's form below a folder; returns the file of records.

    Raises:
        PromptError: there are no items, there is no such form, or it has no place for what an item holds.
    """
    if form not in FORMS:
        raise PromptError(f"unknown form {form!r}: choose one of {', '.join(FORMS)}")
    held = list(items)
    if not held:
        raise PromptError("there are no items to write")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return FORMS[form].write(held, folder)


def _checked(source: Source, form: Form) -> Iterator[Item]:
    count = 0
    for item in form.read(source):
        count += 1
        shown = [part for question in item.questions for part in (*question.parts, *question.options)]
        characters = sum(len(part) for part in (*item.parts, *shown) if isinstance(part, str))
        if characters > source.limits.characters or len(item.media) > source.limits.media:
            raise DataError(source.path, f"item {item.id[:80]!r} is larger than the limit of text or pictures")
        yield item
    if count == 0:
        raise DataError(source.path, f"it holds no items of {form.title}")
