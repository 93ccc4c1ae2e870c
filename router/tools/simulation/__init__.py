"""`warmroute simulate`: a fleet in virtual time, placed by the router's own code.

requests.py   what is asked: sessions of turns, their blocks by name
trace.py      sessions from a recorded trace (Mooncake's format)
timeline.py   virtual time
serial.py     an engine that computes one prompt after the other (for comparison with published simulations)
batched.py    an engine of continuous batching: the simulated engine's own core
rule.py       what a rule is told, and what it answers
warmroute.py  the router's own placement as a rule
peers.py      other routers, with more knowledge than a router can have
peer_rules.py their rules
tuning.py     the search for weights
run.py        one policy over one trace
figures.py    what came of it
"""
