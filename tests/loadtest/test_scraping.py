"""What is read of metrics pages, and what it adds up to."""

from __future__ import annotations

import http.server
import threading

import pytest

from loadtest.driver.scraping import Scrape, Scraper, grown, metrics_pages, read_figures
from loadtest.report.scraped import scraped, scraped_line

ENGINE = """vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:prefix_cache_queries_total{engine="0"} 1000
vllm:prefix_cache_hits_total{engine="0"} 250
vllm:request_success_total{engine="0",finished_reason="stop"} 4
vllm:request_success_total{engine="0",finished_reason="length"} 5
"""


def test_figures_of_an_engine_s_page() -> None:
    """Sums over its lines; what is not there is left out."""
    assert read_figures(ENGINE) == {
        "running": 3,
        "waiting": 2,
        "kv_usage": 0.5,
        "query_tokens": 1000,
        "hit_tokens": 250,
        "answered": 9.0,
    }
    assert read_figures("warmroute_in_flight_requests 7\n") == {"in_flight": 7.0}


def scrape(at_s: float, source: str, **figures: float) -> Scrape:
    return Scrape(at_s, source, figures)


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    """10 to 30, then a restart, then 5: 25 together."""
    scrapes = [scrape(at_s, "r0", answered=value) for at_s, value in ((0, 10.0), (1, 30.0), (2, 5.0))]
    assert grown(scrapes, "answered") == {"r0": 25.0}


def test_scrapes_add_up_over_engines() -> None:
    """The engines' own hit rate is of what grew; a point of the line is a round over all that told something."""
    scrapes = [
        scrape(0.0, "r0", query_tokens=100.0, hit_tokens=50.0, waiting=1.0, kv_usage=0.2),
        scrape(0.1, "r1", query_tokens=0.0, hit_tokens=0.0, waiting=2.0, kv_usage=0.4),
        scrape(1.0, "r0", query_tokens=300.0, hit_tokens=100.0, waiting=0.0, kv_usage=0.6),
        scrape(2.0, "r0", query_tokens=500.0, hit_tokens=150.0, waiting=0.0, kv_usage=0.6),
        scrape(2.1, "r1", query_tokens=100.0, hit_tokens=0.0, waiting=0.0, kv_usage=0.2),
    ]
    told = scraped(scrapes)
    assert told["engines_hit_rate"] == pytest.approx(100 / 500)
    assert told["waiting_max"] == 3
    line = scraped_line(scrapes)
    assert [(point["at_s"], point["waiting"]) for point in line] == [(0.0, 3), (1.0, 0), (2.0, 0)]
    assert [point["kv_usage"] for point in line] == pytest.approx([0.3, 0.6, 0.4])


def test_a_source_is_read_at_the_begin_and_at_the_end() -> None:
    """One that can't be reached is counted, and spoils nothing."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ENGINE.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with Scraper({"r0": url, "gone": "http://127.0.0.1:1/metrics"}, every_s=60) as scraper:
            assert [each.source for each in scraper.scrapes] == ["r0"]
        server.shutdown()
    assert len(scraper.scrapes) == 2
    assert scraper.failures == {"gone": 2}


def test_metrics_pages_are_the_target_s_unless_others_are_named() -> None:
    """A base URL has its page at /metrics."""
    assert metrics_pages("http://a:1", ()) == {"a:1": "http://a:1/metrics"}
    assert metrics_pages("http://a:1", ("http://b:2/", "https://c/m")) == {
        "b:2": "http://b:2/metrics",
        "c:https": "https://c/m",
    }
