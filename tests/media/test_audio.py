from collections.abc import Callable

import numpy as np
import pytest

from emblema.errors import MediaError
from emblema.media import MediaLimits, load_audio, media_bytes
from emblema.media.audio import Audio

Make = Callable[..., bytes]


@pytest.mark.parametrize(("kind", "codec"), [("wav", "pcm_s16le"), ("matroska", "pcm_s16le"), ("flac", "flac")])
def test_sound_becomes_one_channel_at_the_wanted_rate(tone: Make, kind: str, codec: str) -> None:
    audio = load_audio(tone(kind=kind, codec=codec))
    assert audio.samples.dtype == np.float32
    seconds = len(audio.samples) / audio.rate
    assert seconds == pytest.approx(1.0, abs=0.01)
    spectrum = np.abs(np.fft.rfft(audio.samples))
    assert np.argmax(spectrum) / seconds == pytest.approx(440, abs=5)
    assert 0.4 < np.abs(audio.samples[1000:-1000]).max() < 0.6


def test_canonical_bytes_hold_the_rate(tone: Make) -> None:
    audio = load_audio(tone())
    assert media_bytes(audio) == media_bytes(load_audio(tone())) != media_bytes(Audio(audio.samples, 8_000))


def test_what_is_no_sound(tone: Make, clip: Make) -> None:
    for source, message in [(clip(), "no sound"), (b"nothing" * 99, "another kind"), (b"", "empty")]:
        with pytest.raises(MediaError, match=message):
            load_audio(source)
    with pytest.raises(MediaError, match="lasts longer"):
        load_audio(tone(), limits=MediaLimits(audio_seconds=0.5))
