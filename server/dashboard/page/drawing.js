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
  return { element, view, width: element.querySelector("svg").width.baseVal.value };
}
