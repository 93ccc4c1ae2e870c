// What happened between samples: counters become rates, buckets become quantiles.

import { quantile } from "./format.js";

const KEPT = 720;

export class Samples {
  constructor() {
    this.bounds = [];
    this.samples = [];
  }

  begin(history) {
    this.bounds = history.ttft_bounds_s;
    this.samples = history.samples;
  }

  add(sample) {
    this.samples.push(sample);
    if (this.samples.length > KEPT) this.samples.shift();
  }

  /** Points of the last `span_s` seconds, at most `most` of them; each tells of the time since the one before. */
  points(span_s, most = 120) {
    const last = this.samples.at(-1);
    if (!last) return [];
    const within = this.samples.filter((sample) => sample.at >= last.at - span_s);
    const step = Math.max(1, Math.ceil(within.length / most));
    const kept = within.filter((_, place) => (within.length - 1 - place) % step === 0);
    return kept.slice(1).map((sample, place) => this.between(kept[place], sample));
  }

  /** What came between two samples. Never below zero: a router that began anew counts from zero. */
  between(one, other) {
    const over = Math.max(0.001, other.at - one.at);
    const grown = (key) => Math.max(0, (other[key] ?? 0) - (one[key] ?? 0));
    const ttft = other.ttft.map((value, place) => Math.max(0, value - (one.ttft[place] ?? 0)));
    const prompt = grown("prompt_tokens");
    const share = (tokens) => (prompt ? Math.min(1, Math.max(0, tokens / prompt)) : null);
    const lost = (...reasons) => share(reasons.reduce((sum, reason) =>
      sum + Math.max(0, (other.lost[reason] ?? 0) - (one.lost[reason] ?? 0)), 0));
    return {
      at: other.at,
      requests_per_s: grown("requests") / over,
      prompt_per_s: prompt / over,
      failed_share: grown("requests") ? grown("failed") / grown("requests") : null,
      retries: grown("retries"),
      available: share(grown("available")),
      delivered: share(grown("delivered")),
      unobserved: share(grown("unobserved")),
      missed: lost("stale", "mismatch"),
      passed: lost("load", "unavailable"),
      evicted: lost("evicted"),
      first: lost("first_time"),
      unread: lost("tail", "not_read", "deadline", "not_understood"),
      p50: quantile(ttft, this.bounds, 0.5),
      p90: quantile(ttft, this.bounds, 0.9),
      p99: quantile(ttft, this.bounds, 0.99),
      queue: other.queue,
      in_flight: other.in_flight,
    };
  }

  /** The last `span_s` seconds up to a view that is newer than any sample. */
  lately(totals, at, span_s) {
    const since = this.samples.find((sample) => sample.at >= at - span_s) ?? this.samples.at(-1);
    return since && at > since.at ? this.between(since, { at, ...totals }) : null;
  }
}
