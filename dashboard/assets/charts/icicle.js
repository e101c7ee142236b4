// The icicle by pointer and keyboard: one box is the current one, arrows walk, Enter makes it the root, Escape leads back.
(function () {
  let picks = 0;
  const plotOf = (figure) => figure.querySelector(".js-plotly-plot");
  const figureOf = (target) => target && target.closest && target.closest("figure.icicle[tabindex]");

  // The boxes as they are drawn, with their places in Plotly's partition.
  function boxes(gd) {
    return [...gd.querySelectorAll("g.slice")].filter((slice) => slice.__data__ && slice.__data__.data)
      .map((slice) => { const { x0, x1, depth, parent, data } = slice.__data__; return { slice, x0, x1, depth, parent, id: data.data.id }; });
  }
  const drawing = (gd) => gd._fullData && gd._fullData.find((trace) => trace.type === "icicle");
  // The root of the picture is the first box after the callers above it.
  const rootId = (figure) => String((drawing(plotOf(figure)) || { meta: 0 }).meta);

  function show(figure, id) {
    const gd = plotOf(figure), trace = drawing(gd);
    if (!trace) return;
    const all = boxes(gd), at = all.find((each) => each.id === id) || all.find((each) => each.id === rootId(figure));
    for (const each of all) each.slice.classList.toggle("is-current", each === at && figure === document.activeElement);
    if (!at) return;
    figure.dataset.box = at.id;
    const words = figure.parentElement.querySelector(".icicle-words");
    // Text out of recordings is text: Plotly escapes it, so it is read back from a document that is never shown.
    if (words) words.textContent = new DOMParser().parseFromString(trace.hovertext[Number(at.id)].replace("<br>", " · "), "text/html").body.textContent;
  }

  function pick(figure, id) {
    const gd = plotOf(figure), trace = drawing(gd);
    if (!trace) return;
    picks += 1;
    dash_clientside.set_props(`${gd.closest(".dash-graph").id}-pick`, { data: { node: trace.customdata[Number(id)], picks } });
  }

  function beside(all, at, by) {
    const row = all.filter((each) => each.depth === at.depth).sort((a, b) => a.x0 - b.x0);
    return row[row.indexOf(at) + by];
  }
  function next(all, at, key) {
    const below = () => all.filter((each) => each.depth === at.depth + 1 && each.x0 >= at.x0 - 1e-9 && each.x1 <= at.x1 + 1e-9);
    if (key === "ArrowDown") return below().sort((a, b) => a.x0 - b.x0)[0];
    if (key === "ArrowUp") return at.parent && all.find((each) => each.id === at.parent.data.data.id);
    return beside(all, at, key === "ArrowLeft" ? -1 : 1);
  }

  document.addEventListener("keydown", function (event) {
    const figure = figureOf(event.target);
    if (!figure || figure !== event.target || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = boxes(plotOf(figure)), at = all.find((each) => each.id === (figure.dataset.box || rootId(figure)));
    if (!at) return;
    if (event.key.startsWith("Arrow")) {
      const to = next(all, at, event.key);
      if (to) show(figure, to.id);
    } else if (event.key === "Enter") pick(figure, at.id);
    else if ((event.key === "Escape" || event.key === "Backspace") && rootId(figure) !== "0") pick(figure, String(Number(rootId(figure)) - 1));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, true);
  for (const kind of ["focusin", "focusout"]) {
    document.addEventListener(kind, function (event) {
      const figure = figureOf(event.target);
      if (figure) requestAnimationFrame(() => show(figure, figure.dataset.box));
    });
  }

  function icicles() {
    for (const figure of document.querySelectorAll("figure.icicle[tabindex]")) {
      const gd = plotOf(figure);
      if (!gd || !gd.on || gd.vramscopeClicks) continue;
      // The server prunes the tree again for every root; Plotly's own zoom would only enlarge the old one.
      gd.on("plotly_icicleclick", function (event) {
        pick(figure, event.points[0].id);
        return false;
      });
      gd.on("plotly_afterplot", () => drawnAgain(figure));
      drawnAgain(figure);
      gd.vramscopeClicks = true;
    }
  }

  // With another root, that becomes the current box.
  function drawnAgain(figure) {
    const trace = drawing(plotOf(figure)), root = trace && String(trace.customdata[trace.meta]);
    if (figure.dataset.root !== root) Object.assign(figure.dataset, { root, box: rootId(figure) });
    if (figure === document.activeElement) show(figure, figure.dataset.box);
  }

  // The address has the root.
  function rootChosen(root) {
    window.vramscope.remember({ root: root || null });
    return window.dash_clientside.no_update;
  }

  window.vramscope = Object.assign(window.vramscope || {}, { icicles });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { rootChosen });
})();
