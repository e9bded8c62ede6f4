"""EXAONE 4.5: Qwen2.5-VL's grids and video in a row of plain positions; full layers without positions."""

from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Toolkit
from emblema.models.families.qwen_vl import QwenVL


class Exaone(QwenVL):
    """EXAONE 4.5."""

    name = "EXAONE 4.5"
    model_types = ("exaone4_5",)
    notes = "one position axis; sliding layers, and full layers without positions; native video"
    in_parts = False

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        return kit.ids("<vision>"), kit.ids("</vision>")
