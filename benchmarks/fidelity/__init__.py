"""Fidelity: how far each reuse method is from re-prefill, on the same items, in the same setting, at the same bytes.

`measure` asks every question of every item under every strategy and keeps a record of each; `summary` turns records
into rows with intervals; `report` writes them for people; `results` sets committed figures beside what the papers
state, and `holds` checks that they still are so.
"""
