"""What a family of models must say for itself; everything else is generic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from emblema.errors import MediaError, ModelError
from emblema.kv.chunk import ChunkKind
from emblema.models.positions import Grid
from emblema.models.video_settings import VideoSettings

PART, PART_SIZES = "part", "part_sizes"
"""Of a picture that is encoded in part: its tokens [tokens] int64 that are, and how many of them each window has."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One piece of media, ready for the encoder.

    Attributes:
        kind: what it is.
        token_ids: [tokens] int64, start and end markers written and placeholders expanded.
        features: the encoder's arguments, by name.
        grid: blocks of media tokens that are placed as grids (M-RoPE); empty for one axis.
    """

    kind: ChunkKind
    token_ids: Tensor
    features: dict[str, Tensor] = field(default_factory=dict)
    grid: tuple[Grid, ...] = ()


@dataclass(frozen=True, slots=True)
class Features:
    """What the encoder gave: [media tokens, hidden], and per decoder layer that takes some [media tokens, hidden]."""

    media: Tensor
    deepstack: tuple[Tensor, ...] = ()

    def of(self, tokens: slice) -> "Features":
        """Return those of some media tokens."""
        return Features(self.media[tokens], tuple(layer[tokens] for layer in self.deepstack))


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The parts of a processor that families use, and the model's configuration.

    Attributes:
        video: the settings of the checkpoint's video processor, where it has one.
        options: what the image processor is told beside each picture.
    """

    config: Any
    tokenizer: Any
    image_processor: Any = None
    feature_extractor: Any = None
    video: VideoSettings | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def for_frames(self) -> "Toolkit":
        """Return a toolkit whose image processor treats pictures as the checkpoint's video processor treats frames."""
        return self if self.video is None else replace(self, options=self.video.options(self.image_processor))

    def ids(self, *tokens: str) -> list[int]:
        """Return ids of special tokens that the tokenizer must know."""
        found = []
        unknown = self.tokenizer.unk_token_id
        for token in tokens:
            identifier = self.tokenizer.convert_tokens_to_ids(token)
            if identifier is None or (identifier == unknown and token != self.tokenizer.unk_token):
                raise ModelError(f"The tokenizer does not know {token!r}, which this family writes around media.")
            found.append(int(identifier))
        return found

    def text(self, text: str) -> list[int]:
        """Return ids of a piece of text, no special tokens added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def images(self, images: Sequence[Image.Image], **options: Any) -> dict[str, Any]:
        """Return the stock image processor's output for pictures, as tensors."""
        if self.image_processor is None:
            raise ModelError("This model came without an image processor; load it with one to add pictures.")
        pictures = [image.convert("RGB") for image in images]
        try:
            return dict(self.image_processor(images=pictures, return_tensors="pt", **{**self.options, **options}))
        except (ValueError, ZeroDivisionError) as error:
            sizes = ", ".join(f"{image.width}x{image.height}" for image in images)
            raise MediaError(f"The model's image processor refused a picture of {sizes} pixels: {error}") from error


@dataclass(frozen=True, slots=True)
class VideoSegment:
    """A part of a clip.

    Attributes:
        frames: of one size, evenly spaced.
        seconds_per_frame: from one frame to the next.
        start: seconds into the clip of the first.
        clip_frames: how many frames the whole clip has.
    """

    frames: Sequence[Image.Image]
    seconds_per_frame: float
    start: float
    clip_frames: int


class Family:
    """A family's differences. The defaults serve models of the LLaVA kind.

    Attributes:
        name: the name people see.
        model_types: values of `config.model_type` that it serves.
        notes: one line for `emblema models`.
        video: `native` (the encoder takes frames as video) or `frames` (each frame is a picture).
        time_stamps: a video segment says in its text when it happens.
        full_layers_causal: media tokens of one picture attend each other both ways in sliding layers alone.
        softcap: whether the model squashes its logits by `final_logit_softcapping`.
        logits_scaling: whether the model divides its logits by `logits_scaling`.
        tile_arguments: of the encoder, those with something of every tile of a picture, pixels first, where it reads
            each tile alone and gives as many rows for each, tile after tile; none otherwise.
        tile_axis: of the tiles in these.
    """

    name = "LLaVA"
    model_types: tuple[str, ...] = ()
    notes = ""
    video = "frames"
    time_stamps = False
    full_layers_causal = False
    softcap = False
    logits_scaling = False
    tile_arguments: tuple[str, ...] = ()
    tile_axis = 0

    def version(self) -> str:
        """Changes when the way this family is fed changes; part of every chunk's identity."""
        return "1"

    def placeholder(self, config: Any, kind: ChunkKind) -> int | None:
        """Return the token id that holds the place of a media token of a kind."""
        # Frames given as pictures follow the image token.
        video = "video" if self.video == "native" else "image"
        names = {"image": "image", "page": "image", "video": video, "audio": "audio"}
        if kind not in names:
            return None
        for attribute in (f"{names[kind]}_token_id", f"{names[kind]}_token_index"):
            if (found := getattr(config, attribute, None)) is not None:
                return int(found)
        return None

    def media_tokens(self, config: Any, kind: ChunkKind) -> tuple[int, ...]:
        """Token ids that `encode` gives rows for: the placeholder, and markers that are not embedded as text."""
        placeholder = self.placeholder(config, kind)
        return () if placeholder is None else (placeholder,)

    def bidirectional(self, config: Any) -> bool:
        """Return whether media tokens of one picture attend each other both ways."""
        return False

    def cell_side(self, config: Any) -> int | None:
        """Return how many tokens a window of the encoder has along a side; 1 without any; None without tokens' grids.

        Encoders with one encode a picture in part: `encode` takes `PART`.
        """
        return None

    def whole_layers(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """Return the attention modules of the encoder's layers that attend over a whole picture, where it has windows.

        See `cell_side`.
        """
        return ()

    def blanks(self, config: Any) -> tuple[int, ...]:
        """Token ids that the family's own forward embeds as id 0 wherever they stand; features may overwrite them."""
        return ()

    def markers(self, kit: Toolkit, kind: ChunkKind) -> tuple[list[int], list[int]]:
        """Token ids written before and after a piece of media."""
        return [], []

    def prepare_image(self, kit: Toolkit, image: Image.Image) -> Prepared:
        """Prepare a picture: markers, placeholders and the encoder's arguments."""
        raise NotImplementedError

    def prepare_video(self, kit: Toolkit, segment: VideoSegment) -> Prepared:
        """Prepare a segment of video; as joined pictures without native video."""
        frames = kit.for_frames()
        return join([self.prepare_image(frames, frame) for frame in segment.frames])

    def frame_size(self, kit: Toolkit, width: int, height: int, frames: int) -> tuple[int, int] | None:
        """Return the size to which frames of a clip of so many are scaled before the encoder; None as pictures are."""
        return None

    def prepare_audio(self, kit: Toolkit, samples: Any, rate: int) -> Prepared:
        """Prepare a piece of sound."""
        raise MediaError(f"{self.name} takes no audio: `emblema models` lists the families that do.")

    def encode(self, model: nn.Module, prepared: Prepared) -> Features:
        """Run the encoder: features per token of `media_tokens`, in token order."""
        return Features(joined(image_features(model, prepared.features)))

    def decoder_arguments(self, config: Any, visual: Tensor, deepstack: Sequence[Tensor]) -> dict[str, Any]:
        """Return what the decoder takes beside rows, of which `visual` [rows] bool are media; see `Features`."""
        if not deepstack or not bool(visual.any()):
            return {}
        return {"visual_pos_masks": visual[None], "deepstack_visual_embeds": list(deepstack)}

    def wrap(self, kit: Toolkit, kind: ChunkKind, count: int) -> list[int]:
        """Markers around `count` placeholders."""
        before, after = self.markers(kit, kind)
        placeholder = self.placeholder(kit.config, kind)
        if placeholder is None:
            raise MediaError(f"{self.name} has no {kind} token.")
        return [*before, *[placeholder] * count, *after]


def image_features(model: nn.Module, features: dict[str, Tensor]) -> Any:
    """Run the model's own feature path: tower, projector, packing, newline tokens."""
    output = feature_path(model, "image")(**features)
    return getattr(output, "pooler_output", output)


def feature_path(model: Any, kind: str) -> Any:
    """Return `get_image_features` or its like, of the model or, in some families, of the base model inside it."""
    name = f"get_{kind}_features"
    found = getattr(model, name, None) or getattr(getattr(model, "model", None), name, None)
    if found is None:
        raise ModelError(f"{type(model).__name__} has no {name}.")
    return found


def joined(features: Any) -> Tensor:
    """Features as one [tokens, hidden] tensor, whichever container the family hands back."""
    if isinstance(features, Tensor):
        return features.reshape(-1, features.shape[-1])
    return torch.cat([joined(piece) for piece in features], dim=0)


def in_token_order(token_ids: Tensor, placeholder: int, media: Tensor, markers: Mapping[int, Tensor]) -> Tensor:
    """Return rows [media tokens, hidden] of placeholders and of markers, in token order.

    Args:
        token_ids: [tokens] int64.
        placeholder: the id that stands for the rows of `media` [placeholders, hidden], one after another.
        markers: the row [hidden] of each marker.
    """
    places = token_ids == placeholder
    if int(places.sum()) != len(media):
        return media  # Refused where they are counted.
    ids = token_ids[torch.isin(token_ids, torch.tensor([placeholder, *markers]))]
    rows = media.new_empty(len(ids), media.shape[-1])
    rows[ids == placeholder] = media
    for marker, row in markers.items():
        rows[ids == marker] = row.to(rows)
    return rows


def join(pieces: Sequence[Prepared]) -> Prepared:
    """Join pictures to one video chunk; their encoder arguments are stacked."""
    if not pieces:
        raise MediaError("A video segment needs at least one frame.")
    names = pieces[0].features
    features = {name: torch.cat([piece.features[name] for piece in pieces], dim=0) for name in names}
    grids, done = [], 0
    for piece in pieces:
        grids += [replace(grid, start=grid.start + done) for grid in piece.grid]
        done += len(piece.token_ids)
    return Prepared("video", torch.cat([piece.token_ids for piece in pieces]), features, tuple(grids))


def tokens(ids: Sequence[int]) -> Tensor:
    """Token ids as [tokens] int64."""
    return torch.tensor(list(ids), dtype=torch.int64)
