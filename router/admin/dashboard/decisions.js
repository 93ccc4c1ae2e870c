// The last decisions: newest, slowest, most surprising.

import { byId, el, setAttribute } from "./dom.js";
import { clock, count, known, seconds } from "./format.js";
import { Table } from "./table.js";

const KINDS = [["latest", "Latest"], ["slowest", "Slowest"], ["surprising", "Most surprising"]];

export class Decisions {
  constructor(onOpen) {
    this.kind = "latest";
    this.view = null;
    this.tabs = KINDS.map(([kind, name]) => el("button", {
      type: "button", role: "tab", id: `tab-${kind}`, "aria-controls": "decisions-table", "data-kind": kind,
      onclick: () => this.choose(kind),
    }, name));
    const list = byId("decision-tabs");
    list.append(...this.tabs);
    list.addEventListener("keydown", (event) => this.#key(event));
    const number = (key, title, hint, value, format = count, tone = null) =>
      ({ key, title, hint, numeric: true, sort: value, text: (row) => format(value(row)), tone });
    this.table = new Table(byId("decisions-table"), {
      caption: "Decisions",
      key: (row) => `${row.request_id} ${row.at}`,
      onOpen: (row) => onOpen(row.request_id),
      empty: "None is kept yet (admin.decisions is how many are).",
      rowTone: (row) => (row.error || row.status >= 500 ? "bad" : null),
      columns: [
        { key: "at", title: "Time", sort: (row) => row.at, text: (row) => clock(row.at) },
        { key: "id", title: "Request", header: true, className: "mono", text: (row) => (row.request_id.length > 26 ? `${row.request_id.slice(0, 24)}..` : row.request_id), title_of: (row) => row.request_id },
        { key: "winner", title: "Went to", sort: (row) => row.winner, text: (row) => row.winner },
        { key: "reason", title: "By", hint: "What decided", sort: (row) => row.reason, text: (row) => row.reason },
        number("prompt", "Prompt", "Tokens", (row) => row.prompt_tokens),
        number("available", "Best match", "Tokens that the best replica had", (row) => row.available_tokens),
        number("matched", "Predicted", "Tokens that the chosen replica was predicted to have", (row) => row.matched_tokens, count, (row) => (row.available_tokens > row.matched_tokens ? "t-warn" : null)),
        number("delivered", "Delivered", "Cached tokens as the engine reported them", (row) => row.delivered_tokens, count, (row) => (known(row.delivered_tokens) && row.delivered_tokens !== row.matched_tokens ? "t-warn" : null)),
        number("queued", "Queued", "Waited for a replica with room", (row) => row.queued_s, seconds),
        number("ttft", "TTFT", "Time to first token", (row) => row.ttft_s, seconds),
        { key: "status", title: "Status", text: (row) => (row.error ?? (row.ended ? String(row.status ?? "none") : "running")), tone: (row) => (row.error || row.status >= 500 ? "t-bad" : "t-muted") },
        { key: "surprise", title: "Surprise", text: (row) => row.surprise || "", className: "wide" },
      ],
    });
    this.choose("latest");
  }

  choose(kind) {
    this.kind = kind;
    for (const tab of this.tabs) {
      const on = tab.dataset.kind === kind;
      setAttribute(tab, "aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on) setAttribute(byId("decisions-table"), "aria-labelledby", tab.id);
    }
    this.table.sortBy = null;
    if (this.view) this.table.update(this.view.decisions[kind]);
  }

  #key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const place = KINDS.findIndex(([kind]) => kind === this.kind);
    const next = (place + step + KINDS.length) % KINDS.length;
    this.choose(KINDS[next][0]);
    this.tabs[next].focus();
    event.preventDefault();
  }

  update(view) {
    this.view = view;
    this.table.update(view.decisions[this.kind]);
  }
}
