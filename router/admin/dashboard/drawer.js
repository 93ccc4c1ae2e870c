// What opens at the side: why a request went where it went, and all that is known of a replica.

import { byId, el, svg } from "./dom.js";
import { compact, count, known, moment, percent, seconds } from "./format.js";
import { Table } from "./table.js";

export class Drawer {
  constructor() {
    this.dialog = byId("drawer");
    byId("drawer-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
  }

  show(title, ...content) {
    byId("drawer-title").textContent = title;
    byId("drawer-body").replaceChildren(...content.flat());
    byId("drawer-body").scrollTop = 0;
    if (!this.dialog.open) this.dialog.showModal();
  }

  fail(title, error) {
    this.show(title, el("p", { class: "error", role: "alert" }, error.message));
  }
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([name, value, kind]) =>
    el("div", { class: kind === "full" ? "full" : null }, el("dt", {}, name), el("dd", { class: kind === "mono" ? "mono" : null }, value))));
}

const details = (title, data) => el("details", {}, el("summary", {}, title), el("pre", { tabindex: 0 }, JSON.stringify(data, null, 2)));

/** A decision as /admin/decisions/{id} gives it; or, not sent, as /admin/explain does. */
export function decision(found, { sent = true } = {}) {
  const outcome = found.outcome;
  const parts = [el("p", { class: "why" }, found.why)];
  if (found.what_came) parts.push(el("p", { class: "after" }, found.what_came));
  parts.push(tokens(found));
  parts.push(facts([
    ["Model", found.model ?? "-"],
    ["Policy", found.policy],
    ["Placed", sent ? moment(found.at) : "not sent"],
    ["Decided by", found.reason],
    ["Lead", `${count(found.lead_tokens)} tokens`],
    ["Price of a token to compute", found.price.toFixed(2)],
    ["Trust", found.trust],
    ["Owner of its first blocks", found.owner ?? "-"],
    ["Waited for room", seconds(found.queued_s)],
    ["Tried before", found.retries.join(", ") || "-"],
    ...(outcome ? [
      ["Status", outcome.error ?? String(outcome.status ?? "none")],
      ["TTFT", seconds(outcome.ttft_s)],
      ["In all", seconds(outcome.total_s)],
      ["Tokens of the answer", count(outcome.completion_tokens)],
    ] : []),
  ]));
  parts.push(...candidates(found));
  const removed = Object.entries(found.removed);
  if (removed.length) {
    parts.push(el("h3", {}, "Could not be chosen"));
    parts.push(facts(removed.map(([replica, filter]) => [replica, filter])));
  }
  parts.push(details("All of it, as JSON", found));
  return parts;
}

function tokens(found) {
  const whole = Math.max(1, found.prompt_tokens);
  const delivered = found.outcome?.cached_tokens;
  const bars = [["Best match", found.available_tokens, "passed"], ["Predicted", found.matched_tokens, "p90"], ["Delivered", delivered, "delivered"]];
  const shown = bars.filter(([, value]) => known(value));
  const row = (name, value, color, place) => [
    svg("rect", { x: 0, y: 15 * place, width: "100%", height: 10, rx: 2, class: "c-cold", fill: "currentColor" }),
    svg("rect", { x: 0, y: 15 * place, width: `${Math.min(100, (100 * value) / whole)}%`, height: 10, rx: 2, class: `c-${color}`, fill: "currentColor" }),
  ];
  const said = shown.map(([name, value]) => `${name} ${count(value)}`).join(", ");
  return el("div", {},
    svg("svg", { class: "tokens", role: "img", "aria-label": `Of ${count(whole)} prompt tokens: ${said}` }, shown.flatMap((bar, place) => row(...bar, place))),
    el("div", { class: "legend" }, shown.map(([name, value, color]) => el("span", {}, el("i", { class: `swatch c-${color}` }), name, el("b", {}, count(value)))),
      el("span", {}, el("i", { class: "swatch c-cold" }), "Prompt", el("b", {}, `${count(found.prompt_tokens)} tokens`))));
}

function candidates(found) {
  const names = Object.keys(found.candidates[0]?.terms ?? {});
  const dearest = Math.max(1, ...found.candidates.map((each) => Object.values(each.terms).reduce((sum, term) => sum + Math.max(0, term), 0)));
  const holder = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Candidates" });
  const number = (key, title, value) => ({ key, title, numeric: true, sort: value, text: (row) => compact(value(row)) });
  const table = new Table(holder, {
    caption: "Candidates",
    key: (row) => row.unit,
    sortBy: "cost",
    rowTone: () => null,
    empty: "No candidate was scored.",
    columns: [
      { key: "unit", title: "Candidate", header: true, sort: (row) => row.unit, text: (row) => row.unit, tone: (row) => (row.unit === found.winner ? "state t-good" : null) },
      number("cost", "Cost", (row) => row.cost),
      { key: "terms", title: "Made of", cell: () => {
        const bar = svg("svg", { class: "terms", "aria-hidden": "true" });
        return { node: bar, update: (row) => bar.replaceChildren(...stack(Object.values(row.terms), dearest)) };
      } },
      number("matched", "Cached", (row) => row.matched_tokens),
      number("expected", "Expected", (row) => row.expected_tokens),
      number("backlog", "Backlog", (row) => row.backlog_tokens),
      number("running", "Running", (row) => row.running),
      { key: "trust", title: "Trust", text: (row) => row.trust },
      ...names.map((name) => number(`term-${name}`, name, (row) => row.terms[name] ?? null)),
    ],
  });
  table.update(found.candidates);
  const legend = names.map((name, place) => el("span", {}, el("i", { class: `swatch k-t${place % 5}` }), name));
  const left = found.candidates_left_out ? `, ${found.candidates_left_out} left out` : "";
  return [el("h3", {}, `Candidates, cheapest first (tokens of prefill${left})`), holder, el("div", { class: "legend" }, legend)];
}

function stack(values, most) {
  let x = 0;
  return values.map((value, place) => {
    const width = (150 * Math.max(0, value)) / most;
    const rect = svg("rect", { class: `t${place % 5}`, x: x.toFixed(1), y: 0, width: width.toFixed(1), height: 9 });
    x += width;
    return rect;
  });
}

/** A replica as /admin/replicas gives it, with its row of the overview. */
export function replica(found, row) {
  const parts = [facts([
    ["State", found.state],
    ["Why", found.down_reason ?? "-"],
    ["Source", found.source],
    ["Engine", found.engine || "-"],
    ["Failures in a row", count(found.failures_in_a_row)],
    ["Ejections", count(found.ejections)],
    ["Models", found.models.map((model) => model.name).join(", ") || "-"],
    ["Ended in the last minute", row ? count(row.window.requests) : "-"],
    ["Address", found.url, "mono"],
  ])];
  for (const unit of found.units) {
    parts.push(el("h3", {}, `Unit ${unit.unit}`));
    parts.push(facts([
      ["Trust", unit.trust],
      ["Scheme", unit.scheme ? `${unit.scheme.algorithm}, ${unit.scheme.block_size} tokens a block` : "unknown"],
      ["Blocks", `${count(unit.blocks)} of ${count(unit.num_blocks)}`],
      ["Age of its index", seconds(unit.blocks_age_s)],
      ["In flight from here", `${count(unit.requests)} requests, ${count(unit.backlog_tokens)} tokens`],
      ["Prefill speed, learned", `${count(unit.prefill_tokens_per_s)} tokens/s`],
      ["Engine", unit.load ? `${unit.load.running} running, ${unit.load.waiting} waiting, KV ${percent(unit.load.kv_usage_share)}` : "does not say"],
      ...(unit.reason ? [["Why trust is not exact", unit.reason, "full"]] : []),
    ]));
    for (const record of unit.predictions) {
      const judged = `${count(record.good)} good, ${count(record.mismatched)} mismatched, ${count(record.undecided)} undecided`;
      parts.push(facts([[`Predictions: ${record.model}, ${record.kind}`, record.explanation ? `${record.state}; ${judged}. ${record.explanation}` : `${record.state}; ${judged}`, "full"]]));
    }
  }
  parts.push(details("All of it, as JSON", found));
  return parts;
}
