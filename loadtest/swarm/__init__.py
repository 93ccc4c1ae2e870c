"""The load test as locust users: the same sessions, sent by any number of locust's workers.

- options.py   what can be asked for on locust's command line
- client.py    one request over gevent's sockets
- part.py      a worker's part of the traffic: arrivals, or users that take sessions
- together.py  master and workers: who makes which share, the common start, the end
- figures.py   rows of locust's statistics, and what a report is made of
- ramp.py      locust's number of users over time
"""
