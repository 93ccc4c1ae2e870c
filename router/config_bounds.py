"""What the configuration says of bounds: what clients can make the router hold, how often and how long it tries."""

from __future__ import annotations

from pydantic import Field

from router.config_section import PositiveSeconds, Section


class LimitsConfig(Section):
    """What a client can make the router hold."""

    body_bytes: int = Field(64 * 2**20, ge=1_024, le=2**34, description="largest request body")
    header_bytes: int = Field(64 * 2**10, ge=4_096, le=2**24, description="largest request line and headers together")
    buffered_bytes: int = Field(2**30, ge=2**20, le=2**40, description="all request bodies in memory together")
    connections: int = Field(20_000, ge=1, le=1_000_000, description="client connections at once")
    token_cache_bytes: int = Field(
        192 * 2**20,
        ge=0,
        le=2**40,
        description="token ids, block hashes and whole prompts seen before, some 12 million tokens; 0: keep none",
    )
    client_template_s: float = Field(
        0.25,
        gt=0,
        le=10,
        description="seconds for one chat template that a request brought, or an agent whose lease nobody signed",
    )
    inline_body_bytes: int = Field(
        4 * 2**10,
        ge=0,
        le=2**30,
        description="bodies of which more than this has to be tokenised anew are read in a worker thread",
    )
    tokenize_deadline_ms: int = Field(
        3_000,
        ge=1,
        le=600_000,
        description="a prompt not tokenised by then is placed by what is known of it; 16 of 100,000 fresh tokens at "
        "once take 2 s on two cores, and an engine many times that",
    )
    tokenize_queue: int = Field(
        256, ge=0, le=100_000, description="long prompts that wait for a thread; one more is placed at once, by load"
    )
    remote_tokenize_deadline_ms: int = Field(
        250,
        ge=1,
        le=60_000,
        description="a model without a tokenizer, or a prompt with media at engines with --enable-scale-out: what no "
        "replica has tokenised by then is placed by load, or by what stands before the media",
    )
    max_in_flight: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="requests of this router at one replica at once; when all are full, requests wait in a queue; "
        "0: no limit",
    )
    queue_requests: int = Field(
        1_000, ge=0, le=1_000_000, description="requests that wait for a replica; one more is refused; 0: none waits"
    )
    assumed_answer_tokens: int = Field(
        256, ge=0, le=10**6, description="tokens reserved for the answer of a request without a limit of its own"
    )
    remote_tokenize_requests: int = Field(
        16, ge=0, le=10_000, description="such prompts at once; one more is placed so too; 0: replicas are never asked"
    )


class RetryConfig(Section):
    """What happens when a replica can't be reached."""

    attempts: int = Field(
        3, ge=1, le=100, description="replicas tried for one request: connect failures, refusals, and `broken`"
    )
    broken: bool = Field(
        False,
        description="also try another replica when one breaks off before its answer began, as an engine that is "
        "killed does: no request fails for it, but it may have been generated twice",
    )
    refusal_statuses: tuple[int, ...] = Field(
        (503,),
        description="an engine's answer with one of these says that it did not take the request: another replica is "
        "tried, and the last one's answer passes through",
    )
    budget_share: float = Field(
        0.1, ge=0, le=1, description="of all requests, so many may be sent again elsewhere; a router out of it gives up"
    )
    budget_reserve: int = Field(
        100, ge=0, le=100_000, description="retries that may come at once, beyond the share; refilled by 10 a second"
    )
    continuation: bool = Field(
        False,
        description="a text stream that breaks off goes on at another replica from the text so far; what can be "
        "gone on with: docs/operations.md",
    )
    eject_after: int = Field(3, ge=1, le=1_000, description="failures in a row that eject a replica")
    eject_s: PositiveSeconds = Field(
        10.0, description="seconds an ejected replica is left alone before a probe request; doubled by each that fails"
    )
    eject_max_s: PositiveSeconds = Field(60.0, description="but never longer than this (or `eject_s`, if longer)")


class TimeoutsConfig(Section):
    """Seconds for each part of a request."""

    connect_s: PositiveSeconds = Field(2.0, description="to connect to a replica")
    request_s: PositiveSeconds = Field(
        60.0, description="for a client to send its headers, and between parts of its body"
    )
    first_byte_s: PositiveSeconds = Field(600.0, description="until a replica starts to answer")
    queue_s: PositiveSeconds = Field(30.0, description="a request waits in the queue for so long at most")
    total_s: PositiveSeconds = Field(3_600.0, description="for a request as a whole")
    keepalive_s: PositiveSeconds = Field(75.0, description="an idle client connection stays open")
    upstream_idle_s: PositiveSeconds = Field(
        4.0, description="an idle connection to an engine is kept (vLLM closes after 5)"
    )
    drain_delay_s: float = Field(
        0.0, ge=0, le=3_600, description="after SIGTERM: not ready, but still accepting, for this long"
    )
    drain_s: PositiveSeconds = Field(30.0, description="after SIGTERM: running requests get this long to finish")
