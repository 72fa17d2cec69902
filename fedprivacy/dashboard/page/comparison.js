// Up to eight runs side by side.

import { getJson, runPath } from "./api.js";
import { FigureCard } from "./charts.js";
import { Chooser } from "./chooser.js";
import { byId, chip, el } from "./dom.js";
import { allAt, at, go } from "./place.js";
import { foundRuns, statusMark } from "./runs.js";
import { NAME, NUMBER, TEXT, table } from "./table.js";
import { metricName, noiseText, number } from "./words.js";

const MOST = 8;
const FEWEST = 2;

const COLUMNS = [
  ["Run", NAME],
  ["Status", TEXT],
  ["Task", TEXT],
  ["Metric", TEXT],
  ["Value", NUMBER],
  ["Largest ε", NUMBER],
  ["Budget", NUMBER],
  ["δ", NUMBER],
  ["σ", NUMBER],
  ["Rounds", NUMBER],
  ["Clients", NUMBER],
  ["Strategy", TEXT],
];

/** The chooser in the header and the section that it fills. */
export class Comparison {
  #shown = null;
  #chooser;
  #cards;
  #metric = byId("compared-metric");
  #turn = 0;

  constructor() {
    this.#chooser = new Chooser(byId("compare-picker"), {
      name: "Compare runs",
      placeholder: "name, task or id",
      find: foundRuns,
      choose: (run) => this.#toggle(run.run_id),
      isChosen: (run) => allAt("compare").includes(run.run_id),
      multiple: true,
    });
    this.#chooser.label("Compare");
    this.#cards = [
      this.#card("tradeoff", "Metric against privacy loss", "What each run's ε has bought, round by round.", "wide"),
      this.#card("metric", "Metric by round", "The line under the title says on whose records it was measured."),
      this.#card("epsilon", "Privacy loss by round", "The largest ε of a client, after each round."),
    ];
    byId("comparison-figures").append(...this.#cards.map((card) => card.element));
    this.#metric.addEventListener("change", () => {
      go({ "compared-metric": this.#metric.value });
      this.#compare();
    });
  }

  /** Another run is shown above. */
  show(run) {
    this.#shown = run.run_id;
    this.#compare();
  }

  /** A run went on; it may be one of those compared. */
  update(run) {
    if (allAt("compare").includes(run.run_id)) {
      this.#fill();
      this.#cards.forEach((card) => card.later());
    }
  }

  #toggle(runId) {
    const chosen = allAt("compare");
    if (chosen.includes(runId)) {
      this.#choose(chosen.filter((id) => id !== runId));
    } else if (chosen.length < MOST) {
      this.#choose(chosen.length || runId === this.#shown ? [...chosen, runId] : [this.#shown, runId]);
    }
  }

  #choose(runIds) {
    go({ compare: runIds });
    this.#compare();
  }

  async #compare() {
    const chosen = allAt("compare");
    const enough = chosen.length >= FEWEST;
    this.#chooser.label(enough ? `Compare (${chosen.length})` : "Compare");
    this.#chooser.note(...note(chosen.length));
    byId("comparison").hidden = !enough;
    if (enough) {
      await this.#fill();
      this.#cards.forEach((card) => card.now());
    }
  }

  async #fill() {
    const turn = ++this.#turn;
    const answers = await Promise.allSettled(allAt("compare").map((runId) => getJson(runPath(runId))));
    if (turn !== this.#turn) {
      return;
    }
    const runs = answers.filter((answer) => answer.status === "fulfilled").map((answer) => answer.value);
    this.#offerMetrics(runs);
    byId("comparison-table").replaceChildren(table(COLUMNS, runs.map((run) => cells(run, this.#metric.value))));
    byId("compared-runs").replaceChildren(...runs.map((run) => chip(run.name, () => this.#toggle(run.run_id))));
  }

  /** Every metric that one of the runs measured; the tasks' own as an empty text. */
  #offerMetrics(runs) {
    const owns = new Set(runs.map((run) => run.metric));
    const [own] = owns;
    const others = new Set(runs.flatMap((run) => run.metrics).filter((metric) => owns.size > 1 || metric !== own));
    this.#metric.replaceChildren(
      el("option", { value: "" }, `${metricName(own ?? "")}, the ${owns.size > 1 ? "first run's" : "task's"} own`),
      ...[...others].map((metric) => el("option", { value: metric }, metricName(metric))),
    );
    this.#metric.value = others.has(at("compared-metric")) ? at("compared-metric") : "";
  }

  #card(figure, title, about, kind) {
    const path = `/compare/figures/${figure}`;
    const query = () => ({ runs: allAt("compare"), metric: this.#metric.value });
    const source = () => ({ path, query: query(), name: `comparison-${figure}` });
    return new FigureCard({ title, about, source, kind });
  }
}

function note(chosen) {
  if (chosen < FEWEST) {
    return [`Choose up to ${MOST} runs.`];
  }
  const full = chosen >= MOST ? " That is all that fit in a figure." : "";
  const link = el("a", { href: "#comparison", "data-jump": "comparison" }, "Show the comparison");
  return [`${chosen} of at most ${MOST} chosen.${full} `, link];
}

function cells(run, metric) {
  const { last, worst } = run;
  const shown = metric || run.metric;
  return [
    run.name,
    statusMark(run),
    run.task,
    metricName(shown),
    last?.metric_texts[shown] ?? "–",
    worst?.epsilon_text ?? "–",
    worst?.budget_text ?? "–",
    run.privacy ? run.delta_text : "–",
    noiseText(run),
    `${number(run.rounds)} of ${number(run.rounds_planned)}`,
    number(run.clients),
    run.strategy,
  ];
}
