"""The vocabulary: the world's words, numbers, punctuation and some hundred common English words."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.tasks.episodes import TEMPLATES
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS

SPECIAL = (
    "<|endoftext|>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PUNCTUATION = tuple(".,?!:;'\"()-/%&+=*#_[]{}<>|@$")
COMMON = tuple(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())
WORLD = (*ICON_NAMES, *COLOUR_NAMES, *LANDS, *NUMBERS)
ASKED = tuple(word for group in TEMPLATES.values() for text in group for word in re.findall(r"[a-z?]+", text))
VOCABULARY = tuple(dict.fromkeys((*SPECIAL, *WORLD, *ASKED, *PUNCTUATION, *"0123456789", *COMMON)))
INDEX = {word: number for number, word in enumerate(VOCABULARY)}
