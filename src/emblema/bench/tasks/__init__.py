"""Generated tasks: legends, maps and clips whose questions have answers that can be worked out."""

from emblema.bench.tasks.generate import TASKS, Plan, generate, make_episode
from emblema.bench.tasks.world import Clip, Episode, Legend, Map, Question
from emblema.bench.tasks.write import write_clip, write_episodes, write_page

__all__ = [
    "TASKS",
    "Clip",
    "Episode",
    "Legend",
    "Map",
    "Plan",
    "Question",
    "generate",
    "make_episode",
    "write_clip",
    "write_episodes",
    "write_page",
]
