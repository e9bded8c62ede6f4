"""How the bundled reference model is trained: a small Qwen2.5-VL that reads legends and maps.

- `python -m reference.train` trains from nothing into src/emblema/assets/reference (an hour or more on two CPU cores;
it shows how far it is). `--resume` goes on from the last checkpoint in build/reference, `--minutes` ends after so
long. - `python -m reference.measure` asks fresh questions of the trained folder, `python -m reference.card` writes
the model card with the measured figures, `python -m reference.demo_media` draws the demo's pictures and clip again.

words: the vocabulary. model: configuration, tokenizer, processor files. layout: an episode as decoder rows. batches:
the curriculum, masks and corrupted pictures. forward: the forward pass. The world itself is emblema.bench.tasks.
"""
