"""The loss isolated by a mask: the chunk at its own positions, blind to its antecedents alone (Kamera, section 2)."""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.deficit.subject import Case, CaseAnswer, Subject, behind, chunk_of
from emblema.kv.chunk import Encoded
from emblema.kv.layout import LayerRows
from emblema.kv.patch import deficit
from emblema.link.prompt import ChunkPart, Prompt

SHIFT = 1000
"""Positions that the position control moves everything on by."""


Controls = dict[str, list[LayerRows]]
"""Deficits of the chunk as it is conditioned otherwise than by its antecedents in their places."""


def controls(subject: Subject, filler: Encoded | None) -> Controls:
    """The chunk conditioned `SHIFT` positions further on, and behind neutral filler in its antecedents' places."""
    found = {"moved": _deltas(subject, moved(subject.front, SHIFT))}
    return found if filler is None else found | {"filler": _deltas(subject, filled(subject.front, filler))}


def of_case(case: Case, others: Controls) -> dict[str, CaseAnswer]:
    """The loss, which is `blocked`: the chunk computed in its place, blind to its antecedents; and its controls.

    `unblocked` runs the mask's path with nothing hidden. `moved` is what position costs where conditioning is there;
    what it costs without, `blind` against `blocked` tells.
    """
    found = {"blocked": case.conditioned(case.subject.antecedents), "unblocked": case.conditioned(((0, 0),))}
    return found | {name: case.ask(deltas) for name, deltas in others.items()}


def _deltas(subject: Subject, front: Prompt) -> list[LayerRows]:
    rows, _, _ = behind(subject.adapter, front)
    return [deficit(own, base) for own, base in zip(rows, subject.canonical, strict=True)]


def moved(front: Prompt, shift: int) -> Prompt:
    """The same rows, every position further on."""
    segments = tuple(replace(one, position=one.position + shift) for one in front.segments)
    return Prompt(segments, front.axes, front.next_position + shift)


def filled(front: Prompt, filler: Encoded) -> Prompt:
    """The same rows and positions with neutral filler in place of what the antecedents show."""
    segments = [
        one if index == len(front.segments) - 1 or not isinstance(one.part, ChunkPart)
        else replace(one, part=ChunkPart(replace(chunk_of(one), encoded=neutral(chunk_of(one).encoded, filler))))
        for index, one in enumerate(front.segments)
    ]  # fmt: skip
    return Prompt(tuple(segments), front.axes, front.next_position)


def neutral(encoded: Encoded, filler: Encoded) -> Encoded:
    """A chunk whose media rows all hold the mean of the filler's; a passage of text holds the mean of its own rows."""
    visual = encoded.visual
    embeds = encoded.embeds.clone()
    if not bool(visual.any()):
        embeds[:] = embeds.mean(dim=0)
        return replace(encoded, embeds=embeds)
    embeds[visual] = filler.embeds[filler.visual].mean(dim=0).to(embeds)
    deepstack = tuple(
        _mean(layer).expand_as(own).to(own) for own, layer in zip(encoded.deepstack, filler.deepstack, strict=True)
    )
    return replace(encoded, embeds=embeds, deepstack=deepstack)


def _mean(rows: Tensor) -> Tensor:
    return torch.mean(rows.float(), dim=0, keepdim=True)
