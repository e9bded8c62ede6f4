"""Measure the bundled tower and write its card: `python -m training.page_measure`, a few minutes.

Tiles are read through the whole model's vision path, in fonts of the test and in Pillow's own. Then the language model
is asked about pages, and about the same tokens as text.
"""

import argparse
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from benchmarks.real.measure import divergences, tail_of
from benchmarks.real.passages import draw_episode
from emblema import Engine
from emblema.eval.pages import BLANK, PAGE_TOKENS, draw_page
from emblema.link.policy.policy import Policy
from emblema.models.page_tower import page_token_ids, page_tower_file
from training.page_tiles import test_fonts, training_fonts

MODEL = "smollm2-135m"
CARD = Path(__file__).with_name("pages.md")
SEED = 4711
"""Of passages that no training saw; training sees no passages at all, only their tokens."""


def worn(page: Image.Image, quality: int | None) -> Image.Image:
    """Return a page as a JPEG of this quality has it, or as it is."""
    if quality is None:
        return page
    stream = io.BytesIO()
    page.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


@torch.inference_mode()
def rows_of(engine: Engine, page: Image.Image) -> torch.Tensor:
    """Return the rows [PAGE_TOKENS, channels] that the model sees in place of a page."""
    pixels = engine.processor.image_processor(page, return_tensors="pt")["pixel_values"]
    features = engine.adapter.model.get_image_features(pixel_values=pixels)
    found = getattr(features, "pooler_output", features)
    return found[0] if isinstance(found, list | tuple) else found.reshape(PAGE_TOKENS, -1)


def named(engine: Engine, rows: torch.Tensor) -> torch.Tensor:
    """Return the token of all the language model's whose embedding is next to each row."""
    return torch.cdist(rows, engine.adapter.model.get_input_embeddings().weight.detach()).argmin(-1)


def padded(ids: Sequence[int], blank: int) -> list[int]:
    """Return a page's tokens with blank tiles up to its end."""
    return [*ids, *[blank] * (PAGE_TOKENS - len(ids))]


def tile_shares(engine: Engine, known: Sequence[int], often: set[int], quality: int | None) -> dict[str, Any]:
    """Return the share of tiles read right by font: of all known tokens, and of those of the passages."""
    found = {}
    for font in (None, *test_fonts()):
        right = {}
        for start in range(0, len(known), PAGE_TOKENS):
            ids = list(known[start : start + PAGE_TOKENS])
            page = draw_page([engine.tokenizer.decode([token]) for token in ids], font)
            read = named(engine, rows_of(engine, worn(page, quality)))
            right |= {token: int(own) == token for token, own in zip(ids, read, strict=False)}
        found["Pillow's own" if font is None else font.stem] = {
            "known": mean(right.values()),
            "passages": mean(right[token] for token in right if token in often),
        }
    return found


@dataclass(frozen=True, slots=True)
class AskedPages:
    """Pages of an episode as token ids, a question's tokens, and what is predicted after both, and after no pages."""

    blank: int
    ids: list[list[int]]
    tail: tuple[int, ...]
    logits: torch.Tensor
    wordless: torch.Tensor


def asked(engine: Engine, number: int) -> AskedPages:
    """Return an episode's pages, and what the language model predicts after them as text."""
    blank = engine.tokenizer(BLANK, add_special_tokens=False)["input_ids"][0]
    episode = draw_episode(SEED, number, 4, (1, 2))
    ids = [padded(engine.session.prompt_reader.passage(text)[:PAGE_TOKENS], blank) for text in episode.passages]
    tail = tail_of(engine, next(one for one in episode.questions if one.kind == "one"))
    text = following(engine, [tuple(own) for own in ids], tail)
    return AskedPages(blank, ids, tail, text, following(engine, [], tail))


def following(engine: Engine, middle: Sequence[Any], tail: tuple[int, ...]) -> torch.Tensor:
    """Return the logits [1, vocab] after the template's opening, what stands between, and a question."""
    found = engine.prefill([engine.adapter.anchor, *middle, tail], "full", template=False).logits
    engine.forget_prompts()
    return found[None]


def pages_read(engine: Engine, prompts: Sequence[AskedPages], font: Path | None, quality: int | None) -> dict[str, Any]:
    """Return how pages of fresh passages are read, and how the answers' first token differs from that after text."""
    tiles, kl, agree = [], [], []
    for prompt in tqdm(prompts, desc="Pillow's own" if font is None else font.stem):
        texts = [[engine.tokenizer.decode([token]) for token in own] for own in prompt.ids]
        pages = [worn(draw_page(own, font), quality) for own in texts]
        for own, page in zip(prompt.ids, pages, strict=True):
            ink = torch.tensor(own) != prompt.blank
            tiles += (named(engine, rows_of(engine, page)) == torch.tensor(own))[ink].tolist()
        logits = following(engine, [engine.encode(page) for page in pages], prompt.tail)
        kl.append(float(divergences(prompt.logits, logits)[0]))
        agree.append(int(prompt.logits.argmax()) == int(logits.argmax()))
    without = [float(divergences(prompt.logits, prompt.wordless)[0]) for prompt in prompts]
    return {"tiles": mean(tiles), "count": len(tiles), "kl": mean(kl), "median": median(kl), "worst": max(kl),
            "agree": mean(agree), "prompts": len(kl), "kl_without_pages": mean(without)}  # fmt: skip


def measure(episodes: int) -> dict[str, Any]:
    """Return every figure of the card."""
    engine = Engine.load(MODEL, policy=Policy.quiet())
    known = page_token_ids()
    texts = [text for number in range(400) for text in draw_episode(SEED, number, 4, (1, 4)).passages]
    often = {token for text in texts for token in engine.session.prompt_reader.passage(text)}
    fonts = (None, *test_fonts())
    prompts = [asked(engine, number) for number in range(episodes)]
    return {
        "tokens": len(known),
        "fonts": len(training_fonts()),
        "tiles": {str(quality): tile_shares(engine, known, often, quality) for quality in (None, 80)},
        "pages": {
            "Pillow's own" if font is None else font.stem: pages_read(engine, prompts, font, 80) for font in fonts
        },
    }


def card(found: dict[str, Any]) -> str:
    """Return the card's text."""
    tiles = "\n".join(
        f"| {font} | {shares['known']:.4f} | {shares['passages']:.4f} | {found['tiles']['80'][font]['known']:.4f} "
        f"| {found['tiles']['80'][font]['passages']:.4f} |"
        for font, shares in found["tiles"]["None"].items()
    )
    pages = "\n".join(
        f"| {font} | {own['tiles']:.4f} of {own['count']} | {own['kl']:.4f} | {own['median']:.4f} "
        f"| {own['worst']:.4f} | {own['agree']:.2f} | {own['kl_without_pages']:.2f} |"
        for font, own in found["pages"].items()
    )
    size = page_tower_file().stat().st_size / 1e6
    text = CARD.read_text(encoding="utf-8")
    prompts = next(iter(found["pages"].values()))["prompts"]
    return text.format(**found | {"tiles": tiles, "pages": pages, "size": f"{size:.1f}", "prompts": prompts})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.episodes)
    folder = page_tower_file().parent
    (folder / "measured.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(found), encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
