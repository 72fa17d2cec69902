// Where the reader is, kept in the part of the address after #: a link shows the same run, table page and choice.

const read = () => new URLSearchParams(location.hash.slice(1));

/** A value of the address, or a default. */
export function at(name, otherwise = "") {
  return read().get(name) ?? otherwise;
}

/** All values of a repeated one. */
export function allAt(name) {
  return read().getAll(name);
}

/** Changes values; an empty one is taken out. */
export function go(changes) {
  history.replaceState(null, "", changed(changes));
}

/** The same, and the browser's Back returns. */
export function goOn(changes) {
  history.pushState(null, "", changed(changes));
}

/** Calls `listener` when the reader went back, or followed a link within the page. */
export function onReturn(listener) {
  addEventListener("hashchange", listener);
}

function changed(changes) {
  const values = read();
  for (const [name, value] of Object.entries(changes)) {
    values.delete(name);
    [value]
      .flat()
      .filter((each) => each !== "")
      .forEach((each) => values.append(name, each));
  }
  return `#${values}`;
}
