"""`make chaos`: a fleet of real processes under seeded faults and traffic, held against what its engines hold.

plan      which fault strikes whom when: a pure function of the seed
faults    what each kind does to the fleet
fleet     the processes, and who was out when
relay     connections that can be cut, reset, stalled and refused; frames: event messages that can be lost
traffic   clients, and which of their requests failed
blocks    both routers' indexes against the engines' own memory
"""
