"""Placement: which chunks to admit to a window, and in which order, so that what is stored stays valid.

Kamera (appendix E) leaves it open: over a set of chunks the order is free, and a chunk after antecedents that it was
conditioned on before costs nothing to compute. Pure data: ids, sizes and prices; no model.
"""
