"""Libraries: a tenant's files, the administrator's collections by version, and finding chunks in them."""
