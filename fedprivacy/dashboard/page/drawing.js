// Vega draws. It comes with the server, is loaded with the first figure, and evaluates no code (`ast`).

const OPTIONS = {
  ast: true,
  actions: false,
  defaultStyle: false,
  renderer: "svg",
  tooltip: { disableDefaultStyle: true },
};

let loading = null;

/** Draws a specification into a new element of a width in px; it can take the place of an older one at once. */
export async function drawn(spec) {
  loading ??= import("/static/vega.js");
  await loading;
  const element = document.createElement("div");
  const { view } = await window.vegaEmbed(element, spec, OPTIONS);
  const svg = element.querySelector("svg");
  svg.setAttribute("aria-hidden", "true"); // the card around it says what it shows, in words
  return { element, view, width: svg.width.baseVal.value };
}
