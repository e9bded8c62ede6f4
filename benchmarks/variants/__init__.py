"""Pictures that differ a little from a stored one: rows, the encoder's work, answers and first tokens."""
