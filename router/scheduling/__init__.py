"""The rule that chooses: filters, scorers, pickers, and the Decision that says why.

Knows nothing of the index or the fleet: it sees candidates, each a few figures in tokens.
"""
