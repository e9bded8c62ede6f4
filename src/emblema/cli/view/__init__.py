"""What `emblema stream` shows: frames coming in, clusters forming, answers, and what was retrieved for them."""
