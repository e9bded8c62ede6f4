"""Every task that a bench can run by name: items from a seed, each in the form of the data set that it mirrors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.tasks.action_prediction import action_prediction
from benchmarks.tasks.action_sequence import action_sequence
from benchmarks.tasks.album import album, album_binding
from benchmarks.tasks.audio_two_clip import audio_two_clip
from benchmarks.tasks.building import from_episode, name, stream
from benchmarks.tasks.dialogue import dialogue_sentence, dialogue_word
from benchmarks.tasks.generate import TASKS as EPISODE_TASKS
from benchmarks.tasks.generate import make_episode
from benchmarks.tasks.haystack import reasoning_image, retrieval_image
from benchmarks.tasks.items import Item
from benchmarks.tasks.object_shuffle import object_shuffle
from benchmarks.tasks.state_change import state_change
from benchmarks.tasks.text_two_hop import text_two_hop
from benchmarks.tasks.two_page import two_page, two_page_as_text
from benchmarks.tasks.video_choice import video_choice
from emblema.errors import PromptError


@dataclass(frozen=True, slots=True)
class Task:
    """A generated task: `make(seed, item, form)` draws one item.

    Attributes:
        form: the data set's form that it mirrors; `also`: others that it can be drawn in.
        familiar: whether the bundled models were trained on such pictures and such questions over several of them;
            other tasks are reported without bars.
        control: a task that the paper says blind reuse loses nothing on.
        exploratory: reported without claims.
    """

    name: str
    form: str
    make: Callable[[int, int, str], Item]
    also: tuple[str, ...] = ()
    familiar: bool = True
    control: bool = False
    exploratory: bool = False

    def items(self, seed: int, count: int, form: str | None = None) -> Iterator[Item]:
        """`count` fresh items; the same seed gives the same items, and fewer give the first of them.

        Raises:
            PromptError: no item is asked for, or the task is not drawn in that form.
        """
        chosen = self.form if form is None else form
        if count < 1 or seed < 0:
            raise PromptError(f"{count} items of seed {seed}: give one item or more, and a seed of 0 or more")
        if chosen not in (self.form, *self.also):
            raise PromptError(
                f"{self.name} is drawn in the form {', '.join((self.form, *self.also))}, not in {chosen!r}"
            )
        return (self.make(seed, place, chosen) for place in range(count))


def _episodes(task: str) -> Task:
    def make(seed: int, item: int, form: str) -> Item:
        random = stream(task, seed, item)
        episode = make_episode(random, EPISODE_TASKS[task](random), seed, task, item)
        return from_episode(random, episode, name(task, seed, item), form)

    return Task(task, "emblema", make)


TASKS: dict[str, Task] = {
    each.name: each
    for each in (
        *(_episodes(task) for task in EPISODE_TASKS),
        Task("two-page", "emblema", two_page),
        Task("two-page-as-text", "emblema", two_page_as_text, familiar=False, control=True),
        Task("album", "muirbench", album, control=True),
        Task("album-binding", "muirbench", album_binding),
        Task("retrieval-image", "mm-niah", retrieval_image),
        Task("reasoning-image", "mm-niah", reasoning_image),
        Task("action-sequence", "milebench", action_sequence, familiar=False),
        Task("action-prediction", "milebench", action_prediction, familiar=False),
        Task("object-shuffle", "milebench", object_shuffle, familiar=False),
        Task("state-change", "milebench", state_change, familiar=False),
        Task("video-choice", "video-mme", video_choice, also=("egoschema",)),
        Task("dialogue-sentence", "mmdu", dialogue_sentence),
        Task("dialogue-word", "sparkleseval", dialogue_word),
        Task("text-two-hop", "musique", text_two_hop, familiar=False, control=True),
        Task("audio-two-clip", "emblema", audio_two_clip, familiar=False, exploratory=True),
    )
}


def task_of(name: str) -> Task:
    """A task by its name.

    Raises:
        PromptError: there is none of that name.
    """
    if name not in TASKS:
        raise PromptError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}")
    return TASKS[name]
