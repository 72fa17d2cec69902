// The figures of the run that is shown.

import { runPath } from "./api.js";
import { FigureCard } from "./charts.js";
import { byId, el } from "./dom.js";
import { allAt, at, go } from "./place.js";
import { metricName } from "./words.js";

const OF_ANOTHER = "Any other that the run measured.";
const OF_THE_ANSWER = "A noisy answer of all clients together.";

/** All cards of a run: one for each figure that it has, and one for another metric. */
export class RunCharts {
  #run = null;
  #other = el("select", { "aria-label": "Which metric" });
  #otherCard = new FigureCard({
    title: "Another metric by round",
    about: OF_ANOTHER,
    source: this.#source("metric", () => ({ metric: this.#other.value })),
    controls: [this.#other],
  });
  #cards = new Map();

  constructor() {
    byId("charts").append(this.#otherCard.element);
    this.#other.addEventListener("change", () => {
      go({ metric: this.#other.value });
      this.#otherCard.now();
    });
  }

  /** Another run. */
  show(run) {
    this.#run = run;
    this.#cards.forEach((card) => (card.element.hidden = true));
    run.figures.forEach((figure) => {
      const card = this.#cards.get(figure.name) ?? this.#made(figure);
      card.element.hidden = false;
    });
    this.#cards.get("metric").tell(...(run.asks ? ["Answer", OF_THE_ANSWER] : wordsOf(run, "metric")));
    this.#otherCard.tell(
      run.asks ? "Another answer" : "Another metric by round",
      run.asks ? OF_THE_ANSWER : OF_ANOTHER,
    );
    this.#offerMetrics();
    this.#all("now");
  }

  /** The same run went on. */
  update(run) {
    const metrics = String(this.#run.metrics);
    this.#run = run;
    if (String(run.metrics) !== metrics) {
      this.#offerMetrics();
    }
    this.#all("later");
  }

  /** Other clients were chosen to be drawn. */
  drawClients() {
    if (this.#run.privacy) {
      this.#cards.get("epsilon").now();
    }
  }

  #all(when) {
    byId("no-round").hidden = this.#run.rounds > 0;
    byId("charts").hidden = this.#run.rounds === 0;
    [...this.#cards.values(), this.#otherCard]
      .filter((card) => !card.element.hidden)
      .forEach((card) => card[when]());
  }

  #offerMetrics() {
    const others = this.#run.metrics.filter((metric) => metric !== this.#run.metric);
    this.#other.replaceChildren(...others.map((metric) => el("option", { value: metric }, metricName(metric))));
    this.#other.value = others.includes(at("metric")) ? at("metric") : (others[0] ?? "");
    this.#otherCard.element.hidden = others.length === 0;
  }

  #source(figure, query = () => ({})) {
    return () => ({
      path: runPath(this.#run.run_id, `/figures/${figure}`),
      query: query(),
      name: `${this.#run.name}-${figure}`,
    });
  }

  #made({ name, title, about }) {
    const { query, ...options } = this.#special()[name] ?? {};
    const card = new FigureCard({ title, about, source: this.#source(name, query), ...options });
    this.#cards.set(name, card);
    this.#otherCard.element[options.kind === "wide" ? "after" : "before"](card.element);  // two narrow ones share a row
    return card;
  }

  /** Options of figures that show a part of the run that the reader chooses, or that need another size. */
  #special() {
    return {
      metric: { query: () => ({ metric: this.#run.metric }) },
      epsilon: { query: () => ({ clients: allAt("clients") }), beside: 230 },
      cost: { kind: "wide" },
    };
  }
}

function wordsOf(run, name) {
  const { title, about } = run.figures.find((figure) => figure.name === name);
  return [title, about];
}
