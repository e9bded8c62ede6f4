"""Fidelity: how far each reuse method is from re-prefill, on the same items, in the same setting, at the same bytes.

`measure` asks every question of every item under every strategy and keeps a record of each; `summary` turns records
into rows with intervals; `run` writes them to a file; `results` makes the page of committed figures beside what the
papers state, and checks that they still hold.
"""
