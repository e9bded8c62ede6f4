"""Streams, measured: how well every memory answers, and what it costs (`emblema bench stream`)."""
