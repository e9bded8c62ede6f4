"""Where items come from: generated tasks by name, and data sets on this machine as `form:path`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.data import FORMS, load_items
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.registry import TASKS, task_of
from emblema.errors import PromptError

POOL_SEED = 0x0BA515
"""TaskSource that others learn from are drawn by another seed than any that is measured."""


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The items of one task or data set.

    Attributes:
        name: as it is asked for; of a data set its file's name stands behind the form.
        path: the data set's file or folder; None for a generated task.
        familiar: whether the bundled models were trained on such items.
    """

    name: str
    form: str
    path: Path | None
    familiar: bool

    def first(self, seed: int, count: int) -> Iterator[TaskItem]:
        """The first `count` items.

        Raises:
            DataError: the data set is broken; it names file and line.
        """
        if self.path is None:
            return task_of(self.name).items(seed, count)
        return islice(load_items(self.path, self.form), count)

    def others(self, seed: int, measured: int, count: int) -> Iterator[TaskItem]:
        """`count` items that are not among the first `measured`; fewer where a data set has no more."""
        if self.path is None:
            return task_of(self.name).items(seed ^ POOL_SEED, count)
        return islice(load_items(self.path, self.form), measured, measured + count)


def items_of(wanted: Iterable[str]) -> tuple[TaskSource, ...]:
    """Tasks by name, data sets as `form:path`; `trained` stands for every task that the bundled models know.

    Raises:
        PromptError: there are none, or one is unknown.
    """
    given = [part.strip() for part in wanted if part.strip()]
    if not given:
        raise PromptError("no tasks: give names with commas between them, or form:path for a data set")
    found: dict[str, TaskSource] = {}
    for part in given:
        form, colon, path = part.partition(":")
        if colon and form in FORMS:
            found[part] = TaskSource(f"{form}:{Path(path).name}", form, Path(path), False)
            continue
        names = [name for name, task in TASKS.items() if task.familiar] if part == "trained" else [part]
        for name in names:
            if name not in TASKS:
                known = f"{', '.join(TASKS)}; trained; or form:path with a form of {', '.join(FORMS)}"
                raise PromptError(f"unknown task {name!r}: choose one of {known}")
            found[name] = TaskSource(name, TASKS[name].form, None, TASKS[name].familiar)
    return tuple(found.values())
