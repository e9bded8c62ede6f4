"""Long answers: how far methods are from re-prefill token by token, over lists of 32 tokens and more."""
