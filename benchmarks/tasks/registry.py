"""Every task that a bench can run by name: items from a seed, each in the form of the data set that it mirrors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.tasks.building import ItemDraw
from benchmarks.tasks.episodes import EPISODE_PLANS
from benchmarks.tasks.frame_tasks import action_prediction, action_sequence, object_shuffle, state_change
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.list_tasks import lists
from benchmarks.tasks.page_tasks import (
    album,
    album_binding,
    dialogue_sentence,
    dialogue_word,
    reasoning_image,
    retrieval_image,
    text_two_hop,
    two_page,
    two_page_as_text,
    video_choice,
)
from emblema.errors import PromptError


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A generated task: `make` draws one item.

    Attributes:
        form: the data set's form that it mirrors.
        familiar: whether the bundled models were trained on such pictures and such questions over several of them;
            other tasks are reported without bars.
        control: a task that the paper says blind reuse loses nothing on.
    """

    name: str
    form: str
    make: Callable[[ItemDraw], TaskItem]
    familiar: bool = True
    control: bool = False

    def items(self, seed: int, count: int) -> Iterator[TaskItem]:
        """Return `count` fresh items; the same seed gives the same items, and fewer give the first of them.

        Raises:
            PromptError: no item is asked for.
        """
        if count < 1 or seed < 0:
            raise PromptError(f"{count} items of seed {seed}: give one item or more, and a seed of 0 or more")
        return (self.make(ItemDraw(self.name, seed, place, self.form)) for place in range(count))


def _episodes(task: str) -> GeneratedTask:
    plan = EPISODE_PLANS[task]
    return GeneratedTask(task, "emblema", lambda draw: draw.item_of(draw.episode(plan(draw.random))))


TASKS: dict[str, GeneratedTask] = {
    each.name: each
    for each in (
        *(_episodes(task) for task in EPISODE_PLANS),
        GeneratedTask("two-page", "emblema", two_page),
        GeneratedTask("two-page-as-text", "emblema", two_page_as_text, familiar=False, control=True),
        GeneratedTask("lists", "emblema", lists, familiar=False),
        GeneratedTask("album", "muirbench", album, control=True),
        GeneratedTask("album-binding", "muirbench", album_binding),
        GeneratedTask("retrieval-image", "mm-niah", retrieval_image),
        GeneratedTask("reasoning-image", "mm-niah", reasoning_image),
        GeneratedTask("action-sequence", "milebench", action_sequence, familiar=False),
        GeneratedTask("action-prediction", "milebench", action_prediction, familiar=False),
        GeneratedTask("object-shuffle", "milebench", object_shuffle, familiar=False),
        GeneratedTask("state-change", "milebench", state_change, familiar=False),
        GeneratedTask("video-choice", "video-mme", video_choice),
        GeneratedTask("dialogue-sentence", "mmdu", dialogue_sentence),
        GeneratedTask("dialogue-word", "sparkleseval", dialogue_word),
        GeneratedTask("text-two-hop", "musique", text_two_hop, familiar=False, control=True),
    )
}


def task_of(name: str) -> GeneratedTask:
    """Return a task by its name.

    Raises:
        PromptError: there is none of that name.
    """
    if name not in TASKS:
        raise PromptError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}")
    return TASKS[name]
