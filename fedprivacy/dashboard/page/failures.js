// Updates that were asked for and not used: why, and what happened to their charges.

import { getJson, runPath } from "./api.js";
import { byId, el } from "./dom.js";
import { keptFresh } from "./freshness.js";
import { NAME, NUMBER, TEXT, scrolling, table } from "./table.js";
import { count, number } from "./words.js";

const COLUMNS = [
  ["Reason", NAME],
  ["What it means", "meaning"],
  ["Charge", TEXT],
  ["Times", NUMBER],
  ["Last round", NUMBER],
  ["Clients", "names"],
];

const CHARGES =
  "A charge is written before a client trains. It stands unless the client refused before it read a record: " +
  "who did not answer may have trained all the same.";

/** The section of failures. */
export class Failures {
  #run = null;
  #fresh = keptFresh(byId("failures"), () => this.#load());
  #seen = "";

  /** Another run. */
  show(run) {
    this.#run = run;
    this.#load();
  }

  /** The same run went on. */
  update(run) {
    this.#run = run;
    this.#fresh.later();
  }

  async #load() {
    const runId = this.#run.run_id;
    const answer = await getJson(runPath(runId, "/failures")).catch(() => null);
    if (answer && runId === this.#run.run_id) {
      this.#fill(answer.failures);
    }
  }

  #fill(failures) {
    const seen = JSON.stringify(failures);
    if (seen !== this.#seen) {
      this.#seen = seen;
      byId("failure-list").replaceChildren(...(failures.length ? listed(failures) : [none()]));
    }
  }
}

function none() {
  return el("p", {}, "None: every update that was asked for was used.");
}

function listed(failures) {
  const scroll = scrolling("Table of failures", table(COLUMNS, failures.map(cells)));
  return [el("p", { class: "muted" }, CHARGES), el("div", { class: "card table-card" }, scroll)];
}

function cells({ code, words, detail, charge, times, clients, client_ids, last_round }) {
  const meaning = detail ? el("span", {}, `${words}: `, el("code", {}, detail)) : words;
  const more = clients - client_ids.length;
  const names = `${count(clients, "client")}: ${client_ids.join(", ")}${more > 0 ? ` and ${number(more)} more` : ""}`;
  return [el("code", {}, code), meaning, charge, number(times), number(last_round), names];
}
