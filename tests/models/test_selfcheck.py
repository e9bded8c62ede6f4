"""The check of a model before it is trusted runs it no more often than its checks have to."""

from typing import Any

import pytest

from emblema.kv.chunk import Encoded
from emblema.models.adapter import Adapter
from emblema.models.selfcheck import SHIFTS, selfcheck
from tests import families as matrix


def test_a_passage_is_prefilled_once_at_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, prefill, ran = matrix.loaded("llava").adapter, Adapter.prefill, []

    def noted(own: Adapter, encoded: Encoded, shift: int = 0) -> Any:
        ran.append((encoded.tokens, shift))
        return prefill(own, encoded, shift)

    monkeypatch.setattr(Adapter, "prefill", noted)
    assert selfcheck(adapter, tokens=24).passed
    reached = [shift for shift in SHIFTS if shift + 24 <= adapter.context_length]
    assert sorted(ran) == sorted([(12, 0), (24, 0), *((24, shift) for shift in reached)])
