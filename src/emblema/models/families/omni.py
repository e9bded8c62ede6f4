"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: Qwen-VL's pictures and video, and sound. Exploratory."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from emblema.errors import MediaError, ModelError
from emblema.kv.chunk import ChunkKind
from emblema.models.families.base import Features, Prepared, Toolkit, feature_path, joined, tokens
from emblema.models.families.qwen_vl import QwenVL

_AUDIO_ENDS = (("<|audio_bos|>", "<|audio_eos|>"), ("<|audio_start|>", "<|audio_end|>"))
_VISION_ENDS = (("<|vision_bos|>", "<|vision_eos|>"), ("<|vision_start|>", "<|vision_end|>"))


class Omni(QwenVL):
    """Qwen2.5-Omni's thinker; the talker is not run, and video carries no sound."""

    name = "Qwen2.5-Omni"
    model_types = ("qwen2_5_omni_thinker",)
    notes = "exploratory: the thinker alone; pictures, video without its sound, audio"
    in_parts = False

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        prefix, names = ("audio", _AUDIO_ENDS) if kind == "audio" else ("vision", _VISION_ENDS)
        start = getattr(kit.config, f"{prefix}_start_token_id", None)
        end = getattr(kit.config, f"{prefix}_end_token_id", None)
        if start is not None and end is not None:
            return [int(start)], [int(end)]
        return marked(kit, names, start)

    def interval(self, config: Any, seconds_per_step: float) -> float:
        return float(config.position_id_per_seconds) * seconds_per_step

    def audio_tokens(self, config: Any, frames: int) -> int:
        """Return the number of tokens of a sound of so many mel frames."""
        halved = (frames - 1) // 2 + 1
        return (halved - 2) // 2 + 1

    def prepare_audio(self, kit: Toolkit, samples: Any, rate: int) -> Prepared:
        extractor = kit.feature_extractor
        if extractor is None:
            raise ModelError("This model came without a feature extractor; load it with one to add audio.")
        if rate != extractor.sampling_rate:
            raise MediaError(f"Audio at {rate} Hz; resample it to {extractor.sampling_rate} Hz first.")
        batch = extractor(
            samples,
            sampling_rate=rate,
            padding="max_length",
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        mask = batch["attention_mask"]
        count = self.audio_tokens(kit.config, int(mask.sum()))
        if count < 1:
            raise MediaError("This piece of audio is too short for a single token.")
        features = {"input_features": batch["input_features"], "feature_attention_mask": mask}
        return Prepared("audio", tokens(self.wrap(kit, "audio", count)), features)

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        if "input_features" not in prepared.features:
            return super().encode(model, prepared)
        output = feature_path(model, "audio")(**prepared.features)
        media = joined(output if isinstance(output, torch.Tensor) else output.last_hidden_state)
        config: Any = model.config
        layers = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
        return Features(media, tuple(torch.zeros_like(media) for _ in range(layers)))


class Qwen3Omni(Omni):
    """Qwen3-Omni's thinker. Fractions of a position on a video's time axis are rounded down."""

    name = "Qwen3-Omni"
    model_types = ("qwen3_omni_moe_thinker",)
    notes = "exploratory: the thinker alone; deepstack, experts, pictures, video without its sound, audio"

    def audio_tokens(self, config: Any, frames: int) -> int:
        window = 2 * int(config.audio_config.n_window)
        rest = frames % window
        halved = (rest - 1) // 2 + 1
        return ((halved - 1) // 2 + 1 - 1) // 2 + 1 + frames // window * 13


def marked(kit: Toolkit, names: Sequence[tuple[str, str]], start: int | None) -> tuple[list[int], list[int]]:
    """Return the first pair of markers that the tokenizer knows; the configuration's own start goes first."""
    for before, after in names:
        try:
            first, last = kit.ids(before, after)
        except ModelError:
            continue
        if start is None or first == int(start):
            return [first], [last]
    raise ModelError(f"The tokenizer knows none of the media markers {', '.join(name for name, _ in names)}.")
