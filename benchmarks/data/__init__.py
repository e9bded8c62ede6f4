"""Data sets of multimodal questions as items.

`load_items(path, form)` reads a person's own copy of a data set; nothing is downloaded, nothing of theirs shipped:

    form          file of records                     media
    mm-niah       annotations/<task>.jsonl            images/
    muirbench     *.parquet, or jsonl                 in the table, or beside it
    milebench     <dataset>.json                      images/
    video-mme     *.json by video, or *.parquet       data/, videos/ or video/, <videoID>.mp4
    egoschema     questions.json, subset_answers.json videos/<q_uid>.mp4
    mmdu          benchmark.json                      as named, or images/
    sparkleseval  annotations/*sparkleseval*.json     images/<image_id>.jpg
    musique       *.jsonl                             none
    emblema       items.jsonl                         as named

Media have to lie inside the data set's folder. Parquet needs pyarrow.
"""

from benchmarks.data.forms import FORMS, load_items
from benchmarks.data.records import DataError, DataLimits

__all__ = ["FORMS", "DataError", "DataLimits", "load_items"]
