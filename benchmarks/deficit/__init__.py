"""What blind reuse loses, taken apart: the conditioning deficit's size, rank, depth, tokens and heads.

One file a measurement; each notes figures of chunks and of questions in a `Ledger`. Terms are Kamera's (sections 2 to
6, appendices A to D) and, for the three insights, MPIC's.
"""
