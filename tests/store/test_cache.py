"""Nothing that is not finite is kept: not by `put`, not in the background, not as an artifact."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from emblema import Store
from emblema.errors import StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch
from tests.store.pieces import chunk, name

BAD = torch.tensor([[[0.0, math.nan]] * 5])
GOOD = torch.zeros(1, 5, 2)
FACTORS = Factors(torch.zeros(5, 1), torch.zeros(1, 2))


def spoilt() -> dict[str, Chunk]:
    plain = chunk(name(1))
    encoded = replace(plain.encoded, embeds=torch.full((5, 1), math.inf))
    return {
        "keys": replace(plain, rows=(LayerRows(GOOD, GOOD), LayerRows(BAD, GOOD))),
        "values": replace(plain, rows=(LayerRows(GOOD, BAD),)),
        "embeddings": replace(plain, encoded=encoded),
        "deepstack": replace(plain, encoded=replace(plain.encoded, deepstack=(torch.full((5, 1), -math.inf),))),
    }


@pytest.mark.parametrize("where", ["keys", "values", "embeddings", "deepstack"])
def test_a_chunk_is_refused(where: str) -> None:
    with Store() as store:
        own, bad = store.tenant(), spoilt()[where]
        with pytest.raises(StoreError, match="NaN or infinite"):
            own.put(bad)
        assert not own.put_unless_deleted(bad) and own.find(bad.id) is None and len(own) == 0
        own.put(chunk(bad.id))
        assert own.find(bad.id) is not None


@pytest.mark.parametrize(
    "artifact",
    [
        lambda: Patch((None, LayerPatch(FACTORS, replace(FACTORS, right=torch.full((1, 2), math.nan))))),
        lambda: Patch((LayerPatch(replace(FACTORS, left=torch.full((5, 1), math.inf)), FACTORS),)),
    ],
)
def test_an_artifact_is_not_kept(artifact: Callable[[], Patch]) -> None:
    with Store() as store:
        own = store.tenant()
        own.put(chunk(name(1)))
        key = ArtifactKey("model", name(1), ())
        assert not own.put_artifact(key, artifact()) and own.find_patch(key) is None
        assert own.put_artifact(key, Patch((LayerPatch(FACTORS, FACTORS),)))
