"""The plugin for SGLang. See `docs/sglang.md`."""
