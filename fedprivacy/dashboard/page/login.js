// A link like /login#token=... signs in by itself: what follows # is sent to no server and written to no log.

const form = document.getElementById("login");
const fragment = location.hash.slice(1);
const token = new URLSearchParams(fragment).get("token");

if (performance.getEntriesByType("navigation")[0]?.responseStatus === 401) {
  document.getElementById("wrong").textContent = "That is not the token. Copy the whole of it.";
}
if (token) {
  history.replaceState(null, "", "/login");
  form.elements.token.value = token;
  form.submit();
} else if (fragment) {
  form.action = `/login#${fragment}`; // browsers carry it on to the page, which then shows what the link named
}
