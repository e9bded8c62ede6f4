"""Generated tasks: legends, maps and clips whose questions have answers that can be worked out.

Episodes (`generate`) are what the bundled models are trained on and held to; items (`task_of(name).items(seed, count)`)
are what every task and every data set is turned into. The tasks by name are `registry.TASKS`.
"""

from benchmarks.tasks.generate import TASKS, Plan, generate, make_episode
from benchmarks.tasks.items import Item, ItemQuestion, Media
from benchmarks.tasks.registry import Task, task_of
from benchmarks.tasks.world import Clip, Episode, Legend, Map, Question
from benchmarks.tasks.write import write_clip, write_episodes, write_page

__all__ = [
    "TASKS",
    "Clip",
    "Episode",
    "Item",
    "ItemQuestion",
    "Legend",
    "Map",
    "Media",
    "Plan",
    "Question",
    "Task",
    "generate",
    "make_episode",
    "task_of",
    "write_clip",
    "write_episodes",
    "write_page",
]
