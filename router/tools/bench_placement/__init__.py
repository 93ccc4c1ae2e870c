"""`make bench-placement`: what placement gives, as tables, from simulations that anyone can run again.

cells.py      one run of `warmroute simulate`, kept so that a measure that was broken off goes on where it was
measures.py   the measures: which runs, and what their tables say
"""
