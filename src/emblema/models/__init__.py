"""Adapters over transformers vision-language models: encode, positions, capture, linked forward, self-check."""
