"""Pictures, clips, documents, sound and addresses, loaded within limits. No model code."""

from emblema.media.audio import load_audio
from emblema.media.canonical import media_bytes
from emblema.media.document import load_pages
from emblema.media.image import load_image
from emblema.media.kind import media_kind
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.video import load_video, sample_frames, segments

__all__ = [
    "DEFAULT_LIMITS",
    "MediaLimits",
    "load_audio",
    "load_image",
    "load_pages",
    "load_video",
    "media_bytes",
    "media_kind",
    "sample_frames",
    "segments",
]
