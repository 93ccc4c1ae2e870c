"""Load tests: workloads (shared with the demo and the simulator) and a locustfile for any OpenAI endpoint."""
