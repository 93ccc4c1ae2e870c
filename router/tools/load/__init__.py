"""`make loadtest`: the same seeded traffic under every policy on a local fleet, or against a running system.

- __main__.py  runs, report, exit code
- options.py   what can be asked for
- sending.py   traffic, scrapes and what is done meanwhile
- policies.py  a local fleet of simulated engines, each policy in turn
- peers.py     other routers in front of the same engines
- target.py    a running system
"""
