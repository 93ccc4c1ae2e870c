"""The engine's core: blocks, hashes, scheduler and step times, without I/O and without a clock.

Time is a parameter, so the same code runs behind a server in real time and in a simulation in virtual time:

    scheduler = Scheduler(limits)
    scheduler.add(request, now_s)
    step = scheduler.schedule()                   # blocks are taken, and announced, here
    now_s += timing.step_s(step)
    tokens = scheduler.complete(step, now_s)      # samples, finishes, frees
    events = scheduler.take_events()              # what this step stored and evicted, in order
"""
