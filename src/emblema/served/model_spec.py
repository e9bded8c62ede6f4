"""The geometry of a served model: how each layer keeps and rotates its rows, and a digest of its weights.

The served model is left alone: the layout is measured, as for the embedded engine, on one layer of the same shape with
random weights, since a rotation depends on the configuration alone.
"""

import copy
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from emblema.errors import UnsupportedModelError
from emblema.kv.layout import KVRows, LayerLayout
from emblema.kv.rotation import PhaseBook, move_rows
from emblema.models.calibrate import DecoderTable, calibrate
from emblema.models.families import family_of
from emblema.models.families.base import Toolkit
from emblema.models.families.qwen_vl import QwenVL
from emblema.models.load import load_parts
from emblema.models.prepare import Preparer
from emblema.models.structure import context_length, layer_windows, position_axes
from emblema.session.anchor import find_anchor

_log = logging.getLogger(__name__)
_DIGEST = "emblema 2026-11 vllm weights 1"
LATENT_DECODERS = ("deepseek_v2", "deepseek_v3")
"""Decoders with latents (MLA) that vLLM serves by its implementation of DeepSeek's."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


@dataclass(frozen=True)
class ModelSpec:
    """A served model, as linking sees it; where heads are split, one rank's share.

    Attributes:
        version: of how this plugin captures the family's chunks.
        fingerprint: digest of weights and configuration, 256 bits, hex.
        layouts: how rows are kept, per layer.
        tables: the decoder's rotary tables.
        axes: position axes, 1 or 3.
        markers: token ids written before and after a picture.
        merge: patches merged into one token, per side.
        dtype, device: of the pages.
        shards: workers that the heads are split over; the layouts are of one of them.
        tokens_per_second: positions of a second of video; 1 also where the model is not told seconds.
        anchor: token ids that chunks are prefilled after; see `Adapter.capture`.
        encoding_width: numbers that the encoder makes of each media token.
    """

    version: str
    fingerprint: str
    layouts: tuple[LayerLayout, ...]
    tables: dict[str, DecoderTable]
    axes: int
    markers: tuple[tuple[int, ...], tuple[int, ...]]
    merge: int
    dtype: torch.dtype
    device: torch.device
    shards: int = 1
    tokens_per_second: float = 1.0
    anchor: tuple[int, ...] = ()
    encoding_width: int = 0

    @property
    def encoding_bytes(self) -> int:
        """Bytes of what the encoder makes of a media token."""
        return self.dtype.itemsize * self.encoding_width

    @property
    def row_bytes(self) -> int:
        """Bytes that a token's rows take in all layers of this rank."""
        return self.dtype.itemsize * sum(layout.features for layout in self.layouts)

    def on(self, device: torch.device) -> "ModelSpec":
        """Return the spec for rows on another device."""
        if device == self.device:
            return self
        tables = copy.deepcopy(self.tables)
        for table in tables.values():
            table.rotary.to(device)
        return replace(self, tables=tables, device=device)

    def canonical(self, rows: KVRows, positions: Tensor) -> KVRows:
        """Return a chunk's canonical rows of those that were captured after the anchor.

        Args:
            rows: on the spec's device, without the anchor's.
            positions: [axes, tokens], counted from the chunk.
        """
        first = len(self.anchor)
        if first == 0:
            return rows
        home = positions.to(self.device)
        source, target = PhaseBook(self.tables, home + first), PhaseBook(self.tables, home)
        return move_rows(rows, self.layouts, source, target, self.dtype)


def model_spec_of(
    config: Any,
    fingerprint: str,
    kv_heads: int,
    dtype: torch.dtype,
    device: torch.device,
    shards: int = 1,
    engine: str = "vllm-2",
    anchor: tuple[int, ...] = (),
) -> ModelSpec:
    """Return the spec of a model by its transformers configuration.

    Args:
        fingerprint: see `files_fingerprint`.
        kv_heads: heads whose rows each rank keeps; where there are fewer heads than ranks, several keep the same one.
        shards: the number of ranks.
        engine: the engine and the version of how its plugin captures chunks; part of their ids.
        anchor: see `anchor_of`.

    Raises:
        UnsupportedModelError: the family is unknown, a layer slides, scales queries or cannot be relocated, or rows
            attend later ones.
    """
    family = family_of(config)
    text = copy.deepcopy(config.get_text_config())
    layers = int(text.num_hidden_layers)
    types = list(getattr(text, "layer_types", None) or ["full_attention"] * layers)
    if len(set(types)) > 1 or any(window is not None for window in layer_windows(text, types)):
        raise UnsupportedModelError(f"{family.name}: its layers slide or differ in kind; only full attention is linked")
    if family.bidirectional(config):
        raise UnsupportedModelError(f"{family.name}: its picture tokens attend each other both ways")
    if context_length(text) < text.max_position_embeddings:
        raise UnsupportedModelError(f"{family.name}: it scales its queries by position (llama_4_scaling_beta)")
    device = _indexed(device)
    layout, tables, axes = _measured(text, device)
    if axes > 1 and not isinstance(family, QwenVL):
        raise UnsupportedModelError(f"{family.name}: the places of its picture tokens are not known to this plugin")
    own = _served_layout(family.name, text, layout, kv_heads)
    markers: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    merge, rate = 1, 1.0
    if axes > 1 and isinstance(family, QwenVL):
        rate = float(getattr(config.vision_config, "tokens_per_second", 1.0))
        kit = Toolkit(config, None)
        before, after = family.markers(kit, "image")
        markers, merge = (tuple(before), tuple(after)), family.merge(kit)
    version = f"{engine}/{family.name}/{family.version()}"
    return ModelSpec(
        version,
        fingerprint,
        (own,) * layers,
        tables,
        axes,
        markers,
        merge,
        dtype,
        device,
        shards,
        rate,
        anchor,
        _encoding_width(config),
    )


def _encoding_width(config: Any) -> int:
    """Return how many numbers the encoder makes of each media token; several rows where layers get their own."""
    further = getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    return int(config.get_text_config().hidden_size) * (1 + len(further))


def checkpoint_folder(name: str, revision: str | None) -> Path:
    """Return the folder of a checkpoint that the engine has loaded: a folder's own, or the hub's copy of it here."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, local_files_only=True))


def anchor_of(folder: Path, config: Any) -> tuple[int, ...]:
    """Return what the chat template of a checkpoint begins a prompt with; nothing where that cannot be told.

    Args:
        folder: of the checkpoint.
        config: the transformers configuration.
    """
    try:
        found = find_anchor(Preparer(load_parts(str(folder)), config))
    except Exception as error:
        # A server without a tokenizer that is known here still serves.
        _log.warning("emblema: pictures are prefilled after nothing, as the chat template is not known: %s", error)
        return ()
    return found if all(token < config.get_text_config().vocab_size for token in found) else ()


def _indexed(device: torch.device) -> torch.device:
    """Return a device as tensors name theirs: with its index."""
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def _served_layout(family: str, text: Any, layout: LayerLayout, kv_heads: int) -> LayerLayout:
    """Return how a rank of a server keeps rows of a layout that was measured.

    vLLM turns the rotary keys of DeepSeek's decoders as published, neighbours paired; transformers sorts them by halves
    first in some.

    Raises:
        UnsupportedModelError: the decoder keeps latents in a way that the plugin does not know.
    """
    if layout.kind == "heads":
        return LayerLayout((kv_heads, layout.keys[1]), (kv_heads, layout.values[1]), layout.rotary)
    if layout.rotary is None or text.model_type not in LATENT_DECODERS:
        raise UnsupportedModelError(f"{family} keeps latents (MLA) of a decoder ({text.model_type}) that was not tried")
    # Every rank has the whole latent.
    return LayerLayout(layout.keys, layout.values, replace(layout.rotary, pairing="pairs"))


def _measured(text: Any, device: torch.device) -> tuple[LayerLayout, dict[str, DecoderTable], int]:
    """Return layout, tables and axes of one layer of such a decoder, small wherever rows do not depend on it."""
    from transformers import AutoModel

    text.num_hidden_layers, text.vocab_size, text.intermediate_size = 1, 16, 16
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types)[:1]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, name, None)
    # The server's own random numbers must not depend on whether this ran.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        decoder = AutoModel.from_config(text, dtype=torch.float32).eval()
    axes = position_axes(None, text)
    found = calibrate(decoder, list(decoder.layers), ["layers.0"], axes, (None,))
    for table in found.tables.values():
        table.rotary.to(device)
    return found.layouts[0], dict(found.tables), axes


def files_fingerprint(folder: Path, config: Any, extra: str) -> str:
    """Return a digest of a checkpoint's files that hold weights, of its configuration and of how the server loads it.

    Args:
        folder: of the checkpoint; without weights in it the configuration alone counts (random weights).
        config: the transformers configuration as the server changed it.
        extra: quantisation, how many workers there are, and all else that decides what rows become.
    """
    digest = blake3(derive_key_context=_DIGEST, max_threads=blake3.AUTO)
    described = {key: value for key, value in config.to_dict().items() if key not in ("_name_or_path", "dtype")}
    for part in (json.dumps(described, sort_keys=True, default=str), extra):
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    for path in sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)}):
        digest.update(len(path.name.encode()).to_bytes(8, "little") + path.name.encode())
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        digest.update_mmap(path)
    return str(digest.hexdigest())
