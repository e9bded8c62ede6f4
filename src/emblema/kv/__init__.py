"""The algebra of position-free KV: layouts, rotation, patches, the merge of attention states. No model code."""
