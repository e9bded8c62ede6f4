"""One half of the patch alone: keys or values; of a latent cache the latent or the rotary key (Kamera, section 3)."""

from benchmarks.deficit.subject import Case, CaseAnswer, Subject
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch

THIN = 16
NAMES = {"heads": ("keys", "values"), "latent": ("latent", "rotary key")}


def of_case(case: Case) -> dict[str, CaseAnswer]:
    """The patch on one slot of every layer, at full rank and at rank 16; the rotated and the fixed part of keys apart.

    Where only a part of each key is rotated, and for a latent cache, position and content are apart already.
    """
    subject = case.subject
    found = {}
    for place, name in enumerate(slot_names(subject)):
        for label, rank in (("full", subject.full_rank), (str(THIN), THIN)):
            found[f"{name} only/{label}"] = case.patched(one_slot(subject.patch, place), rank)
    layouts = subject.adapter.layouts
    if all(one.rotary is not None and one.rotary.slot == "keys" for one in layouts) and any(
        one.rotary is not None and one.rotary.width < one.keys[1] for one in layouts
    ):
        found["rotated keys only/full"] = case.ask(_band(subject, rotated=True))
        found["fixed keys only/full"] = case.ask(_band(subject, rotated=False))
    return found


def slot_names(subject: Subject) -> tuple[str, str]:
    """What the two slots are called, by the kind of cache."""
    return NAMES[subject.adapter.layouts[0].kind]


def one_slot(patch: Patch, place: int) -> Patch:
    """The patch on the first or the second slot alone."""

    def nothing(factors: Factors) -> Factors:
        return Factors(factors.left[:, :0], factors.right[:0])

    return Patch(
        tuple(
            None
            if one is None
            else LayerPatch(
                one.keys if place == 0 else nothing(one.keys), one.values if place == 1 else nothing(one.values)
            )
            for one in patch.layers
        )
    )


def _band(subject: Subject, *, rotated: bool) -> list[LayerRows]:
    kept = []
    for layout, delta in zip(subject.adapter.layouts, subject.deficits, strict=True):
        mask = delta.keys.new_zeros(delta.keys.shape[2])
        if layout.rotary is not None:
            mask[layout.rotary.start : layout.rotary.start + layout.rotary.width] = 1
        kept.append(LayerRows(delta.keys * (mask if rotated else 1 - mask), delta.values * 0))
    return kept
