"""Emblema: a picture's key-value cache, made once and set into any prompt."""
