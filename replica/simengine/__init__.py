"""A simulated vLLM replica: its HTTP interface, its KV events, its prefix cache, without a model.

core/          blocks, hashes, scheduler, step times: pure, no clock, no I/O
settings.py    what an engine is made of
engine.py      runs a core in real time (one a data-parallel rank)
publisher.py   what the core did, as vLLM's frames on ZMQ, with replay
text.py        tokenizer and chat template
words.py       the answers: words that survive being decoded and encoded again
bodies.py      an OpenAI body -> what to generate, or vLLM's error (with fields.py, prompts.py)
refusals.py    vLLM's errors
choices.py     one answer that grows token by token
answering.py   its tokens on their way to the client
completions.py, chats.py   the two answer formats (formats.py: what they share)
generating.py  from a request to its answer
metrics.py     vLLM's metric names
faults.py      what can be made to go wrong
server.py      the routes
options.py, command.py     `warmroute simengine`
"""
