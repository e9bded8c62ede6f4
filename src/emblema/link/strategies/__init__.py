"""One file per strategy: a prompt and what the store knows become a plan."""
