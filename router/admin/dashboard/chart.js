// A chart over time: lines, or areas on top of each other. The pointer or the arrow keys read a moment's figures.

import { el, hideTip, setAttribute, setText, showTip, svg } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 168;
const LEFT = 44;
const BOTTOM = 18;
const TOP = 6;

export class Chart {
  /** series: [{ name, color, value: point => number | null }]; format: figure -> text. */
  constructor(holder, { title, note, series, format, stacked = false, most = null }) {
    Object.assign(this, { series, format, stacked, most });
    this.points = [];
    this.svg = svg("svg", { class: "chart", role: "img", tabindex: 0, "aria-label": title });
    this.title = title;
    this.figures = series.map(() => el("b", {}, "-"));
    const names = series.map((each, place) =>
      el("span", {}, el("i", { class: `swatch c-${each.color}` }), each.name, this.figures[place]));
    this.note = el("p", { class: "note" }, note ?? "");
    holder.append(
      el("div", { class: "head" }, el("h2", {}, title), this.note),
      el("div", { class: "plot" }, this.svg),
      el("div", { class: "legend" }, names),
    );
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#leave());
    this.svg.addEventListener("blur", () => this.#leave());
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(this.svg);
  }

  update(points, summary) {
    this.points = points;
    const last = points.at(-1);
    this.series.forEach((each, place) => {
      const value = last ? each.value(last) : null;
      setText(this.figures[place], value === null ? "-" : this.format(value));
    });
    setAttribute(this.svg, "aria-label", `${this.title}: ${summary}`);
    this.#draw();
  }

  #draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const { points } = this;
    const values = points.map((point) => this.series.map((each) => each.value(point)));
    const tops = values.flatMap((row) => (this.stacked ? [row.reduce((sum, each) => sum + (each ?? 0), 0)] : row));
    const top = this.most ?? niceTop(Math.max(0, ...tops.map((each) => each ?? 0)));
    const from = points[0]?.at ?? 0;
    const span = Math.max(1, (points.at(-1)?.at ?? 1) - from);
    this.x = (at) => LEFT + ((at - from) / span) * (width - LEFT - 6);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const ticks = [0, 1, 0.5].filter((share) => share !== 0.5 || this.format(top / 2) !== this.format(top));
    const parts = ticks.flatMap((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - 6, y1: y(share * top), y2: y(share * top) }),
      svg("text", { x: LEFT - 6, y: y(share * top) + 3.5, "text-anchor": "end" }, this.format(share * top)),
    ]);
    if (!values.flat().some((value) => value !== null)) {
      const middle = { x: (width + LEFT) / 2, y: HEIGHT / 2 - 14, "text-anchor": "middle" };
      parts.push(svg("text", middle, points.length ? "No traffic in this span." : "The first figures come within ten seconds."));
    }
    if (points.length > 1) {
      parts.push(...this.#times(from, span, width));
      parts.push(...(this.stacked ? this.#areas(values, y) : this.#lines(values, y)));
    }
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.svg.replaceChildren(...parts, this.cursor);
  }

  #times(from, span, width) {
    const many = width > 500 ? 5 : 3;
    return Array.from({ length: many }, (_, place) => {
      const at = from + (span * place) / (many - 1);
      const anchor = place === 0 ? "start" : place === many - 1 ? "end" : "middle";
      return svg("text", { x: this.x(at), y: HEIGHT - 4, "text-anchor": anchor }, clock(at));
    });
  }

  #lines(values, y) {
    return this.series.map((each, place) => {
      let path = "";
      let gap = true;
      this.points.forEach((point, number) => {
        const value = values[number][place];
        if (value === null) { gap = true; return; }
        path += `${gap ? "M" : "L"}${this.x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
        gap = false;
      });
      return svg("path", { class: `stroke c-${each.color}`, d: path, stroke: "currentColor" });
    });
  }

  #areas(values, y) {
    const low = this.points.map(() => 0);
    return this.series.map((each, place) => {
      const lower = [...low];
      values.forEach((row, number) => { low[number] += row[place] ?? 0; });
      const at = (number, height) => `${this.x(this.points[number].at).toFixed(1)} ${y(height).toFixed(1)}`;
      const up = low.map((height, number) => at(number, height));
      const down = lower.map((height, number) => at(number, height)).reverse();
      return svg("path", { class: `c-${each.color}`, fill: "currentColor", d: `M${up.join("L")}L${down.join("L")}Z` });
    });
  }

  #point(event) {
    const left = this.svg.getBoundingClientRect().left;
    const place = this.#nearest(event.clientX - left);
    if (place !== null) this.#read(place, event.clientX, event.clientY);
  }

  #nearest(x) {
    if (this.points.length < 2) return null;
    const away = this.points.map((point) => Math.abs(this.x(point.at) - x));
    return away.indexOf(Math.min(...away));
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || this.points.length < 2) return;
    event.preventDefault();
    const last = this.points.length - 1;
    this.at = Math.min(last, Math.max(0, (this.at ?? (step > 0 ? -1 : last + 1)) + step));
    const box = this.svg.getBoundingClientRect();
    this.#read(this.at, box.left + this.x(this.points[this.at].at), box.top + 20);
  }

  #read(place, x, y) {
    const point = this.points[place];
    const figures = this.series.map((each) => {
      const value = each.value(point);
      return `${each.name}  ${value === null ? "-" : this.format(value)}`;
    });
    showTip([clock(point.at), ...figures.reverse()].join("\n"), x, y);
    setAttribute(this.cursor, "x1", this.x(point.at));
    setAttribute(this.cursor, "x2", this.x(point.at));
    setAttribute(this.cursor, "visibility", "visible");
  }

  #leave() {
    hideTip();
    this.at = undefined;
    setAttribute(this.cursor, "visibility", "hidden");
  }
}

function niceTop(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= most * 1.02) ?? 10 * power;
}
