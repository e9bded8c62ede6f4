"""The engine as a person uses it, on the bundled model."""

import asyncio
import io
import time
from itertools import permutations
from pathlib import Path

import numpy
import pytest
import torch

from benchmarks.tasks import Episode
from emblema import AsyncEngine, Engine, slid
from emblema.errors import CapacityError, EmblemaError, PromptError, StoreError, StrategyError
from emblema.kv.chunk import Chunk, Clip
from emblema.store.store import Store

QUESTION = "what colour is under the tent ?"


def test_the_same_picture_is_found_again_however_it_comes(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    picture = episode.pages[0].image().convert("RGB")
    path = tmp_path / "page.png"
    picture.save(path)
    held = io.BytesIO()
    picture.save(held, "PNG")
    chunks = [reference.add(source) for source in (picture, path, str(path), held.getvalue(), numpy.asarray(picture))]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk is chunks[0] for chunk in chunks)
    assert chunks[0].id in reference.store and reference.store.get(chunks[0].id) is chunks[0]
    assert len(chunks[0].id) == 64 and chunks[0].tokens == 66 and chunks[0].bytes > 0


def test_encoding_and_prefill_are_apart(reference: Engine, episode: Episode) -> None:
    """Kept embeddings become the same chunk, whose KV was dropped meanwhile; the encoder does not run for it."""
    chunk = reference.add(episode.pages[0].image())
    (piece,) = reference.encode(episode.pages[0].image())
    assert piece.id == chunk.id and 0 < piece.bytes < chunk.bytes
    reference.store.delete(chunk.id)
    calls = []
    handle = reference.adapter.model.model.visual.register_forward_hook(lambda *given: calls.append(given))
    try:
        again = reference.add(piece)
        assert not calls
        reference.encode(episode.pages[0].image())
        assert calls, "the hook would see the encoder"
    finally:
        handle.remove()
    assert again.id in reference.store
    for new, old in zip(again.rows, chunk.rows, strict=True):
        assert torch.equal(new.keys, old.keys) and torch.equal(new.values, old.values)


def test_usage_adds_up_and_the_second_use_forms_nothing(episode: Episode) -> None:
    engine = Engine.load("reference", anchor=())
    pages = [engine.add(page.image()) for page in episode.pages]
    began = time.perf_counter()
    first = engine.generate([*pages, QUESTION], "patch-25%").usage
    second = engine.generate([*pages, "which colour lies under the tent ?"], "patch-25%").usage
    assert 0 < first.ttft_seconds + second.ttft_seconds < time.perf_counter() - began
    for usage in (first, second):
        assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens
        assert usage.patched_tokens == usage.cached_tokens == 66 * len(pages)
        assert usage.lane == "patch-25%" and usage.completion_tokens >= 1 and usage.ttft_seconds > 0
    assert first.forming_tokens > 66 * len(pages) and second.forming_tokens == 0
    moved = engine.prefill([*pages, QUESTION], "patch-25%", template=False)
    assert moved.usage.forming_tokens == 0, "the key holds neither the text in front nor the positions"
    assert engine.prefill([pages[-1], *pages[:-1], QUESTION], "patch-25%").usage.forming_tokens > 0
    assert engine.prefill([*pages, QUESTION], "patch-6%").usage.forming_tokens == 0, "a higher rank serves a lower one"


def test_a_prefill_shows_what_it_did(reference: Engine, pages: list[Chunk]) -> None:
    prefill = reference.prefill([*pages, QUESTION], "blind")
    assert prefill.logits.shape == (reference.adapter.vocab_size,) and prefill.logits.dtype == torch.float32
    assert len(prefill.kv) == len(reference.adapter.layouts)
    assert prefill.kv[0].keys.shape[1] == prefill.usage.prompt_tokens == len(prefill.token_ids)
    assert prefill.trace.cached == prefill.usage.cached_tokens and "blind" in str(prefill.plan)


def test_decoding_after_full_is_the_stock_generate(reference: Engine, episode: Episode, pages: list[Chunk]) -> None:
    model, preparer = reference.adapter.model, reference.session.chunk_builder.preparer
    prefill = reference.prefill([*pages, QUESTION], "full")
    ids = prefill.token_ids[None]
    images = preparer.kit.image_processor(images=[page.image() for page in episode.pages], return_tensors="pt")
    kinds = (ids == model.config.image_token_id).long()
    with torch.inference_mode():
        stock = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **images,
            max_new_tokens=12, do_sample=False,
        )[0, ids.shape[1] :].tolist()  # fmt: skip
    reply = reference.generate([*pages, QUESTION], "full", max_new_tokens=12)
    ended = [token for token in stock if token not in reference.end_tokens]
    assert list(reply.token_ids) == ended


def test_every_order_and_twenty_places_start_from_the_rows_as_first_written(
    reference: Engine, pages: list[Chunk]
) -> None:
    three = [*pages, *pages][:3] if len(pages) < 3 else pages[:3]
    written = [[(rows.keys.clone(), rows.values.clone()) for rows in chunk.rows] for chunk in three]
    first = reference.prefill([three[0], QUESTION], "blind", template=False)
    for opening in range(20):
        reference.prefill([[20] * opening, *three, QUESTION], "blind", template=False)
    for order in permutations(three):
        reference.prefill([*order, QUESTION], "patch-25%")
    for chunk, before in zip(three, written, strict=True):
        for rows, (keys, values) in zip(chunk.rows, before, strict=True):
            assert torch.equal(rows.keys, keys) and torch.equal(rows.values, values)
    again = reference.prefill([three[0], QUESTION], "blind", template=False)
    assert torch.equal(first.logits, again.logits)


def test_streamed_pieces_make_the_reply(reference: Engine, pages: list[Chunk]) -> None:
    whole = reference.generate([*pages, QUESTION], "full", max_new_tokens=6)
    pieces = list(reference.generate([*pages, QUESTION], "full", max_new_tokens=6, stream=True))
    assert "".join(pieces) == "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].reply is not None and pieces[-1].reply.token_ids == whole.token_ids
    assert all(piece.reply is None for piece in pieces[:-1])


def test_stops_lengths_and_sampling(reference: Engine, pages: list[Chunk]) -> None:
    reply = reference.generate([*pages, QUESTION], "full")
    assert reply.finish_reason == "stop" and reply.text
    cut = reference.generate([*pages, QUESTION], "full", stop=reply.text)
    assert cut.text == "" and cut.finish_reason == "stop"
    assert reference.generate([*pages, QUESTION], "full", max_new_tokens=1).usage.completion_tokens == 1
    options = {"temperature": 5.0, "max_new_tokens": 8}
    same = {reference.generate([*pages, QUESTION], "full", seed=3, **options).text for _ in range(3)}
    others = {reference.generate([*pages, QUESTION], "full", seed=seed, **options).text for seed in range(8)}
    assert len(same) == 1 and len(others) > 1
    assert reference.generate([*pages, QUESTION], "full", temperature=5.0, top_p=1e-9).text == reply.text
    for wrong in ({"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"stop": [""]}):
        with pytest.raises(PromptError):
            reference.generate([*pages, QUESTION], "full", **wrong)


def test_messages_of_several_turns(reference: Engine, episode: Episode, pages: list[Chunk]) -> None:
    messages = [
        {"role": "system", "content": "you answer questions about maps"},
        {
            "role": "user",
            "content": [*({"type": "image", "image": page} for page in pages), {"type": "text", "text": QUESTION}],
        },
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": [{"type": "text", "text": "what colour is under the boat ?"}]},
    ]
    prefill = reference.prefill(messages, "blind")
    text = reference.tokenizer.decode(prefill.token_ids)
    assert text.count("<|im_start|>") == 5 and prefill.usage.cached_tokens == 66 * len(pages)
    sources = [{"type": "image_url", "image_url": {"url": _data_url(page)}} for page in episode.pages]
    by_address = reference.prefill(
        [{"role": "user", "content": [*sources, {"type": "text", "text": QUESTION}]}], "blind"
    )
    plain = reference.prefill([*pages, QUESTION], "blind")
    assert torch.equal(by_address.token_ids, plain.token_ids) and torch.equal(by_address.logits, plain.logits)
    for wrong in (
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "smell", "smell": "sea"}]}],
        [{"content": "x"}],
    ):
        with pytest.raises(PromptError):
            reference.prefill(wrong, "full")


def _data_url(page: object) -> str:
    import base64

    held = io.BytesIO()
    page.image().save(held, "PNG")  # type: ignore[attr-defined]
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


def test_texts_and_documents_are_chunks_too(reference: Engine, episode: Episode, tmp_path: Path) -> None:
    passage = reference.add(text="the tent stands on red and the boat stands on blue")
    assert passage.kind == "text" and passage is reference.add(
        text="the tent stands on red and the boat stands on blue"
    )
    document = tmp_path / "pages.pdf"
    images = [page.image().convert("RGB") for page in episode.pages]
    images[0].save(document, save_all=True, append_images=images[1:])
    clip = reference.add(document)
    assert isinstance(clip, Clip) and clip.kind == "document" and len(clip) == len(images)
    assert [chunk.kind for chunk in clip] == ["page"] * len(images)
    assert reference.prefill([clip, passage, QUESTION], "blind").usage.cached_tokens == clip.tokens + passage.tokens


def test_a_clip_is_a_sequence_of_segments(reference: Engine) -> None:
    from importlib.resources import files

    clip = reference.add(Path(str(files("emblema"))) / "assets" / "demo" / "clip.mp4", fps=1)
    assert isinstance(clip, Clip) and clip.kind == "video" and len(clip) > 1
    assert clip.tokens == sum(chunk.tokens for chunk in clip) and clip.bytes > 0
    assert clip.id == reference.add(Path(str(files("emblema"))) / "assets" / "demo" / "clip.mp4", fps=1).id
    assert reference.generate([clip, QUESTION], "blind").usage.cached_tokens == clip.tokens
    assert reference.prefill([slid(clip), QUESTION], "blind").usage.cached_tokens == 0


def test_bad_prompts_have_one_clear_error_and_harm_nothing(reference: Engine, pages: list[Chunk]) -> None:
    before = reference.prefill([*pages, QUESTION], "full").logits
    for parts in ([], "", [""], [[]], [object()], [b"x"], [[-1]], [3.5]):
        with pytest.raises(PromptError):
            reference.prefill(parts, "full", template=False)
    for parts in ([], [object()]):
        with pytest.raises(PromptError):
            reference.prefill(parts, "full")
    with pytest.raises(PromptError, match="vocabulary"):
        reference.prefill([[10**9]], "full", template=False)
    with pytest.raises(PromptError, match="context"):
        reference.prefill([pages[0]] * 600, "full")
    with pytest.raises(PromptError, match="room for"):
        reference.generate([*pages, QUESTION], "full", max_new_tokens=10**6)
    with pytest.raises(PromptError, match="one of the two"):
        reference.add()
    for name in ("best", "patch-0", "patch-200%"):
        with pytest.raises(StrategyError):
            reference.generate([*pages, QUESTION], name)
    with pytest.raises(StoreError):
        reference.store.get("0" * 64)
    assert torch.equal(reference.prefill([*pages, QUESTION], "full").logits, before)


def test_bad_media_have_one_clear_error(reference: Engine, tmp_path: Path) -> None:
    from PIL import Image

    def written(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    held = io.BytesIO()
    Image.new("RGB", (300, 300), "red").save(held, "PNG")
    bad = [
        tmp_path / "missing.png", written("empty.png", b""), written("cut.png", held.getvalue()[:-200]),
        written("note.txt", b"hello"), tmp_path, Image.new("RGB", (1, 1)), Image.new("RGB", (20_000, 20)), 3.5,
        {"a": 1}, numpy.zeros((3, 3, 3, 3)), b"", "http://127.0.0.1:9/x.png", "ftp://example.org/x.png",
    ]  # fmt: skip
    for source in bad:
        with pytest.raises(EmblemaError) as caught:
            reference.add(source)
        assert len(str(caught.value)) > 10 and "\n" not in str(caught.value)
    with pytest.raises(EmblemaError, match="unknown kind"):
        reference.add(Image.new("RGB", (50, 50)), kind="smell")


def test_a_store_with_too_small_a_budget_says_so(episode: Episode) -> None:
    engine = Engine.load("reference", store=Store(device_bytes=1_000))
    with pytest.raises(CapacityError):
        engine.add(episode.pages[0].image())


def test_deleted_chunks_take_patches_and_prefixes_along(episode: Episode) -> None:
    engine = Engine.load("reference")
    pages = [engine.add(page.image()) for page in episode.pages]
    engine.prefill([*pages, QUESTION], "patch-25%")
    engine.prefill([*pages, QUESTION], "full")
    assert engine.prefill([*pages, "where ?"], "prefix").usage.cached_tokens > 66
    assert engine.store.delete(pages[0].id) and pages[0].id not in engine.store
    assert engine.prefill([*pages, "where ?"], "prefix").usage.cached_tokens < 66
    assert engine.store.statistics.patches == 0


def test_the_async_engine_mirrors_the_engine(episode: Episode) -> None:
    async def use() -> None:
        async with await AsyncEngine.load("reference") as engine:
            pages = [await engine.add(page.image()) for page in episode.pages]
            replies = await asyncio.gather(*(engine.generate([*pages, QUESTION], name) for name in ("full", "prefix")))
            assert replies[0].text == replies[1].text
            pieces = [piece async for piece in await engine.generate([*pages, QUESTION], "full", stream=True)]
            assert "".join(piece.text for piece in pieces) == replies[0].text
            with pytest.raises(StrategyError):
                await engine.generate([*pages, QUESTION], "best")
            assert (await engine.prefill([*pages, QUESTION], "blind")).usage.cached_tokens > 0

    asyncio.run(use())
