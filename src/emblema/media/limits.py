"""How large, long and slow a piece of media may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Bounds on everything that comes from outside; a piece beyond one of them is refused with a `MediaError`.

    Attributes:
        file_bytes: size of a file, or of bytes given in memory.
        image_pixels: width times height of a picture, a video frame or a rendered page.
        image_side: longest side, in pixels.
        image_side_least: shortest side, in pixels. Below four pixels image processors mistake a side for the colour
            channels (transformers takes a height of 1 or 3 for them), so such pictures are refused, not guessed at.
        aspect_ratio: longest side over shortest; 200 is what processors of Qwen's kind accept.
        video_seconds: length of a video.
        video_frames: frames kept after sampling.
        video_pixels: pixels of all kept frames together (three bytes each).
        document_pages: pages of a document.
        document_pixels: pixels of all its rendered pages together (three bytes each).
        audio_seconds: length of a recording.
        jpeg_scans: scans of a JPEG; each is decoded over all pixels. Encoders write 18 at most.
        png_chunks: chunks of a PNG beside its pixels that are needed of it; texts and colour profiles are not.
        picture_seconds: time to decode a picture, or a page of a document.
        media_seconds: time to decode a whole document, video or recording. Of a video whose frames are taken one at a
            time it is the time to each frame.
        decoder_bytes: memory (address space) of the process that decodes.
        download_bytes: size of a download or of a `data:` address.
        download_seconds: time for a download, name look-up and redirects included.
        redirects: how many redirects are followed.
        allowed_hosts: host names and addresses, as written in a URL, that may lie in a private network.
        text_bytes: all text of one prompt, or one passage, in UTF-8. It is counted before it is tokenized, which takes
            about a second and 140 MB for a mebibyte; a longer one gets a `PromptError`.
    """

    file_bytes: int = 512 * 2**20
    image_pixels: int = 64_000_000
    image_side: int = 16_384
    image_side_least: int = 4
    aspect_ratio: float = 200.0
    video_seconds: float = 3_600.0
    video_frames: int = 4_096
    video_pixels: int = 1_000_000_000
    document_pages: int = 256
    document_pixels: int = 1_000_000_000
    audio_seconds: float = 3_600.0
    jpeg_scans: int = 32
    png_chunks: int = 256
    picture_seconds: float = 20.0
    media_seconds: float = 300.0
    decoder_bytes: int = 4 * 2**30
    download_bytes: int = 64 * 2**20
    download_seconds: float = 20.0
    redirects: int = 4
    allowed_hosts: frozenset[str] = frozenset()
    text_bytes: int = 2**20


DEFAULT_LIMITS = MediaLimits()
