// Sets the theme before the first paint, so that a dark page does not flash. Asks early for what every page needs,
// for the page itself, and for Plotly where it is needed.
(function () {
  let kept = null;
  try { kept = localStorage.getItem("vramscope-theme"); } catch (e) { /* storage switched off */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  // These pages draw without Plotly, which is 60 % of what a first visit loads; the others need it at once.
  const needsPlotly = () => !["/", "/overview", "/phases", "/allocations", "/peak"].includes(location.pathname);
  // Dash asks for these once all scripts have run, 0.1 s later.
  const ask = (name, options) => [name, fetch(name, { credentials: "same-origin", ...options }).catch(() => null)];
  const asked = Object.fromEntries(["_dash-layout", "_dash-dependencies"].map((name) => ask(name)));
  const page = JSON.parse(document.documentElement.dataset.asks);
  for (const input of page.inputs) if (input.id === "location") input.value = location[input.property];
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  [, asked.page] = ask("_dash-update-component", { method: "POST", headers, body: JSON.stringify(page) });
  window.vramscope = Object.assign(window.vramscope || {}, { needsPlotly, asked, page });
  for (const path of needsPlotly() ? ["plotly/package_data/plotly.min.js", "dash/dcc/async-graph.js"] : []) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "preload", as: "script", href: `_dash-component-suites/${path}` }));
  }
  document.documentElement.dataset.theme = kept === "dark" || kept === "light" ? kept : dark ? "dark" : "light";
})();
