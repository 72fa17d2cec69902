// Copying numbers, so that a spreadsheet takes them as cells and never as formulas.

const SHOWN = 1_600;

/** Copies what `text` resolves to, and says so on the button. */
export async function copyFrom(button, text) {
  const label = button.textContent;
  const done = await copy(await text()).then(
    () => "Copied",
    () => "Not copied",
  );
  button.textContent = done;
  setTimeout(() => {
    button.textContent = label;
  }, SHOWN);
}

/** Rows of cells as tab-separated lines. */
export function tsv(rows) {
  return rows.map((row) => row.map(cell).join("\t")).join("\n");
}

/** The rows of a CSV text. */
export function csvRows(text) {
  const rows = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    rows.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
    if (end !== ",") {
      rows.push([]);
    }
  }
  return rows.filter((row) => row.length > 1 || row[0]);
}

function cell(value) {
  const text = String(value ?? "")
    .replaceAll(/\s+/g, " ")
    .trim();
  const formula = /^[=+\-@]/.test(text) && Number.isNaN(Number(text));
  return formula ? `'${text}` : text;
}

async function copy(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text);
  }
  return copyWithoutClipboard(text);
}

// Browsers hide the clipboard from pages over plain http from another machine.
function copyWithoutClipboard(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden-visually";
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (!copied) {
    throw new Error("the browser did not copy");
  }
}
