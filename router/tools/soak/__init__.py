"""`make soak`: churn under traffic for an hour, and whether the fleet is as good as before after each event.

plan      which event comes when, and whom it strikes: a pure function of the seed
churn     what each event does; faults are those of `make chaos`
clients   slow ones, and those that leave
hits      the share of a conversation that its next turn finds cached, and how soon it is back after an event
leaks     memory, file descriptors and keys, look by look
run       the loop: strike, recover, now and then pause and look
"""
