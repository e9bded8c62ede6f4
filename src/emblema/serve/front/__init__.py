"""The service in front of an engine that answers OpenAI's clients: files, caches, keys, and media in bodies."""
