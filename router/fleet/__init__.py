"""Who can take a request: replicas, their units, their states, and what is in flight at each."""
