"""The link from antecedents to the chunk: how few of their keys carry its attention (Kamera, figure 3c)."""

import torch

from benchmarks.deficit.rank import directions, singular
from benchmarks.deficit.subject import Subject
from benchmarks.deficit.tokens import needed


def of_subject(subject: Subject) -> dict[str, float]:
    """Per layer, of the attention that the chunk's rows pay to antecedents' keys in the conditioned forward:

    how many keys carry 90 % of it, their share of the keys, the directions that hold 90 % of its energy, and how much
    of all attention it is.
    """
    rows = [row for start, stop in subject.antecedents for row in range(start, stop)]
    figures: dict[str, float] = {"antecedent keys": len(rows)}
    for layer, weights in sorted(subject.seen.attention.items()):
        own = weights[:, torch.tensor(rows, device=weights.device)].float().cpu()
        share = needed(own.sum(dim=0))
        figures[f"landmarks/{layer}"] = share * len(rows)
        figures[f"landmarks per key/{layer}"] = share
        figures[f"link rank/{layer}"] = directions(singular(own))
        figures[f"link mass/{layer}"] = float(own.sum() / weights.sum())
    found = [value for name, value in figures.items() if name.startswith("landmarks/")]
    if found:
        figures["landmarks/mean"] = sum(found) / len(found)
    return figures
