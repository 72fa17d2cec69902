// What attacks on the run found, if somebody audited it.

import { getJson, runPath } from "./api.js";
import { FigureCard } from "./charts.js";
import { byId, el, icon } from "./dom.js";
import { keptFresh } from "./freshness.js";
import { NAME, NUMBER, TEXT, table } from "./table.js";
import { dateText, short } from "./words.js";

const COLUMNS = [
  ["Attack", NAME],
  ["Client", TEXT],
  ["When", TEXT],
  ["ε proved", NUMBER],
  ["Confidence", NUMBER],
  ["ε promised", NUMBER],
  ["Verdict", TEXT],
];

const NONE =
  "No audit was made of this run: every ε here is what the accountant promises, " +
  "and nobody has tried to break the promise.";

/** The card of audits, the last of the figures. */
export class Audits {
  #run = null;
  #audits = [];
  #list = el("div", { class: "scroll" });
  #card = new FigureCard({
    title: "What an audit found",
    about: "An attack's lower bound on ε beside the upper bound that the accountant promises.",
    source: () => this.#source(),
    kind: "wide short",
  });
  #fresh = keptFresh(this.#card.element, () => this.#load());

  constructor() {
    this.#card.element.append(this.#list);
    byId("charts").append(this.#card.element);
  }

  /** Another run. */
  show(run) {
    this.#run = run;
    this.#card.element.hidden = !run.privacy;
    this.#fresh.now();
  }

  /** The same run went on. */
  update(run) {
    this.#run = run;
    this.#fresh.later();
  }

  #source() {
    const { run_id, name } = this.#run;
    const path = runPath(run_id, "/figures/audit");
    return this.#audits.length ? { path, query: {}, name: `${name}-audit` } : NONE;
  }

  async #load() {
    const runId = this.#run.run_id;
    const answer = await getJson(runPath(runId, "/audits")).catch(() => null);
    if (answer && runId === this.#run.run_id) {
      this.#audits = answer.audits;
      this.#list.replaceChildren(...(this.#audits.length ? [table(COLUMNS, this.#audits.map(cells))] : []));
      this.#card.now();
    }
  }
}

function cells({ at, attack, client_id, confidence, lower_text, upper_text, verdict }) {
  const client = client_id || "the run as a whole";
  const sure = `${short(100 * confidence)} %`;
  return [attack, client, dateText(at), lower_text, sure, upper_text, verdictMark(verdict)];
}

function verdictMark(verdict) {
  const violated = verdict === "violated";
  const words = violated ? "violated: the attack proved more than the accountant promises" : verdict;
  return el(
    "span",
    { class: `mark mark-${violated ? "failed" : "finished"}` },
    icon(violated ? "failed" : "finished"),
    words,
  );
}
