"""The parts of the bench by name: the traces, and every table of Kamera's section 5 and appendix D."""

TRACES = ("agent", "novelty")
TABLES = ("orbit", "survivors", "recall", "divergence", "superset", "refresh")
PARTS = (*TRACES, *TABLES)
