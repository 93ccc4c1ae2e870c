// Which beginnings are hot, and who holds them: a table whose last column is a strip with a cell for each replica.

import { byId, el, hideTip, meter, setAttribute, setText, showTip } from "./dom.js";
import { compact, count, percent } from "./format.js";
import { Table } from "./table.js";

const MAX_CELL = 96;
const NAMED_CELL = 30;

function metered(key, title, hint, share) {
  return {
    key, title, hint, numeric: true, sort: share, cell: () => {
      const bar = meter();
      return { node: bar.node, update: (row) => bar.update(share(row), "", percent(share(row), share(row) < 0.1 ? 1 : 0)) };
    },
  };
}

export class Prefixes {
  constructor() {
    this.replicas = [];
    this.found = { sampled_requests: 0, sampled_tokens: 0, prefixes: [] };
    const holders = (row) => {
      const shares = Object.values(row.held);
      const whole = shares.filter((share) => share === 1).length;
      return { whole, part: shares.length - whole };
    };
    this.table = new Table(byId("prefixes-table"), {
      caption: "Hottest prefixes",
      key: (row) => row.hash,
      empty: "No two sampled requests begin alike yet.",
      sortBy: "heat",
      descending: true,
      columns: [
        { key: "hash", title: "Prefix", hint: "The hash of its last block; a pseudonym where there are tenants", header: true, className: "mono", text: (row) => row.hash },
        { key: "model", title: "Model", sort: (row) => row.model, text: (row) => row.model },
        { key: "tokens", title: "Tokens", numeric: true, sort: (row) => row.tokens, text: (row) => count(row.tokens) },
        metered("requests", "Requests", "Share of the requests that were sampled", (row) => row.requests / this.found.sampled_requests),
        metered("share", "Prompt tokens", "Share of the sampled prompt tokens that lie in it", (row) => (row.requests * row.tokens) / Math.max(1, this.found.sampled_tokens)),
        { key: "heat", title: "Heat", hint: "Prompt tokens of sampled requests that lie in it, with a half-life of 20 s", numeric: true, sort: (row) => row.heat_tokens, text: (row) => compact(row.heat_tokens) },
        { key: "holders", title: "Held by", hint: "Replicas that hold all of it, and those that hold its beginning", numeric: true, sort: (row) => holders(row).whole, text: (row) => `${holders(row).whole} + ${holders(row).part}` },
        { key: "strip", title: "", hint: "Each replica, in the fleet's order; darker holds more", className: "strips", cell: () => this.#strip(holders) },
      ],
    });
    this.axis = el("span", { class: "axis" });
    this.table.heads.at(-1).append(this.axis);
    new ResizeObserver(() => this.#name()).observe(this.axis);
  }

  #strip(holders) {
    const canvas = el("canvas", { class: "strip", role: "img" });
    let row = null;
    let drawn = "";
    const draw = () => {
      const width = Math.round(canvas.clientWidth * devicePixelRatio);
      const height = Math.round(17 * devicePixelRatio);
      const paint = getComputedStyle(canvas).color;
      const wanted = [width, paint, this.replicas.join(), JSON.stringify(row.held)].join("|");
      if (!width || wanted === drawn) return;
      drawn = wanted;
      canvas.width = width;
      canvas.height = height;
      const context = canvas.getContext("2d");
      const cell = this.#cell(width);
      const gap = cell > 4 * devicePixelRatio ? devicePixelRatio : 0;
      context.fillStyle = paint;
      this.replicas.forEach((replica, place) => {
        context.globalAlpha = 0.09 + 0.91 * (row.held[replica] ?? 0);
        context.fillRect(place * cell, 0, Math.max(1, cell - gap), height);
      });
    };
    canvas.addEventListener("pointermove", (event) => {
      const place = Math.floor((event.offsetX * devicePixelRatio) / this.#cell(canvas.width));
      const replica = this.replicas[place];
      if (replica) showTip(`${replica} holds ${percent(row.held[replica] ?? 0)}`, event.clientX, event.clientY);
      else hideTip();
    });
    canvas.addEventListener("pointerleave", hideTip);
    new ResizeObserver(() => row && draw()).observe(canvas);
    return {
      node: canvas,
      update: (given) => {
        row = given;
        const { whole, part } = holders(row);
        setAttribute(canvas, "aria-label", `held by ${whole} of ${this.replicas.length} replicas, in part by ${part}`);
        draw();
      },
    };
  }

  #cell(width) {
    return Math.min(MAX_CELL * devicePixelRatio, width / Math.max(1, this.replicas.length));
  }

  /** Over the strips: each replica's name where there is room, else the first and the last. */
  #name() {
    const cell = this.#cell(this.axis.clientWidth * devicePixelRatio) / devicePixelRatio;
    const { replicas } = this;
    const named = cell >= NAMED_CELL ? replicas : [replicas[0], `${replicas.length} replicas, darker holds more`, replicas.at(-1)];
    setAttribute(this.axis, "data-named", cell >= NAMED_CELL ? "each" : "ends");
    if (this.axis.dataset.shown !== `${named} ${cell}`) {
      this.axis.dataset.shown = `${named} ${cell}`;
      this.axis.replaceChildren(...named.filter(Boolean).map((name) => {
        const label = el("span", { title: name }, name);
        if (cell >= NAMED_CELL) label.style.width = `${cell}px`;
        return label;
      }));
    }
  }

  fleet(view) {
    this.replicas = view.replicas.map((row) => row.replica);
    this.#name();
  }

  update(found) {
    this.found = found;
    setText(byId("prefixes-note"), `of ${count(found.sampled_requests)} sampled requests; hottest first`);
    this.table.update(found.prefixes);
  }

  redraw() {
    this.table.update(this.table.rows);
  }
}
