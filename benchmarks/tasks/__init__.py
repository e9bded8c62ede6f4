"""Generated tasks: legends, maps and clips whose questions have answers that can be worked out.

Episodes (`generate`) are what the bundled models are trained on and held to; items (`task_of(name).items(seed, count)`)
are what every task and every data set is turned into. The tasks by name are `registry.TASKS`.
"""

from benchmarks.tasks.episodes import EPISODE_PLANS, Plan, generate, make_episode, write_page
from benchmarks.tasks.registry import task_of
from benchmarks.tasks.world import Episode, Legend, Map, SceneClip

__all__ = [
    "EPISODE_PLANS",
    "Episode",
    "Legend",
    "Map",
    "Plan",
    "SceneClip",
    "generate",
    "make_episode",
    "task_of",
    "write_page",
]
