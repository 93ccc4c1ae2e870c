"""Tenants: who a request is from, what it may use, and the salt that keeps its cached blocks apart.

keys.py       API keys in a request's head, and the table that they are looked up in
tenants.py    Tenants: one value made of the configuration; replaced as a whole when that is read anew
isolation.py  which requests can carry a cache salt, and the body with it
top_level.py  the keys of a JSON object as they are spelled
decoding.py   gzip bodies, under caps
buckets.py    token buckets
limits.py     requests and tokens of each tenant
shares.py     how several routers divide a tenant's limits
"""
