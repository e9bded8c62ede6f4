"""How the bundled models are trained: small models of five families that read legends and maps.

- `python -m training.train` trains `reference` from nothing into src/emblema/assets/reference (an hour or more on two
CPU cores; it shows how far it is). `python -m training.train --model reference-mla --teacher
src/emblema/assets/reference` trains another family from it, in half the time or less. `--resume` goes on from the last
checkpoint in build/NAME, `--minutes` ends after so long. - `python -m training.measure` asks fresh questions of a
trained folder, `python -m training.card` writes its card with the measured figures, `python -m training.demo_media`
draws the demo's pictures and clip again.

words: the vocabulary. families: one recipe a family of models. folder: tokenizer, processor files, weights. layout: an
episode as decoder rows. batches: the curriculum and masks. pictures: tiles, corrupted. forward: the forward pass.
teach: what another family takes over from `reference`. streams, hybrids: `reference-stream` and `reference-hybrid`,
with recipes of their own. lists: `reference-lists`, low-rank factors over `reference`. The world itself is
benchmarks.tasks.
"""
