// A button that opens a search field over a list: for runs and for clients, of which there can be very many.

import { debounced, el, icon } from "./dom.js";
import { number } from "./words.js";

const TYPING = 200;
let made = 0;

/** A searchable list; see the combobox pattern of ARIA. */
export class Chooser {
  #find;
  #choose;
  #isChosen;
  #multiple;
  #options = [];
  #active = -1;
  #asking = null;
  #parts;

  /**
   * @param root an empty element that becomes the chooser.
   * @param name what is chosen, for those who listen.
   * @param placeholder of the search field.
   * @param find (search, signal) to {total, options: [{value, content: nodes}], problems: texts}.
   * @param choose called with the value that was chosen.
   * @param isChosen whether a value is chosen now.
   * @param multiple whether the list stays open and options are taken back by choosing them again.
   */
  constructor(root, { name, placeholder, find, choose, isChosen, multiple = false }) {
    this.#find = find;
    this.#choose = choose;
    this.#isChosen = isChosen;
    this.#multiple = multiple;
    this.#parts = build(root, { name, placeholder, multiple });
    this.#listen(root);
  }

  /** What the button shows. */
  label(...content) {
    this.#parts.label.replaceChildren(...content);
  }

  /** What is said below the list. */
  note(...content) {
    this.#parts.note.replaceChildren(...content);
  }

  #listen(root) {
    const { button, input, list, panel } = this.#parts;
    button.addEventListener("click", () => (panel.hidden ? this.#open() : this.#close()));
    input.addEventListener(
      "input",
      debounced(() => this.#load(), TYPING),
    );
    input.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
    list.addEventListener("click", (event) => this.#click(event.target.closest("li")));
    root.addEventListener("focusout", ({ relatedTarget }) => {
      if (!root.contains(relatedTarget)) {
        this.#hide();
      }
    });
  }

  #open() {
    const { button, input, panel } = this.#parts;
    panel.hidden = false;
    button.setAttribute("aria-expanded", "true");
    input.value = "";
    input.focus();
    this.#load();
  }

  #hide() {
    this.#parts.panel.hidden = true;
    this.#parts.button.setAttribute("aria-expanded", "false");
  }

  #close() {
    this.#hide();
    this.#parts.button.focus();
  }

  async #load() {
    this.#asking?.abort();
    const asking = (this.#asking = new AbortController());
    const search = this.#parts.input.value.trim();
    const found = await this.#find(search, asking.signal).catch(() => ({ total: 0, options: [] }));
    if (!asking.signal.aborted) {
      this.#show(found);
    }
  }

  #show({ total, options, problems = [] }) {
    this.#options = options;
    const { list, more } = this.#parts;
    list.replaceChildren(...options.map(({ content }, place) => item(content, `${list.id}-${place}`)));
    more.textContent = [moreText(total, options.length), ...problems].filter(Boolean).join(" ");
    this.#markChosen();
    this.#activate(options.findIndex(({ value }) => this.#isChosen(value)));
  }

  #markChosen() {
    this.#options.forEach(({ value }, place) => {
      this.#parts.list.children[place].setAttribute("aria-selected", String(this.#isChosen(value)));
    });
  }

  #activate(place) {
    const { input, list } = this.#parts;
    list.children[this.#active]?.classList.remove("active");
    this.#active = place;
    const active = list.children[place];
    active?.classList.add("active");
    active?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", active?.id ?? "");
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (event.key in steps) {
      const last = this.#options.length - 1;
      this.#activate(Math.max(0, Math.min(last, this.#active + steps[event.key])));
    } else if (event.key === "Enter") {
      this.#take(this.#active);
    } else if (event.key === "Escape") {
      this.#close();
    } else {
      return;
    }
    event.preventDefault();
  }

  #click(target) {
    if (target) {
      this.#activate([...this.#parts.list.children].indexOf(target));
      this.#take(this.#active);
    }
  }

  #take(place) {
    if (!this.#options[place]) {
      return;
    }
    this.#choose(this.#options[place].value);
    if (this.#multiple) {
      this.#markChosen();
    } else {
      this.#close();
    }
  }
}

function build(root, { name, placeholder, multiple }) {
  const id = `chooser-${++made}`;
  const label = el("span", { class: "chooser-label" });
  const spoken = el("span", { class: "hidden-visually" }, `${name}: `);
  const button = el(
    "button",
    { type: "button", "aria-haspopup": "listbox", "aria-expanded": "false" },
    spoken,
    label,
    icon("open"),
  );
  const list = el("ul", { id, role: "listbox", "aria-label": name, "aria-multiselectable": multiple ? "true" : null });
  const input = el("input", {
    type: "search",
    role: "combobox",
    "aria-label": `Search: ${name}`,
    "aria-controls": id,
    "aria-expanded": "true",
    "aria-autocomplete": "list",
    autocomplete: "off",
    spellcheck: "false",
    placeholder,
  });
  const more = el("p", { class: "muted", "aria-live": "polite" });
  const note = el("p", { class: "chooser-note muted" });
  const panel = el("div", { class: "panel", hidden: true }, input, list, more, note);
  root.append(button, panel);
  return { button, label, panel, input, list, more, note };
}

function item(content, id) {
  return el("li", { id, role: "option" }, ...content);
}

function moreText(total, shown) {
  if (total === 0) {
    return "Nothing of that name.";
  }
  return total > shown ? `${number(total - shown)} more: type to narrow them down.` : "";
}
