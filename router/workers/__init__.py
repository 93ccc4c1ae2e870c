"""Several processes that serve one address, and the supervisor that is all of them to an operator.

crew.py       the workers: started, replaced, told what to do
worker.py     one worker: its process, as the crew sees it
process.py    the worker process itself
control.py    how the two speak
relay.py      a client of a worker that asks for admin is served by the supervisor
admin.py      the supervisor's admin: what all workers say together
merging.py    metrics of many processes as one
"""
