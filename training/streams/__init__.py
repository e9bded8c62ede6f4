"""How `reference-stream` is trained: `reference` goes on to streams of frames (benchmarks.tasks.streams).

- `python -m training.streams.train` trains it into src/emblema/assets/reference-stream, `--resume` goes on from the
last checkpoint in build/reference-stream. - `python -m training.streams.measure` asks fresh questions of a trained
folder; `python -m training.streams.card` writes its card with the measured figures.

labels: what each cell means. hints: where the words of a question may look. rows: streams and their questions as
decoder rows, who may see what, positions native or packed. curriculum: what is shown when. losses: what training is
held to. forward: the forward pass; its questions read the stream's rows at positions of their own. The vision tower
stays `reference`'s, so every tile's features are made once.
"""
