"""The parts of the bench by name: the traces, and every table of Kamera's section 5 and appendix D."""

from emblema.errors import PromptError

TRACES = ("agent", "novelty")
TABLES = ("orbit", "survivors", "recall", "divergence", "superset", "refresh")
PARTS = (*TRACES, *TABLES)


def parts_of(text: str | None) -> tuple[str, ...]:
    """Names with commas between them, in the bench's order; all without any.

    Raises:
        PromptError: there is none of that name.
    """
    if text is None:
        return PARTS
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = next((name for name in named if name not in PARTS), None)
    if unknown is not None or not named:
        raise PromptError(f"--only {text!r}: choose of {', '.join(PARTS)}, with commas")
    return tuple(name for name in PARTS if name in named)
