// The heat map of ranks in the browser: the cell under the pointer in words, and the view in the URL.
(function () {
  let picks = 0;
  // Plotly reports the middle of a cell.
  const first = (middle, size) => Math.round(middle - (size - 1) / 2);
  const span = (word, first, size) => size === 1 ? `${word} ${first}` : `${word}s ${first}–${first + size - 1}`;

  function tell(gd, point) {
    const out = document.getElementById("rk-readout");
    if (!out) return;
    if (!point) { out.textContent = out.dataset.rest || ""; return; }
    const { ranks, steps, unit } = gd.layout.meta;
    const rank = first(point.y, ranks), step = first(point.x, steps);
    const value = Number.isFinite(point.z) ? `${point.z.toFixed(2)} ${unit}` : "nothing recorded";
    out.textContent = `${span("rank", rank, ranks)} · ${span("step", step, steps)} · ${ranks * steps > 1 ? "at most " : ""}${value}`;
  }

  function rankMap(figure, tries) {
    const gd = document.querySelector(".rank-map .js-plotly-plot");
    if (!gd || !gd._fullData) {
      if ((tries || 0) < 300) requestAnimationFrame(() => rankMap(figure, (tries || 0) + 1));
    } else if (!gd.vramscopeRanks) {
      gd.on("plotly_hover", (event) => tell(gd, event.points[0]));
      gd.on("plotly_unhover", () => tell(gd, null));
      gd.on("plotly_click", (event) => {
        const { ranks, steps } = gd.layout.meta, { x, y } = event.points[0];
        picks += 1;
        dash_clientside.set_props("rk-pick", { data: { rank: first(y, ranks), ranks, step: first(x, steps), steps, picks } });
      });
      gd.vramscopeRanks = true;
    }
    return window.dash_clientside.no_update;
  }

  // The zoom in ranks and steps. An axis that Plotly does not report keeps what it had.
  function rankZoom(change, known) {
    const none = window.dash_clientside.no_update;
    if (!change) return none;
    const edges = (axis) => [change[`${axis}.range[0]`], change[`${axis}.range[1]`]].every(Number.isFinite)
      ? [change[`${axis}.range[0]`], change[`${axis}.range[1]`]].sort((a, b) => a - b)
        .map((edge, i) => Math.max(0, i ? Math.ceil(edge + 0.5) : Math.floor(edge + 0.5)))
      : change[`${axis}.autorange`] ? [null, null] : undefined;
    const steps = edges("xaxis"), ranks = edges("yaxis");
    if (!steps && !ranks) return none;
    const zoom = { ...(steps ? { t0: steps[0], t1: steps[1] } : {}), ...(ranks ? { b0: ranks[0], b1: ranks[1] } : {}) };
    window.vramscope.store.remember(zoom);
    return { ...known, ...zoom };
  }

  function rankChosen(shown) {
    if (!shown) return window.dash_clientside.no_update;
    const [rank, other] = shown;
    window.vramscope.store.remember({ rank: rank, other: Number.isInteger(other) ? `r${other}` : null });
    return window.dash_clientside.no_update;
  }

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { rankMap, rankZoom, rankChosen });
})();
