// A table that is kept rather than made anew: rows have keys, cells change only where they differ, headers sort, and
// the arrow keys walk through rows.

import { el, setAttribute, setText } from "./dom.js";

/** columns: [{ key, title, hint?, numeric?, sort?: row => value, cell: () => ({ node, update(row) }) | undefined,
 *    text?: row => string, tone?: row => string, header?: boolean, className?: string }] */
export class Table {
  constructor(holder, { columns, key, caption, onOpen, sortBy, descending = false, rowTone, empty }) {
    Object.assign(this, { columns, key, onOpen, rowTone, sortBy, descending });
    this.rows = [];
    this.byKey = new Map();
    this.body = el("tbody");
    this.heads = columns.map((column) => this.#head(column));
    this.nothing = el("p", { class: "empty", hidden: true }, empty ?? "Nothing yet.");
    const head = el("thead", {}, el("tr", {}, this.heads));
    this.table = el("table", { "aria-label": caption }, head, this.body);
    holder.append(this.table, this.nothing);
    this.body.addEventListener("keydown", (event) => this.#onKey(event));
    this.#mark();
  }

  #head(column) {
    const head = el("th", { scope: "col", class: [column.numeric && "num", column.className].filter(Boolean).join(" ") });
    if (column.hint) head.title = column.hint;
    if (!column.sort) head.append(column.title);
    else head.append(el("button", { type: "button", onclick: () => this.#sort(column) }, column.title));
    return head;
  }

  #sort(column) {
    this.descending = this.sortBy === column.key ? !this.descending : Boolean(column.numeric);
    this.sortBy = column.key;
    this.#mark();
    this.update(this.rows);
  }

  #mark() {
    this.columns.forEach((column, place) => {
      const order = this.descending ? "descending" : "ascending";
      setAttribute(this.heads[place], "aria-sort", column.key === this.sortBy ? order : null);
    });
  }

  #sorted(rows) {
    const column = this.columns.find((each) => each.key === this.sortBy);
    if (!column?.sort) return rows;
    const sign = this.descending ? -1 : 1;
    return rows
      .map((row, place) => ({ row, place, value: column.sort(row) }))
      .sort((one, other) => {
        const unknown = (one.value === null) - (other.value === null);
        if (unknown) return unknown;
        if (typeof one.value === "string") return sign * one.value.localeCompare(other.value, "en", { numeric: true }) || one.place - other.place;
        return sign * (one.value - other.value) || one.place - other.place;
      })
      .map(({ row }) => row);
  }

  update(rows) {
    this.rows = rows;
    const sorted = this.#sorted(rows);
    const wanted = new Set(rows.map(this.key));
    for (const [name, kept] of this.byKey) {
      if (wanted.has(name)) continue;
      kept.node.remove();
      this.byKey.delete(name);
    }
    sorted.forEach((row, place) => {
      const name = this.key(row);
      const kept = this.byKey.get(name) ?? this.#make(name);
      kept.row = row;
      kept.cells.forEach((cell) => cell.update(row));
      setAttribute(kept.node, "data-tone", this.rowTone?.(row));
      if (this.body.children[place] !== kept.node) this.body.insertBefore(kept.node, this.body.children[place] ?? null);
    });
    this.nothing.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
  }

  #make(name) {
    const kept = { row: null };
    kept.cells = this.columns.map((column) => makeCell(column));
    kept.node = el("tr", { "data-key": name }, kept.cells.map((cell) => cell.holder));
    if (this.onOpen) {
      kept.node.tabIndex = 0;
      kept.node.addEventListener("click", () => this.onOpen(kept.row));
    }
    this.byKey.set(name, kept);
    return kept;
  }

  #onKey(event) {
    const row = event.target.closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = {
      ArrowDown: row.nextElementSibling, j: row.nextElementSibling,
      ArrowUp: row.previousElementSibling, k: row.previousElementSibling,
      Home: this.body.firstElementChild, End: this.body.lastElementChild,
    };
    if (event.key === "Enter" && this.onOpen) this.onOpen(this.byKey.get(row.dataset.key).row);
    else if (steps[event.key]) steps[event.key].focus();
    else return;
    event.preventDefault();
  }
}

function makeCell(column) {
  const holder = el(column.header ? "th" : "td", {
    class: [column.numeric && "num", column.className].filter(Boolean).join(" ") || null,
    scope: column.header ? "row" : null,
  });
  if (column.cell) {
    const own = column.cell();
    holder.append(own.node);
    return { holder, update: (row) => own.update(row) };
  }
  const text = el("span");
  holder.append(text);
  return {
    holder,
    update(row) {
      setText(text, column.text(row));
      setAttribute(text, "class", column.tone?.(row));
      if (column.title_of) setAttribute(holder, "title", column.title_of(row));
    },
  };
}
