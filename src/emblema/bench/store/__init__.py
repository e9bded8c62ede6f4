"""`emblema bench store`: what the store costs and what it saves, measured on this machine, one file a measurement."""
