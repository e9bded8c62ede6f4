"""Train the tower that reads pages of tokens, and write it to the package: `python -m training.pages`, ten minutes.

It needs the checkpoint of `smollm2-135m` for its tokenizer alone: the language model takes no part.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from benchmarks.real.passages import draw_episode
from emblema.eval.pages import TILE, can_be_drawn, tile_text
from emblema.models.page_tower import page_tower_file
from emblema.models.pretrained import pretrained_folder
from training.page_reader import PageReader, loss_of
from training.page_tiles import TilePress, training_fonts

MODEL = "smollm2-135m"
EPISODES = 4000
"""Episodes whose passages have all their tokens known."""
OFTEN = 3.0
"""How much more often tokens of passages, and those of one or two letters, are drawn than others."""
SHARPNESS = 4.0
"""What scores are multiplied by once trained, so that a tile's row is one token's embedding and not a mixture."""
LIFT = 1.0
"""Added to scores before that, so that doubtful tiles name a token: more is better in thin fonts, worse in others."""


def known_tokens(tokenizer: Any, count: int) -> tuple[list[int], set[int]]:
    """Return the tokens to know, as ids in order, and those of them that the passages of the benchmark have.

    To the passages' tokens are added the tokenizer's first that can be drawn: they are ordered by how common they are.
    """
    passages = [text for number in range(EPISODES) for text in draw_episode(0, number, 4, (1, 4)).passages]
    own = {token for ids in tokenizer(passages, add_special_tokens=False)["input_ids"] for token in ids}
    known = {token for token in own if can_be_drawn(tokenizer.decode([token]))}
    special = set(tokenizer.all_special_ids)
    for token in range(len(tokenizer)):
        if len(known) >= count:
            break
        if token not in special and can_be_drawn(tokenizer.decode([token])):
            known.add(token)
    return sorted(known), own & known


def train(tokens: list[str], often: torch.Tensor, options: argparse.Namespace, channels: int) -> PageReader:
    """Return a reader of tokens, trained for the steps of the options."""
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    press = TilePress(tokens, training_fonts(), options.seed)
    reader = PageReader(TILE * TILE, options.width, options.hidden, len(tokens), channels)
    optimiser = torch.optim.AdamW(reader.parameters(), options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    with tqdm(range(options.steps), desc=f"reading {len(tokens)} tokens", mininterval=2.0) as steps:
        for step in steps:
            share = min((step + 1) / 100, max(0.01, 1 - step / options.steps))
            for group in optimiser.param_groups:
                group["lr"] = options.rate * share
            drawn = torch.multinomial(often, options.batch, replacement=True, generator=generator)
            scores = reader(press.print_tiles(drawn))
            loss = loss_of(scores, drawn)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 50 == 0:
                right = float((scores.argmax(-1) == drawn).float().mean())
                steps.set_postfix(loss=f"{float(loss):.3f}", right=f"{right:.3f}")
    return reader.eval()


def save_reader(reader: PageReader, ids: list[int], path: Path) -> None:
    """Write a reader in half precision, with the ids of the tokens that it names."""
    held = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in reader.state_dict().items()}
    held["naming.weight"] = (reader.naming.weight.detach() * SHARPNESS).to(torch.float16).contiguous()
    held["naming.bias"] = ((reader.naming.bias.detach() + LIFT) * SHARPNESS).to(torch.float16).contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(held | {"ids": torch.tensor(ids, dtype=torch.int32)}, path, metadata={"format": "pt", "model": MODEL})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--width", type=int, default=288)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=256, help="tiles of a step, a square")
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=page_tower_file())
    options = parser.parse_args()
    from transformers import AutoConfig, AutoTokenizer

    folder = pretrained_folder(MODEL)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids, own = known_tokens(tokenizer, options.tokens)
    tokens = [tokenizer.decode([token]) for token in ids]
    often = torch.tensor([
        OFTEN if token in own or len(tile_text(text)[0]) <= 2 else 1.0 for token, text in zip(ids, tokens, strict=True)
    ])  # fmt: skip
    print(f"{len(ids)} tokens, {len(own)} of them of the passages; {len(training_fonts())} fonts", flush=True)
    reader = train(tokens, often, options, AutoConfig.from_pretrained(folder).text_config.hidden_size)
    save_reader(reader, ids, options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
