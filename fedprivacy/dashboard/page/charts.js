// Cards with a figure each: drawn by the server's numbers, refreshed while a run is live, given away as PNG and CSV.

import { ApiError, address, getJson, getText } from "./api.js";
import { copyFrom, csvRows, tsv } from "./copy.js";
import { debounced, el, setText } from "./dom.js";
import { drawn } from "./drawing.js";
import { keptFresh } from "./freshness.js";
import { onTheme, shownTheme } from "./theme.js";

const RESIZED = 200;
const PNG_SCALE = 2;

// The server is told the width of a plot between its axes: what labels take beside it is learnt from the last drawing.
// The first one may be a little off: to draw it twice would take twice as long.
const BESIDE = 110;
const NARROWEST = 200;
const PHONE = 430; // a figure that is narrower has its labels below the plot
const LEAST = 0.85;
const MOST = 1.08;

let made = 0;

/** A figure with its title, its explanation and ways to take its numbers along. */
export class FigureCard {
  #source;
  #parts;
  #view = null;
  #turn = 0;
  #width = 0;
  #beside;
  #fresh;

  /**
   * @param title of the card.
   * @param about one line that says how to read the figure.
   * @param source () to {path, query, name} of what to draw, or to words that say why there is nothing to draw.
   * @param kind a CSS class, for the size.
   * @param controls nodes beside the buttons.
   * @param beside px that labels take beside the plot, about.
   */
  constructor({ title, about, source, kind = "", controls = [], beside = BESIDE }) {
    this.#source = source;
    this.#beside = beside;
    this.#parts = build({ title, about, kind, controls });
    this.#fresh = keptFresh(this.element, () => this.#draw());
    this.#listen();
  }

  /** The card. */
  get element() {
    return this.#parts.card;
  }

  /** What the card is called from now on, and how its figure is read. */
  tell(title, about) {
    setText(this.#parts.title, title);
    setText(this.#parts.about, about);
  }

  /** Something happened in the run: draws it when the card is in sight. */
  later() {
    this.#fresh.later();
  }

  /** The reader asked for something else: draws it at once. */
  now() {
    this.#linkNumbers();
    this.#fresh.now();
  }

  #listen() {
    const { png, copy, drawing } = this.#parts;
    png.addEventListener("click", () => this.#savePng());
    copy.addEventListener("click", () => copyFrom(copy, async () => tsv(csvRows(await this.#numbers()))));
    onTheme(() => this.#fresh.now());
    const resized = debounced(() => drawing.clientWidth !== this.#width && this.#fresh.now(), RESIZED);
    new ResizeObserver(() => this.#width && resized()).observe(drawing);
  }

  async #draw() {
    const turn = ++this.#turn;
    const source = this.#source();
    if (typeof source === "string") {
      this.#say(source);
      return;
    }
    try {
      const [figure, spec] = await this.#fitting(source);
      await this.#untouched();
      if (turn === this.#turn) {
        this.#show(figure, spec);
      } else {
        figure.view.finalize();
      }
    } catch (error) {
      if (turn === this.#turn && error instanceof ApiError) {
        this.#say(error.message); // if the server does not answer, the banner says so, and the last drawing stays
      }
    }
  }

  async #fitting(source) {
    const width = (this.#width = this.#parts.drawing.clientWidth);
    if (width < PHONE) {
      this.#beside = Math.min(this.#beside, BESIDE);
    }
    const [figure, spec] = await this.#drawnAs(source);
    const fits = figure.width >= LEAST * width && figure.width <= MOST * width;
    const plot = width - this.#beside;
    this.#beside = figure.width - spec.width;
    if (fits || Math.max(plot, width - this.#beside) <= NARROWEST) {
      return [figure, spec];
    }
    figure.view.finalize();
    return this.#drawnAs(source);
  }

  async #drawnAs({ path, query }) {
    const width = Math.max(NARROWEST, this.#width - this.#beside);
    const below = this.#width < PHONE ? "true" : "";
    const spec = await getJson(path, { ...query, width, below, theme: shownTheme() });
    return [await drawn(spec), spec];
  }

  #show({ element, view }, spec) {
    const { drawing, card, png } = this.#parts;
    this.#view?.finalize();
    this.#view = view;
    png.disabled = false;
    drawing.replaceChildren(element);
    drawing.dataset.drawn = shownTheme();
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", description(spec, this.#parts.title.textContent));
    drawing.style.minHeight = `${element.offsetHeight}px`;
    card.classList.remove("without-figure");
  }

  // A run that goes on takes no tooltip away from under the reader's pointer.
  async #untouched() {
    while (this.#parts.drawing.matches(":hover") && document.querySelector("#vg-tooltip-element.visible")) {
      await new Promise((resolve) => setTimeout(resolve, RESIZED));
    }
  }

  #say(words) {
    const { drawing, card } = this.#parts;
    this.#view?.finalize();
    this.#view = null;
    drawing.removeAttribute("role");
    drawing.removeAttribute("aria-label");
    drawing.style.minHeight = "";
    drawing.replaceChildren(el("p", { class: "muted" }, words));
    card.classList.add("without-figure");
  }

  #linkNumbers() {
    const source = this.#source();
    if (source.path) {
      this.#parts.csv.href = address(`${source.path}.csv`, source.query);
    }
  }

  #numbers() {
    const { path, query } = this.#source();
    return getText(`${path}.csv`, query);
  }

  async #savePng() {
    const url = await this.#view.toImageURL("png", PNG_SCALE);
    el("a", { href: url, download: `${this.#source().name}.png` }).click();
  }
}

function build({ title, about, kind, controls }) {
  const id = `figure-${++made}`;
  const heading = el("h3", { id }, title);
  const png = el("button", { type: "button", "aria-describedby": id, disabled: true }, "PNG");
  const csv = el("a", { class: "button", download: true, "aria-describedby": id }, "CSV");
  const copy = el("button", { type: "button", "aria-describedby": id }, "Copy numbers");
  const actions = el("div", { class: "actions" }, ...controls, png, csv, copy);
  const words = el("p", { class: "about muted" }, about);
  const drawing = el("div", { class: "drawing" }, el("p", { class: "muted" }, "Drawing…"));
  const card = el(
    "article",
    { class: `card figure-card ${kind}`, "aria-labelledby": id },
    el("header", {}, el("div", {}, heading, words), actions),
    drawing,
  );
  return { card, title: heading, about: words, png, csv, copy, drawing };
}

function description(spec, title) {
  const texts = [spec.title?.text, spec.title?.subtitle, spec.description].flat().filter(Boolean);
  return [title, ...texts, "The CSV file has every number."].map((text) => text.replace(/[.,]?$/, ".")).join(" ");
}
