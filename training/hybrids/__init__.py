"""How `reference-hybrid` is trained: `python -m training.hybrids.train`, an hour of one CPU core.

A mask cannot hide rows from a state. So questions are branches: the prompt runs once, and every question goes on from
the states after it; where the legends have slid away, from states of the other rows alone.

batches: the curriculum, prompts and questions apart. forward: the decoder's stock modules on both. train: losses and
the run. card: figures and the README.
"""
