// The fleet: a map with a tile for each replica, and a table with a row for each.

import { byId, el, hideTip, meter, setAttribute, setText, showTip } from "./dom.js";
import { compact, count, known, percent, quantile, seconds } from "./format.js";
import { Table } from "./table.js";

const TONES = { ready: "t-good", draining: "t-warn", ejected: "t-bad", down: "t-bad" };
const ORDER = ["down", "ejected", "draining", "ready"];
const TRUST_TONES = { exact: "t-good", mapped: "t-good", approximate: "t-warn", none: "t-muted" };
const STALE_S = 15;
const FEW = 9; // a table shows so few at a glance

export const hitOf = (row) => (row.window.prompt_tokens ? row.window.cached_tokens / row.window.prompt_tokens : null);

const COLORS = {
  kv: ["KV use", (row) => row.kv_share, percent],
  hit: ["Hit rate, last minute", hitOf, percent],
  requests: ["In flight", (row) => row.requests, count],
  waiting: ["Waiting at the engine", (row) => row.waiting, count],
  blocks: ["Blocks", (row) => row.blocks, compact],
};

function metered(share, tone) {
  return () => {
    const bar = meter();
    return { node: bar.node, update: (row) => bar.update(share(row), tone(share(row)), percent(share(row))) };
  };
}

const stale = (row) => row.state !== "down" && known(row.index_age_s) && row.index_age_s > STALE_S;

export class Fleet {
  constructor(onOpen) {
    this.bounds = [];
    this.tiles = new Map();
    this.onOpen = onOpen;
    const ttft = (row) => quantile(row.window.ttft, this.bounds, 0.5);
    const number = (key, title, hint, value, format = count, tone = null) =>
      ({ key, title, hint, numeric: true, sort: value, text: (row) => format(value(row)), tone });
    this.table = new Table(byId("fleet-table"), {
      caption: "Replicas",
      key: (row) => row.replica,
      onOpen,
      sortBy: "state",
      empty: "No replica matches.",
      rowTone: (row) => ({ down: "bad", ejected: "bad", draining: "warn" })[row.state],
      columns: [
        { key: "replica", title: "Replica", header: true, sort: (row) => row.replica, text: (row) => row.replica },
        { key: "state", title: "State", sort: (row) => ORDER.indexOf(row.state), text: (row) => row.state, tone: (row) => `state ${TONES[row.state]}`, title_of: (row) => row.down_reason },
        { key: "trust", title: "Trust", hint: "How far its reported blocks are believed", sort: (row) => (row.doubts.length ? "0" : row.trust), text: (row) => (row.doubts.length ? `${row.trust}, doubted` : row.trust), tone: (row) => (row.doubts.length ? "t-bad" : TRUST_TONES[row.trust]), title_of: (row) => row.trust_reason },
        number("requests", "In flight", "Requests that this router has there", (row) => row.requests),
        number("running", "Running", "The engine's own figure", (row) => row.running),
        number("waiting", "Waiting", "The engine's own figure", (row) => row.waiting, count, (row) => (row.waiting > 0 ? "t-warn" : null)),
        number("backlog", "Backlog", "Uncached prompt tokens in flight there", (row) => row.backlog_tokens, compact),
        { key: "kv", title: "KV use", hint: "The engine's own figure", numeric: true, sort: (row) => row.kv_share, cell: metered((row) => row.kv_share, (share) => (share > 0.95 ? "bad" : share > 0.85 ? "warn" : "")) },
        number("blocks", "Blocks", "Blocks that the index knows there, of those that its GPU cache has", (row) => row.blocks, compact),
        number("of", "of", "Blocks of its GPU cache", (row) => row.num_blocks, compact, () => "t-muted"),
        { key: "hit", title: "Hit rate 1 m", hint: "Cached tokens of prompt tokens, as the engine reported them, of the last minute's kept decisions", numeric: true, sort: hitOf, cell: metered(hitOf, () => "hit") },
        number("ttft", "TTFT p50 1 m", "Of the last minute's kept decisions", ttft, seconds),
        number("ended", "Ended 1 m", "Requests that ended, of the last minute's kept decisions", (row) => row.window.requests),
        number("failed", "Failed", "5xx or no answer", (row) => row.window.failed, count, (row) => (row.window.failed ? "t-bad" : "t-muted")),
        number("age", "Index age", "Since its agent was last heard", (row) => row.index_age_s, seconds, (row) => (stale(row) ? "t-bad" : null)),
        { key: "models", title: "Models", sort: (row) => row.models.join(), text: (row) => (row.models.length > 2 ? `${row.models.slice(0, 2).join(", ")} +${row.models.length - 2}` : row.models.join(", ")), title_of: (row) => row.models.join(", ") },
      ],
    });
    this.rows = [];
    byId("fleet-filter").addEventListener("input", () => this.#show());
    const by = byId("map-by");
    by.append(...Object.entries(COLORS).map(([key, [name]]) => el("option", { value: key }, name)));
    by.addEventListener("change", () => this.#map());
    const map = byId("fleet-map");
    map.addEventListener("pointermove", (event) => this.#tip(event));
    map.addEventListener("pointerleave", hideTip);
    map.addEventListener("click", (event) => {
      const row = this.#under(event);
      if (row) onOpen(row);
    });
  }

  update(view) {
    this.rows = view.replicas;
    this.#show();
    this.#map();
  }

  #show() {
    const words = byId("fleet-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => [row.replica, row.state, row.trust, row.source, ...row.models].join(" ").toLowerCase();
    const shown = words.length ? this.rows.filter((row) => words.every((word) => text(row).includes(word))) : this.rows;
    setText(byId("fleet-note"), words.length ? `${shown.length} of ${this.rows.length} replicas` : `${this.rows.length} replicas`);
    this.table.update(shown);
  }

  #map() {
    const map = byId("fleet-map");
    map.hidden = byId("map-field").hidden = this.rows.length < FEW;
    if (map.hidden) return;
    const by = byId("map-by").value || "kv";
    const [name, value, format] = COLORS[by];
    const most = by === "kv" || by === "hit" ? 1 : Math.max(1, ...this.rows.map((row) => value(row) ?? 0));
    setAttribute(map, "data-by", by);
    const names = new Set(this.rows.map((row) => row.replica));
    for (const [replica, tile] of this.tiles) if (!names.has(replica)) { tile.remove(); this.tiles.delete(replica); }
    for (const row of this.rows) {
      let tile = this.tiles.get(row.replica);
      if (!tile) {
        tile = el("i", { "data-replica": row.replica }, el("b"));
        this.tiles.set(row.replica, tile);
        map.append(tile);
      }
      setAttribute(tile, "data-tone", row.state === "ready" ? "" : row.state === "draining" ? "warn" : "bad");
      tile.firstChild.style.opacity = Math.min(1, (value(row) ?? 0) / most).toFixed(2);
    }
    const values = this.rows.map(value).filter(known);
    const range = values.length ? `${format(Math.min(...values))} to ${format(Math.max(...values))}` : "unknown";
    setAttribute(map, "aria-label", `${this.rows.length} replicas by ${name.toLowerCase()}: ${range}; the table below has each`);
  }

  #under(event) {
    const replica = event.target.closest?.("i")?.dataset.replica;
    return this.rows.find((row) => row.replica === replica);
  }

  #tip(event) {
    const row = this.#under(event);
    if (!row) { hideTip(); return; }
    const [name, value, format] = COLORS[byId("map-by").value || "kv"];
    showTip(`${row.replica}  ${row.state}\n${name}  ${format(value(row))}`, event.clientX, event.clientY);
  }
}
