"""Videos with questions asked while they run, as items: `load_streams(path, form)`, and `write_streams` the other way.

    form            file of records          videos
    rekv            *.json                   as named, or by file name in videos/, video/, data/: RVS-ego, RVS-movie
    mlvu            json/*.json              video/<task>/
    longvideobench  lvb_val.json             videos/
    video-mme       *.json or *.parquet      data/, videos/ or video/

Nothing is downloaded, nothing of theirs shipped. Videos have to lie inside the data set's folder.
"""

from benchmarks.data.streams.forms import STREAM_FORMS
from benchmarks.data.streams.items import StreamItem, StreamQuestion, item_of
from benchmarks.data.streams.load import load_streams, write_streams

__all__ = ["STREAM_FORMS", "StreamItem", "StreamQuestion", "item_of", "load_streams", "write_streams"]
