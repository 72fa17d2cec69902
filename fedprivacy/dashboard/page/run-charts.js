// The figures of the run that is shown.

import { runPath } from "./api.js";
import { FigureCard } from "./charts.js";
import { byId, el } from "./dom.js";
import { allAt, at, go } from "./place.js";
import { metricName } from "./words.js";

/** Cards that a baseline, which has no epsilon, does not have. */
const OF_EPSILON = ["epsilon", "tradeoff", "cost"];

/** Cards that a run which asked questions, in one round, does not have. */
const OF_ROUNDS = ["tradeoff", "cost"];

const OF_THE_MODEL = "Of the global model, on the server's public records.";
const OF_THE_ANSWER = "A noisy answer of all clients together.";

/** All cards of a run. */
export class RunCharts {
  #run = null;
  #other = el("select", { "aria-label": "Which metric" });
  #cards;

  constructor() {
    this.#cards = this.#made();
    byId("charts").append(...Object.values(this.#cards).map((card) => card.element));
    this.#other.addEventListener("change", () => {
      go({ metric: this.#other.value });
      this.#cards.other.now();
    });
  }

  /** Another run. */
  show(run) {
    this.#run = run;
    OF_EPSILON.forEach((name) => {
      this.#cards[name].element.hidden = !run.privacy || (run.asks && OF_ROUNDS.includes(name));
    });
    this.#cards.metric.tell(run.asks ? "Answer" : "Metric by round", run.asks ? OF_THE_ANSWER : OF_THE_MODEL);
    this.#cards.other.tell(
      run.asks ? "Another answer" : "Another metric by round",
      run.asks ? OF_THE_ANSWER : "Of the same model on the same public records.",
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
      this.#cards.epsilon.now();
    }
  }

  #all(when) {
    byId("no-round").hidden = this.#run.rounds > 0;
    byId("charts").hidden = this.#run.rounds === 0;
    Object.values(this.#cards)
      .filter((card) => !card.element.hidden)
      .forEach((card) => card[when]());
  }

  #offerMetrics() {
    const others = this.#run.metrics.filter((metric) => metric !== this.#run.metric);
    this.#other.replaceChildren(...others.map((metric) => el("option", { value: metric }, metricName(metric))));
    this.#other.value = others.includes(at("metric")) ? at("metric") : (others[0] ?? "");
    this.#cards.other.element.hidden = others.length === 0;
  }

  #source(figure, query = () => ({})) {
    return () => ({
      path: runPath(this.#run.run_id, `/figures/${figure}`),
      query: query(),
      name: `${this.#run.name}-${figure}`,
    });
  }

  #made() {
    return {
      metric: new FigureCard({
        title: "Metric by round",
        about: OF_THE_MODEL,
        source: this.#source("metric", () => ({ metric: this.#run.metric })),
      }),
      epsilon: new FigureCard({
        title: "Privacy loss by round",
        about: "Tick clients in the table below to draw them here.",
        source: this.#source("epsilon", () => ({ clients: allAt("clients") })),
        beside: 230,
      }),
      tradeoff: new FigureCard({
        title: "Metric against privacy loss",
        about: "What ε has bought so far: a point for each round.",
        source: this.#source("tradeoff"),
      }),
      other: new FigureCard({
        title: "Another metric by round",
        about: "Of the same model on the same public records.",
        source: this.#source("metric", () => ({ metric: this.#other.value })),
        controls: [this.#other],
      }),
      cost: new FigureCard({
        title: "What each round cost each client",
        about: "How much a client's ε grew; grey where it was not charged.",
        source: this.#source("cost"),
        kind: "wide",
      }),
    };
  }
}
