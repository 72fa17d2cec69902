// The table of clients: the server sorts, searches and pages, so that 100,000 are as quick as ten.

import { ApiError, getJson, runPath } from "./api.js";
import { COLUMNS, ClientRow } from "./client-row.js";
import { copyFrom, tsv } from "./copy.js";
import { byId, chip, debounced, el, icon, setText } from "./dom.js";
import { keptFresh } from "./freshness.js";
import { Pages } from "./pages.js";
import { allAt, at, go } from "./place.js";
import { STATES, smallPrint } from "./words.js";

const MOST_CHOSEN = 10;
const SIZE = 25;
const TYPING = 250;

/** The section below the figures. */
export class Clients {
  #run = null;
  #rows = new Map();
  #shown = [];
  #asking = null;
  #headers;
  #pages;
  #fresh;
  #onChosen;

  /** @param onChosen called when clients to draw were ticked. */
  constructor({ onChosen }) {
    this.#onChosen = onChosen;
    this.#headers = [
      header("Client", "client_id", this),
      ...COLUMNS.map(({ words, sort, kind }) => header(words, sort, this, kind)),
    ];
    byId("client-table").tHead.append(
      el("tr", {}, el("th", { class: "pick" }, el("span", { class: "hidden-visually" }, "Draw")), ...this.#headers),
    );
    this.#pages = new Pages(byId("client-pages"), SIZE, (turned) =>
      this.#go({ page: String(turned.page), size: String(turned.size) }),
    );
    this.#fresh = keptFresh(byId("client-table"), () => this.#load());
    this.#listen();
  }

  /** Another run. */
  show(run) {
    this.#run = run;
    this.#asking?.abort();
    this.#rows.clear();
    byId("client-table").tBodies[0].replaceChildren();
    byId("client-search").value = at("search");
    byId("client-state").value = at("state");
    setText(byId("clients-about"), about(run));
    this.#showChosen();
    this.#load();
  }

  /** The same run went on. */
  update(run) {
    this.#run = run;
    this.#fresh.later();
  }

  /** Sorts by a column, the other way round if it was sorted by it. */
  sortBy(key) {
    const descending =
      at("sort", "epsilon") === key ? at("order", "desc") !== "desc" : key !== "client_id" && key !== "state";
    this.#go({ sort: key, order: descending ? "desc" : "asc", page: "" });
  }

  #listen() {
    const search = byId("client-search");
    const state = byId("client-state");
    const copy = byId("copy-clients");
    state.append(el("option", { value: "" }, "all"), ...STATES.map((each) => el("option", {}, each)));
    search.addEventListener(
      "input",
      debounced(() => this.#go({ search: search.value.trim(), page: "" }), TYPING),
    );
    state.addEventListener("change", () => this.#go({ state: state.value, page: "" }));
    copy.addEventListener("click", () => copyFrom(copy, () => tsv(rowsOf(this.#shown))));
  }

  #go(changes) {
    go(changes);
    this.#load();
  }

  async #load() {
    this.#asking?.abort();
    const { signal } = (this.#asking = new AbortController());
    const asked = wanted();
    try {
      const answer = await getJson(runPath(this.#run.run_id, "/clients"), query(asked), { signal });
      if (!signal.aborted) {
        this.#fill(answer, asked);
      }
    } catch (error) {
      if (error instanceof ApiError) {
        this.#rows.clear();
        this.#place([sentence(error.message)]);
      }
    }
  }

  #fill({ total, clients }, { sort, order, page, size }) {
    if (total > 0 && clients.length === 0) {
      this.#go({ page: String(Math.ceil(total / size)) }); // there were more when the link was made
      return;
    }
    this.#shown = clients;
    const ids = new Set(clients.map((client) => client.client_id));
    [...this.#rows.keys()].filter((id) => !ids.has(id)).forEach((id) => this.#rows.delete(id));
    clients.forEach((client) => this.#row(client.client_id).show(client));
    this.#place(clients.flatMap((client) => this.#row(client.client_id).elements));
    this.#headers.forEach((head) => mark(head, sort, order));
    this.#pages.show({ page, size, total, shown: clients.length });
    this.#tick();
  }

  #row(clientId) {
    if (!this.#rows.has(clientId)) {
      const pick = (id, ticked) => this.#choose(id, ticked);
      this.#rows.set(clientId, new ClientRow(this.#run.run_id, clientId, { pick }));
    }
    return this.#rows.get(clientId);
  }

  // Rows that stand where they stood are left alone: to move one would take the focus and the selection from it.
  #place(rows) {
    const body = byId("client-table").tBodies[0];
    const placed = rows.length ? rows : [sentence("No client like that.")];
    if (placed.length !== body.rows.length || placed.some((row, place) => row !== body.rows[place])) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      body.replaceChildren(...placed);
      focused?.focus({ preventScroll: true });
    }
  }

  #choose(clientId, ticked) {
    const others = allAt("clients").filter((id) => id !== clientId);
    go({ clients: ticked ? [...others, clientId].slice(0, MOST_CHOSEN) : others });
    this.#showChosen();
    this.#tick();
    this.#onChosen();
  }

  #tick() {
    const chosen = new Set(allAt("clients"));
    this.#rows.forEach((row, id) => row.tick(chosen.has(id), chosen.size >= MOST_CHOSEN));
  }

  #showChosen() {
    const chosen = allAt("clients");
    const list = byId("chosen-clients");
    const words =
      chosen.length >= MOST_CHOSEN ? `Drawn in the figure (at most ${MOST_CHOSEN}):` : "Drawn in the figure:";
    list.hidden = chosen.length === 0;
    list.replaceChildren(
      el("span", { class: "muted" }, words),
      ...chosen.map((id) => chip(id, () => this.#choose(id, false))),
    );
  }
}

function about(run) {
  if (!run.privacy) {
    return "A baseline: no clipping, no noise, no charges. Averaged and failed count this run's rounds.";
  }
  const spent = `ε spent over all rounds and runs charged to a client's shard, ${smallPrint(run)}.`;
  return `${spent} Rounds left are a forecast at this run's noise; averaged and failed count this run's rounds.`;
}

function sentence(words) {
  return el("tr", {}, el("td", { colspan: COLUMNS.length + 2, class: "muted" }, words));
}

function wanted() {
  return {
    sort: at("sort", "epsilon"),
    order: at("order", "desc"),
    page: Math.max(1, Number.parseInt(at("page", "1"), 10) || 1),
    size: Number.parseInt(at("size"), 10) || SIZE,
  };
}

function query({ sort, order, page, size }) {
  return { sort, order, search: at("search"), state: at("state"), limit: size, offset: (page - 1) * size };
}

function header(words, sort, table, kind = "") {
  const content = sort
    ? el(
        "button",
        { type: "button", class: "sorter", onclick: () => table.sortBy(sort) },
        words,
        el("span", { class: "arrow" }),
      )
    : words;
  return el("th", { scope: "col", class: kind, "data-sort": sort ?? "" }, content);
}

function mark(head, sort, order) {
  const sorted = head.dataset.sort === sort;
  head.querySelector(".arrow")?.replaceChildren(...(sorted ? [icon(order === "desc" ? "falling" : "rising")] : []));
  if (sorted) {
    head.setAttribute("aria-sort", order === "desc" ? "descending" : "ascending");
  } else {
    head.removeAttribute("aria-sort");
  }
}

function rowsOf(clients) {
  const heads = ["Client", ...COLUMNS.map(({ words }) => words), "Reason"];
  const rows = clients.map((client) => [
    client.client_id,
    ...COLUMNS.map(({ text }) => text(client)),
    client.reason_words,
  ]);
  return [heads, ...rows];
}
