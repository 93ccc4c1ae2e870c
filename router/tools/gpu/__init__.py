"""`make test-gpu`: policy `cost` against round robin over real engines with dummy weights, and their latency model.

engines   what an engine is started with: on GPUs, on the CPU (vLLM's CPU build), or simulated
fleet     engines with agents, Valkey, and a router of one policy after the other
"""
