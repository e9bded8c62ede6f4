"""What the plugins for serving engines share: requests as chunks, plans of them, and rows that are staged."""
