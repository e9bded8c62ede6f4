"""One tenant's use of one model: prompts are read and linked, replies decoded, and the policy learns from them."""
