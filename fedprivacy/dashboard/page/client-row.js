// One client in the table: its numbers, and what opens below them.

import { getJson, runPath } from "./api.js";
import { PAGE_COLUMNS } from "./columns.js";
import { el, icon, setText, svg } from "./dom.js";
import { NUMBER, TEXT, table } from "./table.js";
import { NBSP, count, number, short, slug } from "./words.js";

const CHARGES = 20;

const NONE = "–";

// What a cell shows of a client, by the look that a column has in columns.js, which the server makes.
const TEXTS = {
  state: (client) => client.state,
  text: (client, name) => client[`${name}_text`],
  share: shareText,
  left: (client, name) => (client.budget === null ? "no limit" : figure(client[name], number)),
  count: (client, name) => figure(client[name], number),
  short: (client, name) => short(client[name]),
};
const FILLS = { state: fillState, share: fillShare };
const KINDS = { state: "state", share: "share" };

/** Every column: its words, the key to sort by, how a cell is filled, and what is copied. */
export const COLUMNS = PAGE_COLUMNS.map(({ name, heading, look }) => ({
  words: heading,
  sort: name,
  kind: KINDS[look] ?? NUMBER,
  fill: FILLS[look],
  text: (client) => TEXTS[look](client, name),
}));

const CHARGE_COLUMNS = [
  ["Round", NUMBER],
  ["Attempt", NUMBER],
  ["Local steps", NUMBER],
  ["q", NUMBER],
  ["σ", NUMBER],
  ["Relation", TEXT],
  ["State", TEXT],
  ["Journal entry", NUMBER],
];

/** A client's row; it stays the same while its numbers change. */
export class ClientRow {
  #runId;
  #client = null;
  #cells = COLUMNS.map(({ kind }) => el("td", { class: kind }));
  #box;
  #opener;
  #row;
  #details = null;

  /** @param pick called with the client's id and whether it was ticked. */
  constructor(runId, clientId, { pick }) {
    this.#runId = runId;
    this.#box = el("input", {
      type: "checkbox",
      "aria-label": `Draw ${clientId} in the figure`,
      onchange: () => pick(clientId, this.#box.checked),
    });
    this.#opener = el(
      "button",
      { type: "button", class: "opener", "aria-expanded": "false", onclick: () => this.#toggle() },
      icon("open"),
      clientId,
    );
    this.#row = el(
      "tr",
      {},
      el("td", { class: "pick" }, this.#box),
      el("th", { scope: "row" }, this.#opener),
      ...this.#cells,
    );
  }

  /** The table rows: one, or two when it is open. */
  get elements() {
    return this.#details ? [this.#row, this.#details] : [this.#row];
  }

  /** Shows the client as it is now. */
  show(client) {
    const charged = this.#details && client.rounds !== this.#client.rounds;
    this.#client = client;
    COLUMNS.forEach(({ fill, text }, place) =>
      fill ? fill(this.#cells[place], client) : setText(this.#cells[place], text(client)),
    );
    if (charged) {
      this.#fillDetails();
    }
  }

  /** Shows whether it is drawn, and whether it may be. */
  tick(chosen, full) {
    this.#box.checked = chosen;
    this.#box.disabled = full && !chosen;
    this.#row.classList.toggle("chosen", chosen);
  }

  #toggle() {
    if (this.#details) {
      this.#details.remove();
      this.#details = null;
    } else {
      this.#details = el(
        "tr",
        { class: "details" },
        el("td", { colspan: COLUMNS.length + 2 }, el("p", { class: "muted" }, "Reading the charges…")),
      );
      this.#row.after(this.#details);
      this.#fillDetails();
    }
    this.#opener.setAttribute("aria-expanded", String(this.#details !== null));
  }

  async #fillDetails(limit = CHARGES) {
    const details = this.#details;
    const query = { client_id: this.#client.client_id, limit };
    const answer = await getJson(runPath(this.#runId, "/charges"), query).catch(() => null);
    if (answer && details === this.#details) {
      details.firstChild.replaceChildren(this.#summary(), ...this.#charges(answer));
    }
  }

  #summary() {
    const { steps, steps_left, delta_text, noise_multiplier } = this.#client;
    const left = steps_left === null ? "no limit to what is left" : `${number(steps_left)} left`;
    const words = `${count(steps, "local step")} charged over all runs, ${left}.`;
    const delta = `ε is for δ${NBSP}=${NBSP}${delta_text}.`;
    if (noise_multiplier === null) {
      return el("p", { class: "summary" }, "No privacy: nothing was charged.");
    }
    return el("p", { class: "summary" }, `${words} ${delta}`);
  }

  #charges(answer) {
    if (this.#client.noise_multiplier === null) {
      return [];
    }
    return [table(CHARGE_COLUMNS, answer.charges.map(chargeCells), { class: "charges" }), ...this.#more(answer)];
  }

  #more({ total, charges }) {
    if (total <= charges.length) {
      return [];
    }
    const words = `Show older charges (${number(total - charges.length)} more)`;
    return [el("button", { type: "button", onclick: () => this.#fillDetails(charges.length + 5 * CHARGES) }, words)];
  }
}

function fillState(cell, { state, reason_words }) {
  const words = `${state}${reason_words ?? ""}`;
  if (cell.textContent === words) {
    return;
  }
  const mark = el("span", { class: `mark state-${slug(state)}` }, icon(slug(state)), state);
  cell.replaceChildren(mark, ...(reason_words ? [el("span", { class: "reason muted" }, reason_words)] : []));
}

function fillShare(cell, client) {
  if (client.share === null) {
    cell.replaceChildren();
    return;
  }
  const width = (100 * Math.min(client.share, 1)).toFixed(1);
  if (!cell.firstChild) {
    cell.append(shareBar());
  }
  const bar = cell.firstChild;
  bar.setAttribute("aria-label", shareText(client));
  bar.setAttribute("class", `share-bar state-${slug(client.state)}`);
  bar.lastChild.setAttribute("width", width);
}

function shareBar() {
  return svg(
    "svg",
    { viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img" },
    svg("rect", { class: "track", width: 100, height: 8 }),
    svg("rect", { class: "used", height: 8 }),
  );
}

function shareText({ share }) {
  return share === null ? "" : `${Math.ceil(100 * share)} % of the budget`;
}

function figure(value, words) {
  return value === null ? NONE : words(value);
}

function chargeCells(charge) {
  return [
    charge.round === 0 ? "own figure" : number(charge.round),
    number(charge.attempt),
    number(charge.steps),
    short(charge.sampling_rate),
    short(charge.noise_multiplier),
    charge.relation,
    charge.state,
    number(charge.entry),
  ];
}
