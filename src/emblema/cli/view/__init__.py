"""What `emblema stream` shows: frames coming in, clusters, answers, and what was retrieved for them."""
