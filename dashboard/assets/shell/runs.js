// The list of runs: sorted, searched, filtered, grouped and compared in the browser, from the rows that the server sends.
(function () {
  // More rows follow as one scrolls: of 1,000 runs, 120 rows took 600 ms to lay out again on a busy machine.
  // The first rows fill the window: 60 of them came some 30 ms later. A row is 46 pixels high, on a phone 62.
  const FIRST = Math.ceil(innerHeight / 40), CHUNK = 60, LATER_MS = 300, COLUMNS = 9, MOST_TICKED = 8;
  const words = new Intl.Collator("en", { numeric: true });
  const known = { names: [], folders: {}, rows: {} };
  const view = { sort: "started_s", down: true, filter: "all", group: "", ticked: [], limit: FIRST };
  const made = new Map();
  let place = null;

  const HEADS = [
    ["name", "Run"], [null, "Memory"], ["allocated_bytes", "Peak allocated", "allocated"],
    ["reserved_bytes", "Peak reserved", "reserved"], ["steps", "Steps", "step"], ["started_s", "When, UTC"], ["verdict", "Verdict"],
    ["state", "State"],
  ];
  const NUMBERS = new Set(["allocated_bytes", "reserved_bytes", "steps", "started_s"]);
  /** @type {[string, string, (row: any) => boolean][]} */
  const FILTERS = [
    ["all", "All", () => true], ["live", "Running", (row) => row.is_live],
    ["oom", "Out of memory", (row) => /out of memory/.test(row.verdict || "")],
    ["leaks", "Leaks", (row) => /^leaks/.test(row.verdict || "")],
    ["ranks", "Odd ranks", (row) => /^(rank \d|[\d,]+ ranks )/.test(row.verdict || "")],
    ["grows", "Growing batch", (row) => /^batch grows/.test(row.verdict || "")],
    ["ended", "Failed", (row) => ["failed", "cut off", "unreadable"].includes(row.state)],
  ];

  // What runs are put together by: its word on the button, the group of a run, and the name of those without.
  /** @type {[string, string, (id: string) => string, string][]} */
  const GROUPS = [
    ["folder", "By folder", (id) => known.folders[id] || "", "this folder"],
    ["tag", "By first tag", (id) => ((known.rows[id] || {}).tags || [""])[0] || "", "without a tag"],
  ];

  function element(tag, options, ...children) {
    const { data, ...rest } = options || {};
    const made = Object.assign(document.createElement(tag), rest);
    Object.assign(made.dataset, data || {});
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }
  // Names out of recordings are text, never markup; the end of a name tells runs apart, so its middle is cut.
  function named(text) {
    if (text.length <= 28) return element("bdi", {}, text);
    return element("bdi", { className: "cut" }, element("span", { className: "cut-start" }, text.slice(0, -14)),
      element("span", { className: "cut-end" }, text.slice(-14)));
  }
  function spark(drawn) {
    if (!drawn || !drawn[0]) return element("span", { className: "dim" }, "no events");
    const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
    const [allocated, reserved] = drawn, set = (node, values) => { for (const [k, v] of Object.entries(values)) node.setAttribute(k, v); };
    set(svg, { viewBox: `0 0 ${allocated.length} 28`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
    for (const [letters, name] of [[reserved, "spark-reserved"], [allocated, "spark-allocated"]]) {
      const shape = document.createElementNS(ns, "polygon");
      const points = [...letters].map((c, x) => { const y = (28 - (c.charCodeAt(0) - 97) / 25 * 27).toFixed(1); return `${x},${y} ${x + 1},${y}`; });
      set(shape, { points: `0,28 ${points.join(" ")} ${letters.length},28`, class: name });
      svg.append(shape);
    }
    return svg;
  }
  function link(url, className, ...children) {
    return element("a", { href: url, className }, ...children);
  }
  function tick(id, row) {
    const box = element("input", { type: "checkbox", checked: view.ticked.includes(id), data: { run: id } });
    box.setAttribute("aria-label", `Compare ${row.name}`);
    return element("td", { className: "tick" }, box);
  }
  function peak(row, name, url) {
    const bytes = row[name];
    const cell = element("td", { className: name === "allocated_bytes" ? "number strong" : "number", title: bytes ? `${bytes.toLocaleString("en-US")} bytes` : "" });
    const text = bytes ? (row.is_least ? "≥ " : "") + window.vramscope.bytes(bytes) : "–";
    cell.append(bytes && url ? link(url, "plain-link", text) : text);
    return cell;
  }
  const TONE = (verdict) => /out of memory/.test(verdict) ? "verdict-bad" : /^(leaks|rank \d|[\d,]+ ranks )/.test(verdict) ? "verdict-warn" : "dim";
  function stateOf(row) {
    if (row.state === "file") return null;
    const word = row.state === "stalled" ? `running, no new events for ${row.stalled_s} s` : row.state;
    return element("span", { className: `outcome outcome-${row.state}` }, element("i", { className: "dot" }), word);
  }
  function line(id) {
    const row = known.rows[id];
    if (!row) {
      return element("tr", { className: "waiting" }, element("td", { className: "tick" }),
        element("td", {}, element("bdi", {}, id.replace(/-[0-9a-f]+$/, ""))),
        element("td", { colSpan: COLUMNS - 2 }, element("div", { className: "shimmer" })));
    }
    if (row.error) {
      return element("tr", { className: "unreadable" }, element("td", { className: "tick" }), element("td", {}, named(row.name)),
        element("td", { className: "dim", colSpan: COLUMNS - 3 }, row.error),
        element("td", {}, element("span", { className: "outcome outcome-failed" }, "cannot be read")));
    }
    const badge = element("span", { className: `badge badge-${["simulated", "predicted", "cuda", "file"].includes(row.source) ? row.source : "other"}`, title: row.about }, row.source);
    const counts = [["devices", row.devices], ["runs", row.runs]].filter(([, n]) => n > 1).map(([word, n]) => `${n} ${word}`);
    const several = counts.length ? element("span", { className: "dim" }, counts.join(", ")) : null;
    const name = link(row.url, "run-link", named(row.name));
    name.title = row.name;
    const tags = (row.tags || []).map((word) => element("button", { type: "button", className: "tag", title: `Runs with the tag ${word}`, data: { tag: word } }, word));
    return element("tr", { className: row.is_live ? "live" : "" }, tick(id, row),
      element("td", {}, element("div", { className: "run-cell" }, name, badge, several, ...tags)),
      element("td", {}, spark(row.drawn)), peak(row, "allocated_bytes", row.peak), peak(row, "reserved_bytes"),
      element("td", { className: "number" }, row.steps ? row.steps.toLocaleString("en-US") : "–"),
      element("td", { className: "dim" }, (row.when || "–").replace(/ UTC$/, "")),
      element("td", { className: "judged" }, element("span", { className: TONE(row.verdict || "") }, row.verdict || "–")),
      element("td", {}, stateOf(row)));
  }
  // A row that looks the same stays the same element: what has the focus keeps it while a run grows.
  function rowOf(id) {
    const key = JSON.stringify(known.rows[id] || null), old = made.get(id);
    if (old && old.key === key) return old.tr;
    const tr = line(id);
    tr.dataset.run = id;
    made.set(id, { key, tr });
    return tr;
  }

  const typed = () => { const box = document.getElementById("runs-search"); return box ? box.value.trim().toLowerCase() : ""; };
  function wanted() {
    const terms = typed().split(/\s+/).filter(Boolean), passes = FILTERS.find(([name]) => name === view.filter)[2];
    return known.names.filter((id) => {
      const row = known.rows[id];
      if (!row && view.filter !== "all" || row && !passes(row)) return false;
      if (!terms.length) return true;
      const tags = (row && row.tags || []).map((tag) => tag.toLowerCase());
      const text = (row ? [row.name, known.folders[id], row.source, row.verdict, row.state, row.error, ...tags] : [id, known.folders[id]]).join(" ").toLowerCase();
      return terms.every((term) => (term.startsWith("tag:") ? tags.includes(term.slice(4)) : text.includes(term)));
    });
  }
  function sorted(ids) {
    const sign = view.down ? -1 : 1, number = NUMBERS.has(view.sort);
    const value = (id) => { const row = known.rows[id]; return row ? row[view.sort] : undefined; };
    const order = new Map(known.names.map((id, i) => [id, i]));
    return ids.sort((one, other) => {
      const a = value(one), b = value(other), none = Number(!a) - Number(!b);
      if (none) return none;  // what a run does not have stays below, in both directions
      const differs = number ? a - b : words.compare(a || "", b || "");
      return sign * differs || order.get(one) - order.get(other);
    });
  }
  function grouped(ids) {
    const way = GROUPS.find(([name]) => name === view.group);
    if (!way) return ids.slice(0, view.limit).map(rowOf);
    const groups = new Map();
    for (const id of ids) {
      const name = way[2](id);
      groups.set(name, [...(groups.get(name) || []), id]);
    }
    let left = view.limit;
    // What has no name stays below.
    return [...groups].sort(([a], [b]) => Number(!a) - Number(!b) || words.compare(a, b)).flatMap(([name, own]) => {
      const shown = own.slice(0, left);
      left -= shown.length;
      return shown.length ? [headOf(name || way[3], own.length), ...shown.map(rowOf)] : [];
    });
  }
  function headOf(name, n) {
    const key = `group ${name} ${n}`;
    if (!made.has(key)) {
      const count = element("span", { className: "dim" }, `${n.toLocaleString("en-US")} ${n === 1 ? "run" : "runs"}`);
      made.set(key, { tr: element("tr", { className: "folder" }, element("th", { colSpan: COLUMNS, scope: "rowgroup" }, element("bdi", {}, name), count)) });
    }
    return made.get(key).tr;
  }

  // Sort, filter and folders are in the address, so that a link and a reload restore them.
  function restore() {
    const url = new URLSearchParams(location.search), key = (url.get("sort") || "").replace(/^-/, "");
    if (HEADS.some(([name]) => name === key)) Object.assign(view, { sort: key, down: url.get("sort")[0] === "-" });
    if (FILTERS.some(([name]) => name === url.get("filter"))) view.filter = url.get("filter");
    if (GROUPS.some(([name]) => name === url.get("group"))) view.group = url.get("group");
    if (url.has("ticked")) view.ticked = url.get("ticked").split(" ").filter((id) => known.names.includes(id)).slice(-MOST_TICKED);
  }
  function remember() {
    const isUsual = view.sort === "started_s" && view.down;
    window.vramscope.store.remember({ sort: isUsual ? null : `${view.down ? "-" : ""}${view.sort}`, filter: view.filter === "all" ? null : view.filter, group: view.group || null, ticked: view.ticked.join(" ") });
  }

  function frame() {
    restore();
    const box = element("input", { type: "search", id: "runs-search", className: "search", placeholder: "Find a run", value: new URLSearchParams(location.search).get("q") || "" });
    const label = element("label", {}, element("span", { className: "unseen" }, "Find a run"), box);
    const filters = element("div", { className: "segments", id: "runs-filters" });
    filters.setAttribute("role", "group");
    filters.setAttribute("aria-label", "Which runs");
    const group = element("div", { className: "segments", id: "runs-group" });
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Runs together");
    const head = element("tr", {}, element("th", { className: "tick", scope: "col" }, element("span", { className: "unseen" }, "Compare")));
    for (const [key, text, about] of HEADS) {
      const cell = element("th", { scope: "col", className: NUMBERS.has(key) && key !== "started_s" ? "number" : "" });
      if (key) cell.append(element("button", { type: "button", className: "sort", title: about ? place.dataset[about] : `Sort by ${text.toLowerCase()}`, data: { key } }, text));
      else cell.append(text);
      head.append(cell);
    }
    const table = element("table", { className: "runs" }, element("thead", {}, head), element("tbody", {}));
    place.replaceChildren(element("div", { className: "runs-bar" }, label, filters, group), element("div", { className: "runs-frame" }, table),
      element("p", { className: "dim runs-none", hidden: true }), element("div", { className: "runs-more" }), element("div", { className: "runs-compare", hidden: true }));
    // 60 rows below the window take 70 ms, in which a run that is clicked at once could not open: they come later.
    new IntersectionObserver((seen) => {
      if (seen.some((one) => one.isIntersecting)) setTimeout(() => { view.limit += CHUNK; draw(); }, LATER_MS);
    }, { rootMargin: "600px" }).observe(place.querySelector(".runs-more"));
  }

  function choice(data, isOn, ...content) {
    const button = element("button", { type: "button", className: isOn ? "here" : "", data }, ...content);
    button.setAttribute("aria-pressed", String(isOn));
    return button;
  }
  // The list is drawn again while runs are read: the button that has the focus keeps it.
  function offer(id, buttons) {
    const there = document.getElementById(id), at = [...there.children].indexOf(document.activeElement);
    if (there.innerHTML === buttons.map((button) => button.outerHTML).join("")) return;
    there.replaceChildren(...buttons);
    if (at >= 0 && buttons[at]) buttons[at].focus({ preventScroll: true });
  }
  function draw() {
    place = document.getElementById("runs-list");
    if (!place || !known.names.length) { if (place) place.replaceChildren(); return; }
    if (!place.querySelector("table")) frame();
    const all = sorted(wanted()), rows = grouped(all), body = place.querySelector("tbody");
    const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement : null;
    if (body.children.length !== rows.length || rows.some((row, i) => row !== body.children[i])) body.replaceChildren(...rows);
    if (focused && focused.isConnected) focused.focus({ preventScroll: true });
    place.querySelector(".runs-more").hidden = all.length <= view.limit;
    const none = place.querySelector(".runs-none");
    none.hidden = all.length > 0;
    none.textContent = `None of the ${known.names.length.toLocaleString("en-US")} runs matches.`;
    for (const button of place.querySelectorAll("button.sort")) {
      const here = button.dataset.key === view.sort;
      button.parentElement.setAttribute("aria-sort", here ? (view.down ? "descending" : "ascending") : "none");
    }
    const counts = FILTERS.map(([name, text, passes]) => [name, text, known.names.filter((id) => known.rows[id] && passes(known.rows[id])).length]);
    offer("runs-filters", counts.filter(([name, , n]) => n || name === "all" || name === view.filter).map(([name, text, n]) =>
      choice({ filter: name }, name === view.filter, text, element("span", { className: "dim" }, name === "all" ? known.names.length.toLocaleString("en-US") : n.toLocaleString("en-US")))));
    const several = GROUPS.filter(([name, , of]) => name === view.group || new Set(known.names.map(of)).size > 1);
    offer("runs-group", several.map(([name, text]) => choice({ together: name }, name === view.group, text)));
    document.getElementById("runs-group").hidden = !several.length;
    compare();
  }
  // Three and more are rows of one table; each says by how much it differs from the earliest.
  function sideBySide(runs) {
    const base = runs[0][1], change = (row, name) => {
      const by = (row[name] / base[name] - 1) * 100, isKnown = base[name] && row[name] && !base.is_least && !row.is_least;
      const text = row === base ? "baseline" : !isKnown ? "–" : Math.abs(by) < .05 ? "the same" : `${by > 0 ? "+" : "−"}${Math.abs(by).toFixed(1)} %`;
      return element("td", { className: "number dim" }, text);
    };
    const heads = ["Run", "Peak allocated", "Change", "Peak reserved", "Change", "Step time", "Verdict"];
    const head = element("tr", {}, ...heads.map((text, i) => element("th", { scope: "col", className: i && i < 6 ? "number" : "" }, text)));
    const lines = runs.map(([, row]) => element("tr", {}, element("th", { scope: "row" }, link(row.url, "run-link", named(row.name))),
      peak(row, "allocated_bytes", row.peak), change(row, "allocated_bytes"), peak(row, "reserved_bytes"), change(row, "reserved_bytes"),
      element("td", { className: "number" }, row.step_time || "–"), element("td", { className: "judged" }, element("span", { className: TONE(row.verdict || "") }, row.verdict || "–"))));
    return element("table", { className: "beside" }, element("caption", {}, `${runs.length} runs side by side`), element("thead", {}, head), element("tbody", {}, ...lines));
  }
  function compare() {
    const bar = place.querySelector(".runs-compare");
    const runs = view.ticked.map((id) => [id, known.rows[id]]).filter(([, row]) => row && !row.error).sort(([, a], [, b]) => a.started_s - b.started_s);
    bar.hidden = !runs.length;
    // What is the same stays, with the focus on it.
    const key = JSON.stringify(runs);
    if (bar.hidden || bar.dataset.key === key) return;
    bar.dataset.key = key;
    if (runs.length > 2) { bar.replaceChildren(sideBySide(runs)); return; }
    const [first, second] = runs;
    if (!second) { bar.replaceChildren("Tick one more run to compare ", named(first[1].name), " with it."); return; }
    // The earlier run is the baseline.
    const url = `/compare?run=${encodeURIComponent(second[0])}&other=${encodeURIComponent(first[0])}`;
    bar.replaceChildren(named(first[1].name), " → ", named(second[1].name), link(url, "compare-link", "Compare"));
  }

  function search(text) {
    const box = document.getElementById("runs-search");
    if (box.value !== text) box.value = text;
    view.limit = CHUNK;
    window.vramscope.store.remember({ q: text.trim() || null });
    draw();
  }
  document.addEventListener("input", (event) => { if (event.target.id === "runs-search") search(event.target.value); });
  document.addEventListener("change", (event) => {
    const id = event.target.closest(".runs td.tick") && event.target.dataset.run;
    if (!id) return;
    view.ticked = view.ticked.filter((each) => each !== id);
    if (event.target.checked) view.ticked.push(id);
    for (const gone of view.ticked.splice(0, Math.max(view.ticked.length - MOST_TICKED, 0))) {
      const box = place.querySelector(`.tick input[data-run="${gone}"]`);
      if (box) box.checked = false;
    }
    remember();
    compare();
  });
  document.addEventListener("click", (event) => {
    const here = event.target.closest(".runs-list");
    if (!here) return;
    const tag = event.target.closest("button.tag"), sort = event.target.closest("button.sort"), filter = event.target.closest("[data-filter]"), group = event.target.closest("[data-together]");
    if (tag) {
      search(`tag:${tag.dataset.tag}`);
    } else if (sort) {
      view.down = view.sort === sort.dataset.key ? !view.down : NUMBERS.has(sort.dataset.key);
      view.sort = sort.dataset.key;
      remember();
      draw();
    } else if (filter) {
      view.filter = filter.dataset.filter;
      view.limit = CHUNK;
      remember();
      draw();
      here.querySelector(`[data-filter="${view.filter}"]`).focus();
    } else if (group) {
      const name = group.dataset.together;
      view.group = view.group === name ? "" : name;
      remember();
      draw();
      here.querySelector(`[data-together="${name}"]`).focus();
    }
  });

  function runs(sent) {
    if (!sent) return window.dash_clientside.no_update;
    if (sent.names) {
      known.names = sent.names;
      known.folders = Object.fromEntries(sent.names.map((id, i) => [id, sent.folders[i]]));
      view.ticked = view.ticked.filter((id) => sent.names.includes(id));
    }
    // The row of a run that is gone stays: if the run comes back as it was, its row is not sent again.
    Object.assign(known.rows, JSON.parse(sent.rows));
    // Dash has drawn the page by then.
    requestAnimationFrame(draw);
    return { turn: sent.turn, order: sent.order };
  }
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { runs });
})();
