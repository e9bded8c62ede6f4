"""The embedded engine, for threads and for asyncio."""
