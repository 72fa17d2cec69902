// A table of what is already here.

import { el } from "./dom.js";

/** One kind of cell: texts, numbers (right-aligned), or the name of the row. */
export const TEXT = "";
export const NUMBER = "n";
export const NAME = "name";

/**
 * A table.
 *
 * @param columns a [words, kind] for each.
 * @param rows of each, what its cells contain: a text or a node.
 */
export function table(columns, rows, attributes = {}) {
  const heads = columns.map(([words, kind]) => el("th", { scope: "col", class: kind }, words));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((content, place) => cell(columns[place][1], content))));
  return el("table", attributes, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...body));
}

/** A box in which a wide table scrolls, also by the keyboard. */
export function scrolling(name, content) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, content);
}

function cell(kind, content) {
  return kind === NAME ? el("th", { scope: "row" }, content) : el("td", { class: kind }, content);
}
