// Asking the API, and knowing whether it answers.

const ROOT = "/api/v1";
const PATIENCE = 30_000;
const RETRY = 3_000;

const listeners = new Set();
let answering = true;

/** The API answered, but not with what was asked for. */
export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** The address of something in the API; null, undefined and empty texts are left out, lists are repeated. */
export function address(path, query = {}) {
  const given = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const asked = given.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(asked).toString();
  return `${ROOT}${path}${search && `?${search}`}`;
}

/** The path of a run in the API. */
export function runPath(runId, rest = "") {
  return `/runs/${encodeURIComponent(runId)}${rest}`;
}

/** What the API answers, as an object. */
export async function getJson(path, query, { signal } = {}) {
  return (await get(path, query, signal)).json();
}

/** What the API answers, as text. */
export async function getText(path, query) {
  return (await get(path, query)).text();
}

/** Asks for next to nothing, to see whether the server answers and the reader may still look. */
export async function knock() {
  await getJson("/runs", { limit: 1 }).catch(() => {});
}

/** Calls `listener` with false when the server stops answering, and with true when it answers again. */
export function onReach(listener) {
  listeners.add(listener);
}

async function get(path, query, signal) {
  const patience = AbortSignal.timeout(PATIENCE);
  let response;
  try {
    response = await fetch(address(path, query), { signal: signal ? AbortSignal.any([signal, patience]) : patience });
  } catch (error) {
    if (!signal?.aborted) {
      reached(false);
    }
    throw error;
  }
  reached(true);
  if (response.ok) {
    return response;
  }
  if (response.status === 401) {
    location.assign(`/login${location.hash}`);
  }
  throw new ApiError(response.status, await detailOf(response));
}

async function detailOf(response) {
  const { detail } = await response.json().catch(() => ({}));
  return typeof detail === "string" ? detail : `The server answered ${response.status}.`;
}

function reached(now) {
  if (now === answering) {
    return;
  }
  answering = now;
  listeners.forEach((listener) => listener(now));
  if (!now) {
    retry();
  }
}

function retry() {
  setTimeout(async () => {
    await knock();
    if (!answering) {
      retry();
    }
  }, RETRY);
}
