"""Agents: conversations with screenshots that are dropped, cropped and changed a little, replayed turn by turn."""
