// Every figure as PNG or SVG, every table as CSV: made in the browser from what is shown.
(function () {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function name(node) {
    const run = new URLSearchParams(location.search).get("run") || "runs";
    const part = (node.closest(".panel") || node).getAttribute("aria-label") || "figure";
    return `${run}-${part}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 90);
  }
  function save(url, file) {
    const link = document.createElement("a");
    link.href = url;
    link.download = file;
    link.click();
  }

  // What a file says of itself, as it leaves the page: title, run, and the legend that the page has beside the figure.
  function caption(figure) {
    const panel = figure.closest(".panel") || figure, run = document.querySelector(".run-name"), facts = document.querySelector(".run-header .facts");
    const seen = new Set(), entries = [];
    for (const mark of panel.querySelectorAll(".swatch")) {
      const entry = mark.closest(".entry, .lane-key > span, .band-key > span, .part-list > div, dt") || mark.parentElement;
      if (mark.closest("table, label:has(input:not(:checked))") || !entry.getClientRects().length) continue;
      const text = (entry.querySelector(".name, dt") || entry).textContent.trim().replace(/\s+/g, " ");
      const style = getComputedStyle(mark), hue = /rgb[^)]*\)/.exec(style.backgroundImage) || [style.backgroundColor];
      if (text && !seen.has(text)) entries.push({ text, color: hue[0] });
      seen.add(text);
    }
    const heading = panel.querySelector(":scope > .panel-bar h3, :scope > h3");
    return { title: heading && heading.textContent.trim() || panel.getAttribute("aria-label") || "Memory", run: [run && run.textContent, facts && facts.textContent].filter(Boolean).join(" · "), entries };
  }
  const isTime = ({ ticksuffix, ticktext }) => / (h|min|s|ms|µs)$/.test((ticktext || [])[0] || ticksuffix || "");
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const TOP = 76;
  function describe(figure, layout, data) {
    const { title, run, entries } = caption(figure), ink = css("--ink"), soft = css("--ink-2");
    layout.title = { text: escaped(title), subtitle: { text: escaped(run), font: { size: 12, color: soft } }, x: 0, xref: "container", xanchor: "left",
      pad: { l: 16 }, y: 1, yref: "container", yanchor: "top", font: { size: 16, color: ink } };
    layout.title.pad.t = 14;
    layout.margin = { ...layout.margin, t: (layout.margin.t || 0) + TOP, b: (layout.margin.b || 0) + (entries.length ? 34 : 0) + 16, l: Math.max(layout.margin.l || 0, 16) };
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^[xy]axis$/.test(key) || axis.visible === false || axis.title) continue;
      const suffix = String(axis.ticksuffix || "").trim();
      const name = key === "yaxis" ? (suffix ? `Memory (${suffix})` : "") : isTime(axis) ? "Time since the recording began" : "";
      if (name) layout[key] = { ...axis, title: { text: name, font: { size: 11, color: soft }, standoff: 6 } };
    }
    for (const trace of data) trace.showlegend = false;
    if (!entries.length) return data;
    layout.showlegend = true;
    layout.legend = { orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom", font: { size: 12, color: soft }, bgcolor: "rgba(0,0,0,0)" };
    const keys = entries.map(({ text, color }) => ({ type: "scatter", mode: "markers", x: [null], y: [null], name: escaped(text), hoverinfo: "skip",
      showlegend: true, marker: { symbol: "square", size: 11, color, opacity: 1 } }));
    return [...data, ...keys];
  }
  // A picture that is no chart of Plotly: a canvas, such as the map of segments, the boxes of an icicle, or a chart of ours.
  // The legend below it has as many lines as its entries need.
  const LETTER = 6.8, LINE = 18;
  function placed(entries, width) {
    let [x, line] = [16, 0];
    return entries.map(({ text, color }) => {
      const long = 26 + text.length * LETTER;
      if (x > 16 && x + long > width + 32) [x, line] = [16, line + 1];
      x += long;
      return { text, color, x: x - long, line };
    });
  }
  function sizeOf(figure, picture) {
    const { width, height } = picture.getBoundingClientRect(), key = placed(caption(figure).entries, width);
    return { width: width + 32, height: height + TOP + 44 + LINE * (key.length ? key.at(-1).line : 0) };
  }
  function compose(context, figure, picture, paint) {
    const { title, run, entries } = caption(figure), { width, height } = picture.getBoundingClientRect(), whole = sizeOf(figure, picture);
    const write = (text, x, y, size, color, weight) => {
      Object.assign(context, { font: `${weight || 400} ${size}px ${css("--sans")}`, fillStyle: color, textAlign: "left", textBaseline: "alphabetic" });
      context.fillText(text, x, y);
      return context.measureText(text).width;
    };
    context.fillStyle = css("--surface");
    context.fillRect(0, 0, whole.width, whole.height);
    write(title, 16, 28, 16, css("--ink"), 600);
    write(run, 16, 48, 12, css("--ink-2"));
    paint(16, TOP - 10, width, height);
    for (const { text, color, x, line } of placed(entries, width)) {
      context.fillStyle = color;
      context.fillRect(x, height + TOP + 8 + LINE * line, 11, 11);
      write(text, x + 16, height + TOP + 18 + LINE * line, 12, css("--ink-2"));
    }
  }
  function onCanvas(figure, picture, painter) {
    const { width, height } = sizeOf(figure, picture), scale = 2, out = document.createElement("canvas");
    Object.assign(out, { width: width * scale, height: height * scale });
    const context = out.getContext("2d");
    context.scale(scale, scale);
    context.imageSmoothingEnabled = false;
    compose(context, figure, picture, painter(context));
    return out.toDataURL("image/png");
  }
  function asPage(figure, picture, painter, Page) {
    const { width, height } = sizeOf(figure, picture), context = new Page(width, height);
    compose(context, figure, picture, painter(context));
    return URL.createObjectURL(context.blob());
  }

  // The page colors Plotly by its style sheet; a file must contain the colors.
  function alone(gd, figure) {
    const layout = JSON.parse(JSON.stringify(gd.layout)), ink = css("--ink-2");
    Object.assign(layout, { paper_bgcolor: css("--surface"), plot_bgcolor: css("--surface"), font: { ...layout.font, color: ink } });
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      layout[axis] = { ...layout[axis], gridcolor: css("--grid"), range: gd._fullLayout[axis].range.slice(), autorange: false };
    }
    const data = gd.data.map((trace) => {
      const own = { ...trace };
      if (["allocated", "active", "cursor"].includes(trace.uid)) own.line = { ...trace.line, color: css("--ink") };
      if (trace.uid === "stepnames" || trace.uid === "flags") own.textfont = { ...trace.textfont, color: ink };
      return own;
    });
    const canvas = figure.querySelector("canvas.raster"), its = window.vramscope.rasterOf(gd.closest(".dash-graph").id);
    if (canvas && its) {
      const unit = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 }[gd._fullData.find((t) => t.uid === "allocated").meta];
      const { a, b, lo, hi } = its.box;
      layout.images = [{ source: canvas.toDataURL("image/png"), xref: "x", yref: "y", x: a, y: hi / unit,
        sizex: b - a, sizey: (hi - lo) / unit, sizing: "stretch", layer: "below" }];
    }
    return { data: describe(figure, layout, data), layout, config: { showSendToCloud: false, plotlyServerURL: "" } };
  }

  async function picture(figure, format) {
    const gd = figure.querySelector(".js-plotly-plot");
    if (!gd) {
      const drawn = figure.querySelector(".icicle-boxes, .plot"), canvas = drawn || figure.querySelector("canvas.raster");
      const paint = drawn && (drawn.matches(".plot") ? window.vramscope.paintPlot : window.vramscope.paintIcicle);
      const painter = (context) => (...place) => (drawn ? paint(context, drawn, ...place) : context.drawImage(canvas, ...place));
      const Page = { svg: window.vramscope.Svg, pdf: window.vramscope.Pdf }[format];
      save(Page ? asPage(figure, canvas, painter, Page) : onCanvas(figure, canvas, painter), `${name(figure)}.${format}`);
      return;
    }
    const { width, height } = gd.getBoundingClientRect();
    if (format === "pdf") {
      const page = new window.vramscope.Pdf(width, height + TOP + 50), image = new Image();
      image.src = await Plotly.toImage(alone(gd, figure), { format: "png", width, height: height + TOP + 50, scale: 4 });
      await image.decode();
      page.drawImage(image, 0, 0, width, height + TOP + 50);
      save(URL.createObjectURL(page.blob()), `${name(figure)}.pdf`);
      return;
    }
    save(await Plotly.toImage(alone(gd, figure), { format, width, height: height + TOP + 50, scale: format === "png" ? 2 : 1 }), `${name(figure)}.${format}`);
  }
  // A name that looks like a formula must not run in a spreadsheet.
  const safe = (text) => (/^[=+@\t\r\n'＝＋－＠-]/.test(text) && !/^[+-]?[\d.]+$/.test(text) ? `'${text}` : text);
  const field = (text) => `"${safe(text).replace(/"/g, '""')}"`;
  // A file has exact bytes, and the source location beside the name.
  const inBytes = ({ valueFormatter: shown }) => typeof shown === "function" && shown({ value: 1024 }) === "1.00 KiB";
  const CELLS = {
    processHeaderCallback: ({ column }) => column.getColDef().headerName + (inBytes(column.getColDef()) ? " (bytes)" : ""),
    processCellCallback: ({ value, node, column }) => {
      const place = column.getColDef().field === "where" && node.data.place;
      return value === null || value === undefined ? "" : safe(place ? `${value} ${place}` : String(value));
    },
  };
  const grid = (frame) => dash_ag_grid.getApi(frame.querySelector(".table").id).exportDataAsCsv({ fileName: `${name(frame)}.csv`, ...CELLS });
  const rowsOf = (id) => dash_ag_grid.getApi(id).getDataAsCsv({ columnSeparator: "\t", suppressQuotes: true, ...CELLS });
  function exact(cell) {
    const bytes = /^([+-]?[\d,]+) bytes/.exec(cell.title);
    return bytes ? bytes[1].replace(/,/g, "") : null;
  }
  function plain(table) {
    const rows = [...table.rows], counts = new Set(), shut = [...table.querySelectorAll("details:not([open])")];
    for (const part of shut) part.open = true; // what is folded has no text to read
    for (const row of rows) [...row.cells].forEach((cell, i) => { if (exact(cell) !== null) counts.add(i); });
    const shown = (cell, i, head) => {
      const text = cell.innerText.trim().replace(/\s+/g, " ");
      return head && counts.has(i) ? `${text} (bytes)` : exact(cell) ?? text;
    };
    const lines = rows.map((row, r) => [...row.cells].map((cell, i) => field(shown(cell, i, r === 0))).join(","));
    for (const part of shut) part.open = false;
    save(URL.createObjectURL(new Blob([lines.join("\n")], { type: "text/csv" })), `${name(table)}.csv`);
  }

  // The numbers that a figure draws, as a spreadsheet takes them.
  const cell = (value) => (typeof value === "string" ? safe(value.replace(/[\t\n]/g, " ")) : String(value));
  const numbers = (rows) => button("Numbers", "Copy the numbers of the figure, to paste into a spreadsheet",
    (made) => window.vramscope.copy(made, rows().map((row) => row.map(cell).join("\t")).join("\n")));
  function rowsOfFigure(figure) {
    const gd = figure.querySelector(".js-plotly-plot"), drawn = figure.querySelector(".icicle-boxes, .plot");
    if (!gd) return drawn.matches(".plot") ? window.vramscope.plotRows(drawn) : window.vramscope.icicleRows(drawn);
    const { xaxis, yaxis } = gd._fullLayout, unit = (axis) => [axis.tickprefix, axis.ticksuffix].join("").trim();
    const map = gd._fullData.find(({ z }) => z), last = map ? (map.colorbar.ticksuffix || "value").trim() : unit(yaxis) || "y";
    const found = [[map ? unit(yaxis) || "row" : "series", isTime(xaxis) ? "s" : unit(xaxis) || "x", last]];
    // Cells may be given by their edges.
    const middles = (edges, n) => (edges.length > n ? Array.from({ length: n }, (_, i) => (edges[i] + edges[i + 1]) / 2) : [...edges]);
    for (const { name: series, uid, x, y, z } of gd._fullData) {
      if (uid === "cursor") continue;
      if (z) middles(y, z.length).forEach((row, r) => middles(x, z[r].length).forEach((column, c) => found.push([row, column, z[r][c]])));
      else if (x && y) [...x].forEach((at, i) => found.push([series.replace(/[\u2066-\u2069]/g, ""), at, y[i]]));
    }
    return found;
  }

  // A table of few rows is only as tall as its rows, those included that a search hides.
  function fit(table) {
    const api = table.id && window.dash_ag_grid && dash_ag_grid.getApi(table.id);
    if (!api) { setTimeout(() => table.isConnected && fit(table), 60); return; }
    const count = () => {
      let rows = 0;
      api.forEachNode(() => { rows += 1; });
      table.style.setProperty("--rows", rows);
    };
    api.addEventListener("rowDataUpdated", count);
    count();
  }

  function button(word, title, act) {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", textContent: word, title, className: "save" });
    made.setAttribute("aria-label", title);
    made.addEventListener("click", (event) => { event.stopPropagation(); act(made); });
    return made;
  }
  const savedBy = new WeakMap();
  function offer(node, what, ...buttons) {
    const box = document.createElement("div");
    box.className = "saves";
    box.append(...buttons);
    node.append(box);
    savedBy.set(box, what);
  }
  function offerAll() {
    // A page that puts another table in the place of one leaves the buttons of that.
    for (const box of document.querySelectorAll(".has-saves > .saves")) if (!savedBy.get(box).isConnected) box.remove();
    for (const figure of document.querySelectorAll("figure.figure:not([data-saves])")) {
      figure.dataset.saves = "yes";
      const drawn = figure.classList.contains("strip"), kept = (word) => button(word, `Save the figure as ${word}`, () => picture(figure, word.toLowerCase()));
      offer(figure, figure, kept("PNG"), ...(drawn ? [] : [kept("SVG")]), kept("PDF"), ...(drawn ? [] : [numbers(() => rowsOfFigure(figure))]));
    }
    for (const table of document.querySelectorAll(".table:not([data-saves])")) {
      table.dataset.saves = "yes";
      fit(table);
      const frame = table.closest(".table-frame") || table.parentElement;
      frame.classList.add("has-saves");
      offer(frame, table, button("Copy", "Copy the table, to paste into a spreadsheet", (made) => window.vramscope.copy(made, rowsOf(table.id))),
        button("CSV", "Save the table as CSV", () => grid(frame)));
    }
    for (const table of document.querySelectorAll("main table.diff:not([data-saves]), main table.runs:not([data-saves])")) {
      table.dataset.saves = "yes";
      table.parentElement.classList.add("has-saves");
      offer(table.parentElement, table, button("CSV", "Save the table as CSV", () => plain(table)));
    }
  }
  let queued = false;
  new MutationObserver(function () {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; offerAll(); });
  }).observe(document.documentElement, { childList: true, subtree: true });
  window.vramscope = Object.assign(window.vramscope || {}, { numbers });
})();
