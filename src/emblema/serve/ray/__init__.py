"""Many replicas of a server: requests go where their pictures are, and deletions reach every replica."""
