"""Pictures that differ a little, of an encoder that attends over all of them: what differs is encoded by kept rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.variants.pictures import ChangedMap, draw_maps
from benchmarks.variants.towers import add_attention
from emblema import Engine
from emblema.kv.chunk import DeferredEncoded
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, RowState
from emblema.models.encode_parts import PROBED
from emblema.models.load import load_model
from emblema.session import chunk_builder

MODEL = Path(__file__).parents[2] / "benchmarks" / "models" / "reference-deepstack"
SIDE = 16
QUIET = Policy(canary=0, learning=0)


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any]:
    """Load the bundled model, whose encoder has learnt to attend nothing, and have it attend."""
    model, processor = load_model(MODEL)
    add_attention(model, 10)
    return model, processor


@pytest.fixture(scope="module")
def drawn() -> ChangedMap:
    return next(draw_maps(5, 1, SIDE, 0.1, "region"))


@pytest.fixture
def engine(model: tuple[Any, Any]) -> Iterator[Engine]:
    with Engine(*model, policy=QUIET) as made:
        yield made


@pytest.fixture
def encoded_pixels(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers of pixels each run of the encoder was given."""
    ran: list[int] = []
    encode = engine.adapter.kind.encode

    def noted(model: Any, prepared: Any) -> Any:
        ran.append(prepared.features["pixel_values"].numel())
        return encode(model, prepared)

    monkeypatch.setattr(engine.adapter.kind, "encode", noted)
    return ran


def part_of(engine: Engine, *parts: Any) -> ChunkPart:
    return engine.session.read([*parts, "what colour is under the tent ?"], prefill_media=False).chunk_parts[-1]


def whole(engine: Engine, picture: Image.Image) -> torch.Tensor:
    return engine.adapter.encode(engine.session.chunk_builder.preparer.image(picture)).embeds


def test_a_tenth_changed_computes_and_encodes_at_most_three_tenths(
    engine: Engine, drawn: ChangedMap, encoded_pixels: list[int]
) -> None:
    legend, base = engine.add(drawn.legend.image()), engine.add(drawn.base.image())
    size = encoded_pixels[-1]
    encoded_pixels.clear()
    question = drawn.questions[0][0]
    made = engine.prefill([legend, drawn.changed.image(), question], "auto")
    assert [own.lane for own in made.plan.decisions] == [Lane.LEADING, Lane.CHANGED]
    text = made.usage.prompt_tokens - legend.tokens - base.tokens
    assert (made.usage.computed_tokens - text) / base.tokens <= 0.3
    # What changed, and some of what did not.
    share = (round(0.1 * SIDE * SIDE) + PROBED) / SIDE**2
    assert sum(encoded_pixels) / size == pytest.approx(share) and share <= 0.3
    full = engine.prefill([legend, drawn.changed.image(), question], "full")
    assert int(made.logits.argmax()) == int(full.logits.argmax())


def test_whatever_is_not_that_lane_has_the_exact_rows(engine: Engine, drawn: ChangedMap) -> None:
    legend = engine.add(drawn.legend.image())
    engine.add(drawn.base.image())
    picture, question = drawn.changed.image(), drawn.questions[0][0]
    part = part_of(engine, legend, picture)
    assert part.changed is not None and part.changed.encoded is not None
    assert isinstance(part.chunk.encoded, DeferredEncoded)
    exact = whole(engine, picture)
    assert not torch.equal(part.changed.encoded.embeds, exact)
    torch.testing.assert_close(part.chunk.encoded.embeds, exact)
    full = engine.prefill([legend, picture, question], "full")
    with Engine(engine.adapter.model, engine.processor, policy=Policy(changed=0)) as other:
        plain = other.prefill([other.add(drawn.legend.image()), picture, question], "full")
    torch.testing.assert_close(full.logits, plain.logits, rtol=1e-4, atol=1e-4)


def test_what_is_kept_of_such_a_picture_is_exact(model: tuple[Any, Any], drawn: ChangedMap) -> None:
    policy = Policy(canary=0, learning=0, inline_media_at_once=True, inline_media_rows=10)
    with Engine(*model, policy=policy) as engine:
        legend = engine.add(drawn.legend.image())
        engine.add(drawn.base.image())
        picture = drawn.changed.image()
        made = engine.prefill([legend, picture, drawn.questions[0][0]], "auto")
        assert made.plan.decisions[-1].lane is Lane.CHANGED
        engine.session.idle()
        part = part_of(engine, legend, picture)
        assert part.state is RowState.CANONICAL and not isinstance(part.chunk.encoded, DeferredEncoded)
        torch.testing.assert_close(part.chunk.encoded.embeds, whole(engine, picture))
        names = engine.adapter.tower_rows.names(engine.session.chunk_builder.owner)
        assert part.chunk.id in names


def test_a_change_that_moves_the_others_too_far_makes_a_new_picture(
    engine: Engine, drawn: ChangedMap, encoded_pixels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.add(drawn.base.image())
    size = encoded_pixels[-1]
    monkeypatch.setattr(chunk_builder, "MOST_MOVED", -1.0)
    part = part_of(engine, drawn.changed.image())
    assert part.changed is None and encoded_pixels[-1] == size
    torch.testing.assert_close(part.chunk.encoded.embeds, whole(engine, drawn.changed.image()))
    # After some in a row none is tried any more.
    runs = []
    for step in range(chunk_builder.MOST_FAR):
        pixels = np.asarray(drawn.base.image()).copy()
        pixels[28 * step : 28 * step + 20, 3:20] //= 3
        encoded_pixels.clear()
        assert part_of(engine, Image.fromarray(pixels)).changed is None
        runs.append(len(encoded_pixels))
    assert runs == [2] * (chunk_builder.MOST_FAR - 1) + [1]


def test_equal_pixels_are_the_stored_picture(engine: Engine, drawn: ChangedMap) -> None:
    picture = drawn.base.image()
    stored, builder = engine.add(picture), engine.session.chunk_builder
    pending = builder.prepare(picture).chunks[0]
    other = builder.part_of(type(pending)(("0" * 64,), pending.kind, pending.encode, pending.input))
    assert other.state is RowState.CANONICAL and other.chunk.id == stored.id


@pytest.mark.parametrize("most", [0, 1000])
def test_without_room_for_rows_pictures_are_new(model: tuple[Any, Any], drawn: ChangedMap, most: int) -> None:
    with Engine(*model, policy=Policy(canary=0, learning=0, changed_bytes=most)) as engine:
        engine.add(drawn.base.image())
        part = part_of(engine, drawn.changed.image())
        assert part.changed is None and engine.adapter.tower_rows.bytes == 0
        torch.testing.assert_close(part.chunk.encoded.embeds, whole(engine, drawn.changed.image()))


def test_a_base_whose_rows_made_room_is_no_base(model: tuple[Any, Any], drawn: ChangedMap) -> None:
    with Engine(*model, policy=QUIET) as engine:
        engine.add(drawn.base.image())
        size = engine.adapter.tower_rows.bytes
    with Engine(*model, policy=Policy(canary=0, learning=0, changed_bytes=size)) as engine:
        engine.add(drawn.base.image())
        assert part_of(engine, drawn.changed.image()).changed is not None
        engine.add(Image.fromarray(255 - np.asarray(drawn.base.image())))
        assert engine.adapter.tower_rows.bytes == size
        third = np.asarray(drawn.base.image()).copy()
        third[:20, 3:20] //= 3
        assert part_of(engine, Image.fromarray(third)).changed is None


def test_rows_go_with_their_picture_and_are_of_one_tenant(engine: Engine, drawn: ChangedMap) -> None:
    one, two = (engine.on(engine.store.parent.tenant(name)) for name in (b"one" * 8, b"two" * 8))
    base = one.add(drawn.base.image())
    kept = one.adapter.tower_rows
    assert part_of(two, drawn.changed.image()).changed is None
    assert part_of(one, drawn.changed.image()).changed is not None
    before = kept.bytes
    one.store.delete(base.id)
    assert part_of(one, drawn.changed.image()).changed is None
    assert base.id not in kept.names(one.session.chunk_builder.owner) and kept.bytes <= before


def test_a_base_deleted_after_the_picture_was_encoded_leaves_an_exact_picture(
    engine: Engine, drawn: ChangedMap
) -> None:
    base = engine.add(drawn.base.image())
    assert part_of(engine, drawn.changed.image()).changed is not None
    engine.store.delete(base.id)
    part = part_of(engine, drawn.changed.image())
    assert part.changed is None
    torch.testing.assert_close(part.chunk.encoded.embeds, whole(engine, drawn.changed.image()))
