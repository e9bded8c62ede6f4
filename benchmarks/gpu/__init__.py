"""Half an hour on a GPU: what has to be known first, in order, saved step by step."""
