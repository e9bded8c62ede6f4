"""Measuring a running server over HTTP: seconds to the first token, rates, and agreement. Nothing here knows vLLM."""
