"""Episodes of plain English from templates: passages that hold facts between other sentences, and questions about them.

Half of an episode's passages tell where a thing is, the others which thing a person has to do with. A *direct* question
asks a fact of the first half, *one* a fact of the second, *two* needs both; *list* asks for all facts of the first
half, and *free* leaves the form of the answer open.
"""

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MATERIAL = Path(__file__).with_suffix(".toml")
PASSAGES = 6
"""Passages of an episode, and those that a request shows."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What passages are about; `{k}` is the thing, `{e}` where it is, `{n}` a person, `{o}` another fact of hers.

    Attributes:
        keys, ends, others: words for the things, for where they are, and for the other facts.
        first, second: sentences that tell where a thing is, and which thing is a person's.
        two, one, direct: questions, each with the beginning of its answer, up to the word that is asked for.
        every: a question for all of the ends, with the beginning of its answer.
    """

    keys: Sequence[str]
    ends: Sequence[str]
    others: Sequence[str]
    first: str
    second: str
    two: Sequence[str]
    one: Sequence[str]
    direct: Sequence[str]
    every: Sequence[str]


@cache
def material() -> tuple[dict[str, Any], tuple[Domain, ...]]:
    """Return what passages are written with: lists of words and of parts of sentences by name, and the domains."""
    held = tomllib.loads(MATERIAL.read_text(encoding="utf-8"))
    words = held["words"]
    named = ({**each, **{name: words[each[name]] for name in ("keys", "ends", "others")}} for each in held["domains"])
    return words | held["sentence"], tuple(Domain(**each) for each in named)


LENGTHS = {"two": 8, "one": 8, "direct": 8, "list": 40, "free": 24}
"""Tokens of an answer that are compared, at most, by kind of question."""


@dataclass(frozen=True, slots=True)
class PassageQuestion:
    """A question about an episode.

    Attributes:
        kind: `two`, `one`, `direct`, `list` or `free`.
        text: what is asked.
        lead: the beginning of the answer that the model is given.
        answer: the word that follows it; empty for `list`.
        length: tokens of the answer that are compared, at most.
        needs: numbers of the passages that hold its facts.
    """

    kind: str
    text: str
    lead: str
    answer: str
    length: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PassageEpisode:
    """Passages, those of the first kind of fact before the others.

    Attributes:
        asked: all questions about them, by kind.
        questions: one of each kind.
    """

    name: str
    passages: tuple[str, ...]
    asked: dict[str, tuple[PassageQuestion, ...]]
    questions: tuple[PassageQuestion, ...]


def draw_episode(seed: int, number: int, passages: int, sentences: tuple[int, int]) -> PassageEpisode:
    """Return an episode that the seed and its number decide.

    Args:
        seed: of the whole run.
        number: of the episode.
        passages: how many, an even number.
        sentences: the least and the most sentences of a passage beside its fact.
    """
    rnd = random.Random(f"{seed} {number}")
    words, domains = material()
    domain, pairs = rnd.choice(domains), passages // 2
    keys, ends, names = (rnd.sample(found, pairs) for found in (domain.keys, domain.ends, words["people"]))
    others, owned = rnd.sample(domain.others, pairs), rnd.sample(range(pairs), pairs)
    firsts = [domain.first.format(k=key, e=end) for key, end in zip(keys, ends, strict=True)]
    seconds = [
        domain.second.format(n=name, o=other, k=keys[own])
        for name, other, own in zip(names, others, owned, strict=True)
    ]
    written = tuple(_passage(rnd, fact, sentences) for fact in (*firsts, *seconds))

    def about(kind: str, form: Sequence[str], who: int) -> PassageQuestion:
        own = owned[who]
        named = {"k": keys[own], "n": names[who], "o": others[who]}
        place, person = own, pairs + who
        answer, needs = {
            "two": (ends[own], (place, person)),
            "one": (keys[own], (person,)),
            "direct": (ends[own], (place,)),
            "list": ("", tuple(range(pairs))),
            "free": (ends[own], (place,)),
        }[kind]
        return PassageQuestion(kind, form[0].format(**named), form[1].format(**named), answer, LENGTHS[kind], needs)

    forms = {"two": domain.two, "one": domain.one, "direct": domain.direct, "list": domain.every}
    forms |= {"free": (domain.direct[0], "")}
    asked = {kind: tuple(about(kind, form, who) for who in range(pairs)) for kind, form in forms.items()}
    return PassageEpisode(f"{seed}-{number}", written, asked, tuple(rnd.choice(found) for found in asked.values()))


def _passage(rnd: random.Random, fact: str, sentences: tuple[int, int]) -> str:
    """Return a passage with its fact at the beginning, or after one or more sentences."""
    others = [_sentence(rnd) for _ in range(rnd.randint(*sentences))]
    others.insert(0 if rnd.random() < 0.5 else rnd.randrange(len(others) + 1), fact)
    return " ".join(others) + "\n"


def _sentence(rnd: random.Random) -> str:
    words = material()[0]
    opening, actor, action, ending = (rnd.choice(words[part]) for part in ("openings", "actors", "actions", "endings"))
    return f"{opening} {actor} {action}{ending}.".format(month=rnd.choice(words["months"]), n=rnd.randrange(12, 95))
