"""Hours of video in a bounded memory: KV of frames in clusters on the host, fetched a cluster at a time (Mosaic)."""
