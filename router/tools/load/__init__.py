"""`make loadtest`: the same seeded traffic under every policy on a local fleet, or against a running system.

- __main__.py  options, exit code
- plan.py      which traffic, how it is sent, what is stored
- policies.py  a local fleet of simulated engines, each policy in turn
- target.py    a running system
"""
