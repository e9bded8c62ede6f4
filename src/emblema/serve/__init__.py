"""The service: OpenAI's chat completions and files over the embedded engine, for any number of tenants."""
