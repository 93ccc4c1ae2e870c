"""`python -m loadtest.calibrate URL --model NAME`: the latency model of a running engine.

measure   asks it: prompts of growing length, and answers in batches of growing size
model     what follows from it: the simulators' three numbers, and how far they are off
predict   the simulated engine's own core on the same traffic, in virtual time
"""
