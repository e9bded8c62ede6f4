"""Generated tasks: legends, maps and clips whose questions have answers that can be worked out.

Episodes (`generate`) are what the bundled models are trained on and held to; items (`task_of(name).items(seed, count)`)
are what every task and every data set is turned into. The tasks by name are `registry.TASKS`.
"""

from benchmarks.tasks.episodes import (
    EPISODE_PLANS,
    Plan,
    generate,
    make_episode,
    write_clip,
    write_episodes,
    write_page,
)
from benchmarks.tasks.items import ItemQuestion, Media, TaskItem
from benchmarks.tasks.registry import GeneratedTask, task_of
from benchmarks.tasks.world import Episode, Legend, Map, Question, SceneClip

__all__ = [
    "EPISODE_PLANS",
    "SceneClip",
    "Episode",
    "TaskItem",
    "ItemQuestion",
    "Legend",
    "Map",
    "Media",
    "Plan",
    "Question",
    "GeneratedTask",
    "generate",
    "make_episode",
    "task_of",
    "write_clip",
    "write_episodes",
    "write_page",
]
