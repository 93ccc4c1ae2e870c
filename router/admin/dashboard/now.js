// The figures at the top, the warnings, and the charts over time.

import { Chart } from "./chart.js";
import { byId, el, setAttribute, setText } from "./dom.js";
import { compact, count, known, pair, percent, plural, rate, seconds } from "./format.js";

const LATELY_S = 30;
const SPANS = [["5 min", 300], ["15 min", 900], ["1 h", 3600]];

const TILES = [
  ["replicas", "Replicas ready"],
  ["requests", "Requests/s"],
  ["hit", "Hit rate"],
  ["ttft", "TTFT p50 / p90"],
  ["queue", "Queue"],
  ["failed", "Failed"],
  ["kv", "KV use, mean"],
  ["index", "Index"],
];

export class Now {
  constructor() {
    this.tiles = {};
    for (const [key, name] of TILES) {
      const value = el("p", { class: "value" }, "-");
      const more = el("p", { class: "more" });
      const tile = el("div", { class: "kpi", id: `kpi-${key}` }, el("p", { class: "name" }, name), value, more);
      this.tiles[key] = { tile, value, more };
      byId("kpis").append(tile);
    }
  }

  #set(key, value, more, tone) {
    const found = this.tiles[key];
    setText(found.value, value);
    setText(found.more, more);
    setAttribute(found.more, "title", more);
    setAttribute(found.tile, "data-tone", tone);
  }

  update(view, samples) {
    const rows = view.replicas;
    const by = Object.groupBy ? Object.groupBy(rows, (row) => row.state) : grouped(rows);
    const ready = by.ready?.length ?? 0;
    const others = ["down", "ejected", "draining"].filter((state) => by[state]).map((state) => `${by[state].length} ${state}`);
    const bad = Boolean(by.down || by.ejected) || !ready;
    this.#set("replicas", `${ready} / ${rows.length}`, others.join(", ") || "all in rotation", bad ? "bad" : others.length && "warn");
    const lately = samples.lately(view.totals, view.at, LATELY_S);
    const last = `last ${LATELY_S} s`;
    this.#set("requests", rate(lately?.requests_per_s), `${compact(lately?.prompt_per_s)} prompt tokens/s`);
    this.#set("hit", percent(lately?.delivered, 1), known(lately?.delivered) ? `of ${percent(lately.available, 1)} available, ${last}` : `no prompts, ${last}`);
    this.#set("ttft", pair(lately?.p50, lately?.p90), known(lately?.p50) ? `p99 ${seconds(lately.p99)}, ${last}` : `no streams, ${last}`);
    this.#set("queue", count(view.totals.queue), `${count(view.totals.in_flight)} in flight`, view.totals.queue ? "warn" : null);
    const failed = lately?.failed_share ?? null;
    this.#set("failed", percent(failed, 2), `${plural(lately?.retries ?? 0, "retry").replace("retrys", "retries")}, ${last}`, failed > 0.01 ? "bad" : failed > 0 && "warn");
    const uses = rows.map((row) => row.kv_share).filter(known);
    const mean = uses.length ? uses.reduce((sum, each) => sum + each, 0) / uses.length : null;
    this.#set("kv", percent(mean), uses.length ? `most ${percent(Math.max(...uses))}` : "no replica reports it");
    const ages = rows.filter((row) => row.state !== "down").map((row) => row.index_age_s).filter(known);
    const oldest = ages.length ? Math.max(...ages) : null;
    this.#set("index", compact(view.index.blocks), ages.length ? `blocks; oldest news ${seconds(oldest)}` : "blocks, as remembered", oldest > 15 ? "warn" : null);
  }
}

function grouped(rows) {
  const groups = {};
  rows.forEach((row) => { (groups[row.state] ??= []).push(row); });
  return groups;
}

export function showWarnings(warnings) {
  const wrong = warnings.filter((each) => each.status === "wrong").length;
  const parts = [wrong && `${wrong} wrong`, warnings.length - wrong && plural(warnings.length - wrong, "warning")];
  setText(byId("warnings-note"), parts.filter(Boolean).join(", ") || "None: nothing that the router can see is wrong.");
  const text = JSON.stringify(warnings);
  const list = byId("warnings-list");
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...warnings.map(warning));
}

function warning(found) {
  const bad = found.status === "wrong";
  const many = found.subjects.length;
  const named = found.subjects.slice(0, 8).join(", ");
  const who = many > 8 ? `${many}: ${named} and ${many - 8} more` : named;
  return el("li", { "data-tone": bad ? "bad" : "warn", "data-id": found.id },
    el("span", { class: "mark" }, bad ? "Wrong" : "Warning"),
    el("span", {}, el("span", { class: "title" }, found.title), many ? [el("br"), el("span", { class: "who" }, who)] : null),
    el("span", { class: "detail" }, found.detail),
    el("span", { class: "remedy" }, el("b", {}, "Do: "), found.remedy));
}

export class Flow {
  constructor() {
    this.span = 900;
    this.ledger = new Chart(byId("chart-ledger"), {
      title: "Where prompt tokens came from",
      note: "share of prompt tokens",
      stacked: true,
      most: 1,
      format: (value) => percent(value, value > 0 && value < 0.1 ? 1 : 0),
      series: [
        { name: "Delivered", color: "delivered", value: (point) => point.delivered },
        { name: "Unobserved", color: "unobserved", value: (point) => point.unobserved },
        { name: "Predicted, not there", color: "missed", value: (point) => point.missed },
        { name: "Passed over", color: "passed", value: (point) => point.passed },
        { name: "Evicted", color: "evicted", value: (point) => point.evicted },
        { name: "First seen", color: "cold", value: (point) => point.first },
        { name: "Not readable", color: "unread", value: (point) => point.unread },
      ],
    });
    this.ttft = new Chart(byId("chart-ttft"), {
      title: "Time to first token",
      format: seconds,
      series: ["p50", "p90", "p99"].map((name) => ({ name, color: name, value: (point) => point[name] })),
    });
    this.queue = new Chart(byId("chart-queue"), {
      title: "Queue and in flight",
      format: count,
      series: [
        { name: "Waiting", color: "queue", value: (point) => point.queue },
        { name: "In flight", color: "flight", value: (point) => point.in_flight },
      ],
    });
    const choose = el("select", { "aria-label": "Time span", onchange: (event) => { this.span = Number(event.target.value); this.onSpan?.(); } },
      SPANS.map(([name, span]) => el("option", { value: span, selected: span === this.span }, name)));
    byId("chart-ledger").querySelector(".head").append(el("div", { class: "field" }, choose));
  }

  update(samples) {
    const points = samples.points(this.span);
    const last = points.at(-1);
    const told = (text) => (last ? text() : "no figures yet");
    this.ledger.update(points, told(() => `${percent(last.delivered, 1)} delivered, ${percent(last.missed, 1)} predicted and not there, ${percent(last.passed, 1)} passed over, ${percent(last.evicted, 1)} evicted, ${percent(last.first, 1)} first seen`));
    this.ttft.update(points, told(() => `p50 ${seconds(last.p50)}, p90 ${seconds(last.p90)}, p99 ${seconds(last.p99)}`));
    this.queue.update(points, told(() => `${count(last.queue)} waiting, ${count(last.in_flight)} in flight`));
  }
}
