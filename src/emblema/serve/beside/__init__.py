"""What stands beside an engine in its own server: files, caches, keys, and bodies that name media."""
