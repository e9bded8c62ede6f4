"""Pictures that differ a little from a stored one: what differs is encoded and computed, all else is taken."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.variants.pictures import ChangedMap, draw_maps
from emblema import Engine
from emblema.link.lanes import Lane
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt, RowState
from emblema.link.strategies.blind import Blind
from emblema.session.requests import LinkRequest, Prefill

SIDE = 16
QUIET = Policy(canary=0, learning=0)


@pytest.fixture
def engine(reference: Engine) -> Iterator[Engine]:
    with Engine(reference.adapter.model, reference.processor, policy=QUIET) as made:
        yield made


@pytest.fixture(scope="module")
def drawn() -> ChangedMap:
    return next(draw_maps(5, 1, SIDE, 0.1, "region"))


@pytest.fixture
def encoded_pixels(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers of pixels each run of the encoder was given."""
    ran: list[int] = []
    kind = engine.adapter.kind
    encode = kind.encode

    def noted(model: Any, prepared: Any) -> Any:
        ran.append(prepared.features["pixel_values"].numel())
        return encode(model, prepared)

    monkeypatch.setattr(kind, "encode", noted)
    return ran


def ask(engine: Engine, *pictures: Image.Image, strategy: Any = "auto", question: str) -> Prefill:
    return engine.prefill([*pictures, question], strategy)


def read(engine: Engine, *parts: Any) -> Prompt:
    return engine.session.read([*parts, "what colour is under the tent ?"], prefill_media=False)


def test_a_tenth_changed_computes_and_encodes_at_most_three_tenths(
    engine: Engine, drawn: ChangedMap, encoded_pixels: list[int]
) -> None:
    legend, base = engine.add(drawn.legend.image()), engine.add(drawn.base.image())
    whole = encoded_pixels[-1]
    encoded_pixels.clear()
    question = drawn.questions[0][0]
    made = ask(engine, legend, drawn.changed.image(), question=question)
    assert [own.lane for own in made.plan.decisions] == [Lane.LEADING, Lane.CHANGED]
    text = made.usage.prompt_tokens - legend.tokens - base.tokens
    assert (made.usage.computed_tokens - text) / base.tokens <= 0.3
    assert sum(encoded_pixels) / whole == pytest.approx(round(0.1 * SIDE * SIDE) / SIDE**2)
    assert "auto:leading+changed" in made.usage.lane and not made.usage.misses
    full = ask(engine, legend, drawn.changed.image(), strategy="full", question=question)
    assert int(made.logits.argmax()) == int(full.logits.argmax())


def test_equal_pixels_give_the_bits_of_reuse(engine: Engine, drawn: ChangedMap) -> None:
    legend, picture = engine.add(drawn.legend.image()), drawn.base.image()
    engine.add(picture)
    builder = engine.session.chunk_builder
    stored = read(engine, legend, picture)
    # The same pixels, which the encoder's input is the same of, under another identity.
    pending = builder.prepare(picture).chunks[0]
    other = builder.part_of(type(pending)(("0" * 64,), pending.kind, pending.encode, pending.input))
    assert other.state is RowState.CANONICAL and other.chunk.id == stored.chunk_parts[1].chunk.id
    alike = stored.map_chunks(lambda segment, part: other if segment.start > legend.tokens else part)
    runs = [engine.session.link(LinkRequest(prompt, Blind())) for prompt in (stored, alike)]
    assert torch.equal(runs[0].logits, runs[1].logits)
    for one, two in zip(runs[0].kv, runs[1].kv, strict=True):
        assert torch.equal(one.keys, two.keys) and torch.equal(one.values, two.values)


def test_what_differs_too_much_is_a_new_picture(engine: Engine, drawn: ChangedMap, encoded_pixels: list[int]) -> None:
    legend, base = engine.add(drawn.legend.image()), engine.add(drawn.base.image())
    whole = encoded_pixels[-1]
    inverted = Image.fromarray(255 - np.asarray(drawn.base.image()))
    part = read(engine, legend, inverted).chunk_parts[1]
    assert part.changed is None and part.state is RowState.MISSING and part.tokens == base.tokens
    assert encoded_pixels[-1] == whole


def test_bounds_and_switches_close_the_lane(reference: Engine, drawn: ChangedMap) -> None:
    question, picture = drawn.questions[0][0], drawn.changed.image()
    for policy, kept in (
        (Policy(canary=0, learning=0, changed=0), False),
        (Policy(canary=0, learning=0, changed=0.05), False),
        (Policy(canary=0, learning=0, max_kl=0), True),
    ):
        with Engine(reference.adapter.model, reference.processor, policy=policy) as engine:
            legend = engine.add(drawn.legend.image())
            engine.add(drawn.base.image())
            prompt = read(engine, legend, picture)
            assert (prompt.chunk_parts[1].changed is not None) == kept
            made = ask(engine, legend, picture, question=question)
            assert Lane.CHANGED not in {own.lane for own in made.plan.decisions}
            closed = [own.closed for own in made.plan.decisions if own.start > legend.tokens]
            assert closed == [(Lane.CHANGED,) if kept else ()]


def test_a_lost_base_is_computed_and_never_wrong(engine: Engine, drawn: ChangedMap) -> None:
    legend, base = engine.add(drawn.legend.image()), engine.add(drawn.base.image())
    prompt = read(engine, legend, drawn.changed.image())
    assert prompt.chunk_parts[1].changed is not None
    engine.store.delete(base.id)
    made = engine.session.link(LinkRequest(prompt, "auto"))
    assert [own.lane for own in made.plan.decisions] == [Lane.LEADING, Lane.FRESH]
    full = engine.session.link(LinkRequest(prompt, "full"))
    torch.testing.assert_close(made.logits, full.logits, rtol=1e-4, atol=1e-4)
    # Gone before the prompt is read.
    assert read(engine, legend, drawn.changed.image()).chunk_parts[1].changed is None


def test_tenants_never_see_each_others_pictures(reference: Engine, drawn: ChangedMap) -> None:
    with Engine(reference.adapter.model, reference.processor, policy=QUIET) as engine:
        one, two = (engine.on(engine.store.parent.tenant(name)) for name in (b"one" * 8, b"two" * 8))
        one.add(drawn.base.image())
        assert read(two, drawn.changed.image()).chunk_parts[0].changed is None
        assert read(one, drawn.changed.image()).chunk_parts[0].changed is not None


def test_the_second_of_two_alike_pictures_is_kept_for_the_third(engine: Engine) -> None:
    first, second, third = (next(draw_maps(seed, 1, SIDE, 0.02, "region")) for seed in (8, 8, 8))
    pixels = np.asarray(first.base.image()).copy()
    shown = [Image.fromarray(pixels)]
    for step in range(2):
        pixels = pixels.copy()
        pixels[28 * step : 28 * step + 20, 3:20] //= 3
        shown.append(Image.fromarray(pixels))
    question = second.questions[0][0]
    legend = engine.add(third.legend.image())
    lanes = [ask(engine, legend, picture, question=question).plan.decisions[-1].lane for picture in shown]
    assert lanes == [Lane.FRESH, Lane.FRESH, Lane.CHANGED]


def test_a_base_is_always_what_was_computed_whole(engine: Engine, drawn: ChangedMap) -> None:
    base = engine.add(drawn.base.image())
    legend = engine.add(drawn.legend.image())
    ask(engine, legend, drawn.changed.image(), question=drawn.questions[0][0])
    pixels = np.asarray(drawn.changed.image()).copy()
    pixels[:20, 3:20] //= 3
    changed = read(engine, legend, Image.fromarray(pixels)).chunk_parts[1].changed
    assert changed is not None and changed.base.id == base.id
    # What differs is from the stored picture's own pixels, not from the one before.
    assert sum(stop - start for start, stop in changed.rows) >= round(0.1 * SIDE * SIDE)


@pytest.mark.parametrize("size", [(28, 28), (28, 28 * 9), (28 * 9, 28), (45, 71), (28 * 7, 28 * 5)])
def test_pictures_of_any_size_are_compared(engine: Engine, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (*size, 3), dtype=np.uint8)
    engine.add(Image.fromarray(pixels))
    pixels = pixels.copy()
    pixels[-1, -1] = 255 - pixels[-1, -1]
    part = read(engine, Image.fromarray(pixels)).chunk_parts[0]
    whole = engine.adapter.encode(engine.session.chunk_builder.preparer.image(Image.fromarray(pixels)))
    torch.testing.assert_close(part.chunk.encoded.embeds, whole.embeds, rtol=1e-5, atol=1e-5)
    if part.changed is not None:
        made = engine.session.link(LinkRequest(read(engine, Image.fromarray(pixels)), Blind()))
        assert made.usage.cached_tokens > 0
