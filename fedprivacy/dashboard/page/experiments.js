// All runs in one table, with the settings in which they differ and what they measured, and together in a figure.

import { getJson } from "./api.js";
import { FigureCard } from "./charts.js";
import { copyFrom, tsv } from "./copy.js";
import { byId, debounced, el } from "./dom.js";
import { at, go } from "./place.js";
import { statusMark } from "./runs.js";
import { NAME, NUMBER, TEXT, table } from "./table.js";
import { dateText, metricName, number } from "./words.js";

const MOST = 200;
const TYPED = 250;

const COLUMNS = [
  ["Run", NAME],
  ["Task", TEXT],
  ["Status", TEXT],
  ["Tags", TEXT],
  ["Started", TEXT],
  ["Rounds", NUMBER],
  ["Largest ε", NUMBER],
];

/** The section of all runs; it asks for them when it is opened. */
export class Experiments {
  #details = byId("experiments-details");
  #search = byId("experiment-search");
  #sort = byId("experiment-sort");
  #kind = choice("Figure");
  #axes = { x: choice("Setting"), y: choice("Metric"), colour: choice("Colour") };
  #open;
  #found = null;
  #turn = 0;
  #card = new FigureCard({
    title: "All runs in one figure",
    about: "",
    source: () => this.#source(),
    kind: "wide",
    controls: [this.#kind, ...Object.values(this.#axes)].map(({ label }) => label),
  });

  /** @param open shows the run with a run_id. */
  constructor(open) {
    this.#open = open;
    byId("experiment-figure").append(this.#card.element);
    this.#search.value = at("runs-search");
    this.#search.addEventListener(
      "input",
      debounced(() => this.#ask(), TYPED),
    );
    this.#sort.addEventListener("change", () => this.#ask());
    this.#kind.select.addEventListener("change", () => {
      go({ "runs-figure": this.#kind.select.value });
      this.#draw();
    });
    Object.values(this.#axes).forEach(({ select }) => select.addEventListener("change", () => this.#card.now()));
    this.#details.addEventListener("toggle", () => this.#details.open && this.#ask());
    copyFromTable(byId("copy-experiments"), () => this.#cells());
  }

  /** Another run is shown above. */
  show() {
    this.update();
  }

  /** A run went on. */
  update() {
    if (this.#details.open) {
      this.#ask();
    }
  }

  #query() {
    return { search: this.#search.value, sort: this.#sort.value || "started" };
  }

  async #ask() {
    const turn = ++this.#turn;
    go({ "runs-search": this.#search.value });
    const found = await getJson("/experiments", { ...this.#query(), limit: MOST }).catch(() => null);
    if (found && turn === this.#turn) {
      this.#found = found;
      this.#show();
    }
  }

  #show() {
    const { differing, figures, metrics, runs, total } = this.#found;
    offer(this.#kind.select, figures.map(({ name }) => name), at("runs-figure"));
    offer(this.#sort, ["started", "epsilon", ...metrics, ...differing], "started");
    offer(this.#axes.x.select, [...differing, ...metrics], "epsilon");
    offer(this.#axes.y.select, metrics, runs[0]?.metric);
    offer(this.#axes.colour.select, ["", ...differing, ...metrics], differing.includes("algorithm") ? "algorithm" : "");
    byId("experiment-table").replaceChildren(table(this.#columns(), this.#cells()));
    byId("experiments-about").textContent = total > runs.length ? `The first ${number(runs.length)} of ${number(total)}.` : "";
    this.#draw();
  }

  #draw() {
    const { title, about } = this.#found.figures.find((figure) => figure.name === this.#kind.select.value);
    this.#card.tell(title, about);
    this.#card.now();
  }

  #columns() {
    const { differing, main } = this.#found;
    return [
      ...COLUMNS,
      ...main.map((metric) => [metricName(metric), NUMBER]),
      ...differing.filter(hasNoColumn).map((key) => [key, NUMBER]),
    ];
  }

  #cells() {
    const { differing, main, runs } = this.#found;
    return runs.map((run) => [
      el("button", { type: "button", class: "link", onclick: () => this.#open(run.run_id), title: run.note }, run.run),
      run.task,
      statusMark(run),
      run.tags.join(", "),
      dateText(run.started),
      `${number(run.rounds)} of ${number(run.rounds_planned)}`,
      run.epsilon_text,
      ...main.map((metric) => run.metric_texts[metric] ?? "–"),
      ...differing.filter(hasNoColumn).map((key) => String(run.settings[key] ?? "–")),
    ]);
  }

  #source() {
    if (!this.#found?.metrics.length) {
      return "None of these runs has measured anything yet.";
    }
    if (!this.#axes.x.select.value) {
      return "These runs differ in no setting. Choose a metric to draw another against.";
    }
    const axes = Object.fromEntries(Object.entries(this.#axes).map(([name, { select }]) => [name, select.value]));
    const path = `/experiments/figures/${this.#kind.select.value}`;
    return { path, query: { ...this.#query(), ...axes }, name: "runs" };
  }
}

/** Tells whether a setting is not already among the columns of every list. */
function hasNoColumn(key) {
  return !["task", "rounds"].includes(key);
}

function choice(name) {
  const select = el("select", {});
  return { select, label: el("label", {}, `${name} `, select) };
}

/** Offers names in a list, and keeps what is chosen where it is still among them. */
function offer(select, names, otherwise) {
  const chosen = select.value;
  select.replaceChildren(
    ...names.map((name) => el("option", { value: name }, name ? metricName(name) : "default")),
  );
  select.value = names.includes(chosen) && chosen ? chosen : names.includes(otherwise) ? otherwise : (names[0] ?? "");
}

function copyFromTable(button, rows) {
  button.addEventListener("click", () =>
    copyFrom(button, () => tsv(rows().map((cells) => cells.map((cell) => cell.textContent ?? cell)))),
  );
}
