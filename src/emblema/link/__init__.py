"""Linking is data: a prompt and what the store knows become a plan, and one executor carries any plan out."""
