"""What a stream's memory costs: time, bytes, transfers, upkeep, and the structure in attention that it lives by."""
