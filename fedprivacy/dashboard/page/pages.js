// First, previous, next, last: for a table of which the server has more than the page shows.

import { el, setText } from "./dom.js";
import { number } from "./words.js";

const SIZES = [10, 25, 50, 100];

/** The controls below a table; `turn` is called with {page, size}, counted from 1. */
export class Pages {
  #parts;
  #page = 1;
  #size;
  #last = 1;

  constructor(root, size, turn) {
    this.#size = size;
    const to = (text, page) =>
      el("button", { type: "button", disabled: true, onclick: () => turn({ page: page(), size: this.#size }) }, text);
    const sizes = el(
      "select",
      { onchange: () => turn({ page: 1, size: Number(sizes.value) }) },
      ...SIZES.map((each) => el("option", {}, String(each))),
    );
    this.#parts = {
      first: to("First", () => 1),
      previous: to("Previous", () => this.#page - 1),
      range: el("span", { class: "range", role: "status" }),
      next: to("Next", () => this.#page + 1),
      last: to("Last", () => this.#last),
      sizes,
    };
    const { first, previous, range, next, last } = this.#parts;
    root.append(first, previous, range, next, last, el("label", { class: "page-size" }, "Rows ", sizes));
  }

  /** Says where the reader is. */
  show({ page, size, total, shown }) {
    this.#page = page;
    this.#size = size;
    this.#last = Math.max(1, Math.ceil(total / size));
    const { first, previous, range, next, last, sizes } = this.#parts;
    const from = (page - 1) * size;
    setText(range, total === 0 ? "none" : `${number(from + 1)}–${number(from + shown)} of ${number(total)}`);
    first.disabled = previous.disabled = page <= 1;
    next.disabled = last.disabled = page >= this.#last;
    sizes.value = String(size);
  }
}
