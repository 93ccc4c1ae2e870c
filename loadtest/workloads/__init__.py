"""Traffic as data: what is said, who says it when, and the best that any cache could make of it.

One package for the demo, the simulator and locust. Pure: seeded, no sockets, no clocks.

- text.py           pseudo text of exact token lengths
- conversations.py  sessions: chats, shared documents, prompts without reuse; mixes of them
- schedule.py       closed loops and open arrivals
- presets.py        traffic by name: a mix, its arrivals, and llm-d's own benchmark
- mooncake.py       requests of a recorded trace; replay.py makes sessions of them
- rendering.py      token ids of a prompt, by the model's template and tokenizer
- answers.py        reads a streamed answer
- lru_bound.py      one cache as large as the fleet's together
- tokenizer/        a small tokenizer to make and read all of it with
"""
