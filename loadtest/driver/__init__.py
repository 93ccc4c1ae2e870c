"""Sends sessions to an OpenAI endpoint without coordinated omission, and keeps what came of each request.

- records.py    one request and its outcome; times count from when it should have been sent
- client.py     one request over HTTP, streamed or not
- driver.py     lanes of sessions, open or closed loop
- generator.py  whether the generator kept up
"""
